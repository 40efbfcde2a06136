"""`runs/NAME`: where a run keeps its things, and whether an unfinished one goes on."""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from trainer_svc.config import Config, to_toml
from trainer_svc.files import replace_text
from trainer_svc.types import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run on disk."""

    path: Path
    run_id: RunId
    resumed: bool  # an unfinished run of the same configuration was found

    @property
    def metrics(self) -> Path:
        """One JSON line a step."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """Written when the run is complete."""
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints by step; the file `latest` names the newest."""
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        """Pictures."""
        return self.path / "plots"

    @property
    def log(self) -> Path:
        """What the ranks print."""
        return self.path / "ranks.log"

    @property
    def weights(self) -> Path:
        """Hugging Face directories by weight version."""
        return self.path / "weights"

    def checkpoint(self, step: int) -> Path:
        """The checkpoint after a step."""
        return self.checkpoints / f"step-{step:06d}"

    def has_checkpoint(self) -> bool:
        """Whether there is one to go on from."""
        return (self.checkpoints / "latest").exists()


def open_folder(runs: Path, config: Config, *, fresh: bool) -> RunFolder:
    """Go on with an unfinished run of this name and configuration; else begin, and keep what was there as NAME.1, …"""
    path = runs.resolve() / config.run.name
    resolved, marker = to_toml(config), path / "run_id"
    if path.exists():
        same = marker.exists() and _text(path / "config.resolved.toml") == resolved
        if same and not fresh and not (path / "summary.json").exists():
            return RunFolder(path=path, run_id=RunId(marker.read_text().strip()), resumed=True)
        path.rename(_aside(path))
    path.mkdir(parents=True)
    run_id = RunId(f"{config.run.name}-{secrets.token_hex(2)}")
    replace_text(path / "config.resolved.toml", resolved)
    replace_text(marker, run_id + "\n")
    return RunFolder(path=path, run_id=run_id, resumed=False)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` directories; their names sort by age."""
    if not folder.exists():
        return
    entries = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    for entry in entries[: max(0, len(entries) - keep)]:
        shutil.rmtree(entry, ignore_errors=True)


def _aside(path: Path) -> Path:
    number = 1
    while (other := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    return other


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
