"""Which earlier call a request retries, and that everything else is a sibling."""

import pytest

from gateway_svc.retry import Earlier, choose, turn
from gateway_svc.types import Mode, Repeat

LOST, OPEN = Earlier(key="", lost=True), Earlier(key="", lost=False)


@pytest.mark.parametrize(
    ("key", "is_retry", "earlier", "found"),
    [
        ("", False, [], None),
        ("", True, [], None),
        ("", False, [OPEN], None),
        ("", True, [OPEN], 0),
        ("", True, [OPEN, OPEN], 0),
        ("", False, [OPEN, LOST], 1),
        ("", True, [OPEN, LOST], 1),
        ("", False, [LOST, LOST], 0),
        ("k", False, [OPEN, Earlier(key="k", lost=False)], 1),
        ("k", True, [Earlier(key="j", lost=True)], None),
        ("k", True, [Earlier(key="j", lost=True), OPEN], 1),
        ("k", False, [LOST], 0),
        ("", True, [Earlier(key="k", lost=False)], 0),
    ],
    ids=[
        "the first",
        "a retry of what never came",
        "a sibling",
        "a retry of a call that is open or delivered",
        "a retry belongs to the latest",
        "a lost reply waits for an equal body",
        "a lost reply goes before the latest",
        "the latest lost one",
        "the same key decides",
        "two keys are two calls",
        "a retry with a new key may be of a call without one",
        "a key does not hinder the lost reply of a call without one",
        "a retry that has dropped the key",
    ],
)
def test_choice(key: str, is_retry: bool, earlier: list[Earlier], found: int | None) -> None:
    assert choose(Repeat(turn=b"t", key=key, is_retry=is_retry), earlier) == found


def test_each_body_mode_model_and_choice_is_a_turn_of_its_own() -> None:
    made = {
        turn(b"1", Mode.TRAIN, "models/m", 0),
        turn(b"2", Mode.TRAIN, "models/m", 0),
        turn(b"1", Mode.EVAL, "models/m", 0),
        turn(b"1", Mode.TRAIN, "models/n", 0),
        turn(b"1", Mode.TRAIN, "models/m", 1),
    }
    assert len(made) == 5
    assert turn(b"1", Mode.TRAIN, "models/m", 0) in made
