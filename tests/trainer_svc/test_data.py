"""Data files and their order."""

from pathlib import Path

import pytest

from trainer_svc.data import DataError, read_demonstrations, read_inputs, take


def test_every_epoch_takes_everything_once_in_an_order_of_its_own() -> None:
    epochs = [take(10, 1, start, 10) for start in (0, 10)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert take(10, 2, 0, 10) != epochs[0]


def test_a_position_goes_on_where_the_last_one_ended() -> None:
    whole = take(7, 3, 0, 20)
    assert [*take(7, 3, 0, 5), *take(7, 3, 5, 9), *take(7, 3, 14, 6)] == whole


def test_no_data_is_an_error() -> None:
    with pytest.raises(ValueError, match="no data"):
        take(0, 1, 0, 1)


def test_inputs_are_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "1"}\n\n{"question": "2"}\n')
    assert read_inputs(path) == [{"question": "1"}, {"question": "2"}]


@pytest.mark.parametrize(("text", "message"), [("{}\n[1]\n", ":2: expected"), ("{\n", ":1: "), ("\n", "holds nothing")])
def test_a_broken_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_inputs(path)


def test_a_demonstrations_first_token_is_never_learned(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    path.write_text('{"token_ids": [5, 6, 7], "loss_mask": [1, 0, 1]}\n')
    (only,) = read_demonstrations(path)
    assert only.token_ids.tolist() == [5, 6, 7]
    assert only.mask.tolist() == [False, False, True]


@pytest.mark.parametrize(
    "line", ['{"token_ids": [1, 2], "loss_mask": [1]}', '{"token_ids": [1], "loss_mask": [1]}', "{}"]
)
def test_a_demonstration_that_teaches_nothing_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "demonstrations.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=":1: "):
        read_demonstrations(path)
