"""Attempts as processes: folders in, a process group per attempt, exits and output out.

In: a rollout and its attempt number. Out: `on_exit(rollout, number, exit)`, once for every attempt launched. Order:
`open`, then per attempt `launch`, `signal` as often as needed, the exit, `output`, `remove`; at last `close`.
"""

import asyncio
import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controller_svc.local.environment import Folders, attempt_environment, attempt_folders, server_key
from controller_svc.local.forkserver import RefusedError, ServerLostError
from controller_svc.local.leftovers import kill_marked
from controller_svc.local.pool import Pool
from controller_svc.settings import LocalSettings
from controller_svc.types import Command, Exit, Rollout, RolloutId


class WorkRootTakenError(Exception):
    """Another controller works there."""


class LocalRunner:
    """Runs attempts on this machine. One per work root, which its lock makes sure of."""

    def __init__(self, settings: LocalSettings, *, api: str, on_exit: Callable[[RolloutId, int, Exit], None]) -> None:
        self._settings, self._api = settings, api
        self._root = settings.work_root.absolute()
        self._on_exit = on_exit
        self._lock = -1
        self._attempts: dict[str, Folders] = {}
        self._pool = Pool(
            python=settings.python,
            path=settings.path,
            work_root=self._root,
            limit=settings.fork_servers,
            timeout=settings.preload_timeout,
            on_exit=self._exited,
            on_lost=self._lost,
        )

    def open(self) -> str:
        """Take the work root, kill what an earlier life left running there, and return its worker's name.

        Raises WorkRootTakenError where another controller holds it.
        """
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkRootTakenError(f"another controller works in {self._root}") from error
        kill_marked(self._root)
        if self._settings.keep == "none":
            shutil.rmtree(self._root / "attempts", ignore_errors=True)
        for folder in ("attempts", "servers"):
            (self._root / folder).mkdir(exist_ok=True)
        return _remembered_name(self._root / "worker")

    async def launch(self, rollout: Rollout, number: int, token: str) -> Exit | None:
        """Start the process of an attempt with its token; an exit where that failed, and why."""
        assert rollout.task is not None
        key, folders = _key(rollout.id, number), attempt_folders(self._root, rollout, number)
        self._attempts[key] = folders
        _prepare(folders, rollout.input)
        try:
            server = await self._pool.get(server_key(rollout.task, self._settings.environment))
            await server.launch(key, self._task(rollout, number, folders, token))
        except RefusedError as refusal:
            return Exit(refused=str(refusal))
        except ServerLostError as loss:
            return Exit(lost=str(loss))
        return None

    def signal(self, rollout: RolloutId, number: int, signal_number: int) -> None:
        """Signal the whole process group; nothing where it has ended."""
        self._pool.signal(_key(rollout, number), signal_number)

    def output(self, rollout: RolloutId, number: int) -> Mapping[str, str]:
        """`stdout` and `stderr` of an attempt, each the last `output_tail` bytes; empty ones are left out."""
        folders = self._attempts.get(_key(rollout, number))
        if folders is None:
            return {}
        size = self._settings.output_tail
        tails = {"stdout": read_tail(folders.stdout, size), "stderr": read_tail(folders.stderr, size)}
        return {name: text for name, text in tails.items() if text}

    async def remove(self, rollout: RolloutId, number: int, *, failed: bool) -> None:
        """Forget an attempt that has ended, and its folder unless the settings keep it."""
        folders = self._attempts.pop(_key(rollout, number), None)
        keep = self._settings.keep
        if folders is not None and keep != "all" and not (failed and keep == "failed"):
            await asyncio.to_thread(shutil.rmtree, folders.root, ignore_errors=True)

    async def close(self) -> None:
        """End every process and give the work root back."""
        await self._pool.close()
        if self._lock >= 0:
            kill_marked(self._root)
            os.close(self._lock)
            self._lock = -1

    def _task(self, rollout: Rollout, number: int, folders: Folders, token: str) -> dict[str, Any]:
        """What `warm.py` is told."""
        assert rollout.task is not None
        environment = attempt_environment(
            rollout,
            number,
            folders=folders,
            api=self._api,
            token=token,
            path=self._settings.path,
            operator=self._settings.environment,
        )
        common = {
            "folder": str(folders.work),
            "stdout": str(folders.stdout),
            "stderr": str(folders.stderr),
            "environment": environment,
        }
        if isinstance(rollout.task, Command):
            return {**common, "command": rollout.task.arguments}
        return {**common, "program": rollout.task.path, "arguments": rollout.task.arguments}

    def _exited(self, key: str, end: Exit) -> None:
        rollout, _, number = key.rpartition(".")
        self._on_exit(RolloutId(rollout), int(number), end)

    def _lost(self, pids: Mapping[str, int]) -> None:
        """A fork server died: its forks die with it, what they started has to be looked for."""
        kill_marked(self._root, groups=frozenset(pids.values()))
        for key in pids:
            if (folders := self._attempts.get(key)) is not None:
                kill_marked(folders.root)


def _key(rollout: RolloutId, number: int) -> str:
    return f"{rollout}.{number}"


def _prepare(folders: Folders, text: str) -> None:
    """Make the folders anew; another life may have left some of the same name."""
    if folders.root.exists():
        shutil.rmtree(folders.root)
    for folder in (folders.root, folders.work, folders.temporary):
        folder.mkdir(mode=0o700)
    folders.input.write_text(text, encoding="utf-8")


def read_tail(path: Path, size: int) -> str:
    """The last `size` bytes as text, from a line's start where something was cut off; empty where there is no file."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - size))
            data = file.read(size)
    except FileNotFoundError:
        return ""
    if length > size:
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def _remembered_name(path: Path) -> str:
    """The worker's name in this file, made up once."""
    if not path.exists():
        path.write_text(f"{socket.gethostname()}-{secrets.token_hex(4)}")
    return path.read_text().strip()
