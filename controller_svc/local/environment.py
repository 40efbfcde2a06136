"""What an attempt's process is given: folders, environment, and the warm interpreter it is forked from. Pure."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller_svc.types import Command, Program, Rollout

MARKER = "WHIPPLETREE_WORKDIR"
"""Names the attempt's folder in the environment of its processes, and the work root in that of fork servers."""
PLACEHOLDER_KEY = "whippletree"
"""Stands where a token would, without identity: clients refuse to start without a key."""
START_PREFIXES = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_")
"""Variables that the interpreter or a library reads when it starts: a fork's server must have had them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """The files of one attempt."""

    root: Path

    @property
    def work(self) -> Path:
        """Working directory and HOME."""
        return self.root / "work"

    @property
    def temporary(self) -> Path:
        """TMPDIR."""
        return self.root / "tmp"

    @property
    def input(self) -> Path:
        """WHIPPLETREE_INPUT."""
        return self.root / "input.json"

    @property
    def stdout(self) -> Path:
        """Standard output."""
        return self.root / "stdout"

    @property
    def stderr(self) -> Path:
        """Standard error."""
        return self.root / "stderr"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKey:
    """Attempts with equal keys may be forked from one warm interpreter."""

    preload: tuple[str, ...] = ()
    folder: str = ""
    """First entry of sys.path: the program's own folder; empty for commands."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that matter at the start, sorted."""


def attempt_folders(work_root: Path, rollout: Rollout, number: int) -> Folders:
    """Folders of this attempt under the work root; rollout ids hold no dot, so that names never collide."""
    return Folders(root=work_root / "attempts" / f"{rollout.id}.{number}")


def server_key(task: Command | Program, operator: Mapping[str, str]) -> ServerKey:
    """The key of the server for this task. `operator`: the variables that the operator adds to all attempts."""
    if isinstance(task, Command):
        return ServerKey()
    merged = {**operator, **task.environment}
    start = tuple(sorted((name, value) for name, value in merged.items() if name.startswith(START_PREFIXES)))
    return ServerKey(preload=task.preload, folder=os.path.dirname(os.path.realpath(task.path)), environment=start)  # noqa: PTH120


def server_environment(key: ServerKey, path: str, work_root: Path) -> dict[str, str]:
    """Environment of a warm interpreter."""
    base = {"PATH": path, "HOME": str(work_root), "LANG": "C.UTF-8", MARKER: str(work_root)}
    return {**base, **dict(key.environment)}


def attempt_environment(
    rollout: Rollout, number: int, *, folders: Folders, api: str, token: str, path: str, operator: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of an attempt. Later groups win: base, endpoints, operator, rollout, identity.

    The token is the attempt's own and the only secret in it.
    """
    assert rollout.task is not None
    key = token or PLACEHOLDER_KEY
    proxy = f"{api.rstrip('/')}/proxy/rollout/{rollout.id}/attempt/{number}/mode/{rollout.mode}"
    return {
        "PATH": path,
        "HOME": str(folders.work),
        "TMPDIR": str(folders.temporary),
        "LANG": "C.UTF-8",
        "OPENAI_BASE_URL": f"{proxy}/openai/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": f"{proxy}/anthropic",
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_AUTH_TOKEN": key,
        **operator,
        **rollout.task.environment,
        "WHIPPLETREE_ROLLOUT": rollout.id,
        "WHIPPLETREE_ATTEMPT": str(number),
        "WHIPPLETREE_INPUT": str(folders.input),
        "WHIPPLETREE_TOKEN": key,
        "WHIPPLETREE_API": api.rstrip("/"),
        MARKER: str(folders.root),
    }
