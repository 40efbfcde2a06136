"""Checkpoints in one process: whole or not at all, the newest is found, and no process is started."""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.trainer_svc.megatron import samples as s
from trainer_svc import commands as c
from trainer_svc.megatron.checkpoint import find_checkpoint

STEP = s.train_commands([s.pack(s.make_samples())], s.step_command())


def test_training_goes_on_from_a_checkpoint_to_the_bit(world: None, model_path: Path, tmp_path: Path) -> None:
    worker = s.load_worker(model_path)
    _, saved, expected = s.execute(worker, *STEP, c.SaveCheckpoint(path=tmp_path / "one", extra=b"x"), *STEP)
    loaded, done = s.execute(s.load_worker(model_path), c.LoadCheckpoint(path=tmp_path), *STEP)
    assert saved == c.CheckpointSaved(path=tmp_path / "one")
    assert loaded == c.CheckpointLoaded(step=1, extra=b"x")
    assert isinstance(done, c.StepDone)
    assert isinstance(expected, c.StepDone)
    assert (done.loss, done.gradient_norm) == (expected.loss, expected.gradient_norm)


def test_adam_goes_on_too(world: None, model_path: Path, tmp_path: Path) -> None:
    worker = s.load_worker(model_path)
    *_, expected = s.execute(worker, *STEP, c.SaveCheckpoint(path=tmp_path / "one"), *STEP, *STEP)
    restored = s.load_worker(model_path)
    *_, done = s.execute(restored, c.LoadCheckpoint(path=tmp_path), *STEP, *STEP)
    assert isinstance(done, c.StepDone)
    assert isinstance(expected, c.StepDone)
    assert done.loss == expected.loss  # the second loss shows what the first update did
    states = restored.trainer.optimizer.optimizer.state.values()
    assert len({id(state["step"]) for state in states}) == len(states), "parameters share one step tensor"


def test_latest_names_the_newest_and_a_repeat_replaces(world: None, model_path: Path, tmp_path: Path) -> None:
    worker = s.load_worker(model_path)
    for name in ("one", "two", "one"):
        s.execute(worker, c.SaveCheckpoint(path=tmp_path / name))
        assert find_checkpoint(tmp_path) == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_a_failed_save_leaves_the_last_checkpoint_alone(world: None, model_path: Path, tmp_path: Path) -> None:
    worker = s.load_worker(model_path)
    s.execute(worker, c.SaveCheckpoint(path=tmp_path / "one"))
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()  # so that the last step of a save fails
    with pytest.raises(OSError, match="latest"):
        s.execute(worker, c.SaveCheckpoint(path=tmp_path / "two"))
    assert find_checkpoint(tmp_path / "one") == tmp_path / "one"


def test_a_save_starts_no_process(world: None, model_path: Path, tmp_path: Path) -> None:
    before, forks = set(psutil.Process().children(recursive=True)), list[int]()
    os.register_at_fork(before=lambda: forks.append(os.getpid()))
    s.execute(s.load_worker(model_path), c.SaveCheckpoint(path=tmp_path / "one"))
    assert forks == [], "a process forked beside the threads of gRPC may hang the save"
    assert set(psutil.Process().children(recursive=True)) <= before
