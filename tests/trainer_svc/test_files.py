"""Directories and files appear whole or not at all."""

from pathlib import Path

import pytest

from trainer_svc.files import replace_directory, replace_text


def test_a_directory_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    for text in ("one", "two"):
        with replace_directory(target) as temporary:
            (temporary / text).write_text(text)
    assert [path.name for path in target.iterdir()] == ["two"]
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_a_failure_leaves_the_old_directory_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(FileNotFoundError), replace_directory(target) as temporary:
        (temporary / "missing" / "new").write_text("half")
    assert [path.name for path in target.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_text_is_replaced_without_leftovers(tmp_path: Path) -> None:
    for text in ("one", "two"):
        replace_text(tmp_path / "latest", text)
    assert (tmp_path / "latest").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
