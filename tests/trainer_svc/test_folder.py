"""A run's folder: begun, gone on with, or kept aside."""

from pathlib import Path

from trainer_svc.config import Config
from trainer_svc.folder import open_folder, prune


def config(steps: int = 4) -> Config:
    """A configuration of a run named demo."""
    return Config.model_validate(
        {
            "run": {"name": "demo"},
            "model": {"path": "/m"},
            "data": {"train": "/t"},
            "agent": {"command": ["true"]},
            "rl": {"steps": steps},
        }
    )


def test_an_unfinished_run_of_the_same_configuration_goes_on(tmp_path: Path) -> None:
    first = open_folder(tmp_path, config(), fresh=False)
    second = open_folder(tmp_path, config(), fresh=False)
    assert (first.resumed, second.resumed) == (False, True)
    assert first.run_id == second.run_id
    assert first.run_id.startswith("demo-")


def test_other_runs_of_the_name_are_kept_aside(tmp_path: Path) -> None:
    first = open_folder(tmp_path, config(), fresh=False)
    second = open_folder(tmp_path, config(steps=5), fresh=False)  # another configuration
    second.summary.write_text("{}")
    third = open_folder(tmp_path, config(steps=5), fresh=False)  # the last one is complete
    fourth = open_folder(tmp_path, config(steps=5), fresh=True)  # asked to begin anew
    assert len({first.run_id, second.run_id, third.run_id, fourth.run_id}) == 4
    kept = [(tmp_path / f"demo.{number}" / "run_id").read_text().strip() for number in (1, 2, 3)]
    assert kept == [first.run_id, second.run_id, third.run_id]
    assert not fourth.resumed


def test_only_the_newest_directories_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"step-{number}").mkdir()
    (tmp_path / "latest").write_text("step-4")
    (tmp_path / ".step-5.tmp").mkdir()
    prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".step-5.tmp", "latest", "step-3", "step-4"]
    prune(tmp_path / "absent", 2)
