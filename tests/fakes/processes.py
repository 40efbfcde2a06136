"""Real processes for tests of the controller: programs to run, a runner to run them, and a look at who is left."""

import asyncio
import contextlib
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from controller_svc.local.leftovers import marked
from controller_svc.local.process import LocalRunner
from controller_svc.settings import LocalSettings
from controller_svc.types import Command, Exit, Program, Rollout, RolloutId, State

PATIENCE = 60.0
"""Seconds after which a test that waits has failed; nothing depends on less."""


def rollout(name: str, task: Command | Program | None, **changes: object) -> Rollout:
    """A running rollout, first attempt."""
    fields: dict[str, object] = {
        "id": RolloutId(name),
        "state": State.RUNNING,
        "attempt": 1,
        "revision": 2,
        "created": 0,
        "mode": "train",
        "task": task,
        "timeout": 0.0,
        "input": '{"question": "1 + 1"}',
    }
    return Rollout(**(fields | changes))  # type: ignore[arg-type]


def script(folder: Path, name: str, text: str) -> str:
    """Write a program; its path."""
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return str(path)


def program(path: str, *arguments: str, preload: tuple[str, ...] = (), **environment: str) -> Program:
    """A Python program for the fork server."""
    return Program(path=path, arguments=arguments, preload=preload, environment=environment)


def command(*arguments: str, **environment: str) -> Command:
    """A command."""
    return Command(arguments=arguments, environment=environment)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something outside this process; fails, saying `what`, when it does not come."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():  # other processes set no event of ours
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None


async def until_nobody(work_root: Path) -> None:
    """Wait until no process of this work root is left, fork servers included."""
    await until(lambda: not list(marked(work_root)), f"the end of {list(marked(work_root))}")


class Bench:
    """A runner with its exits."""

    def __init__(self, settings: LocalSettings) -> None:
        self.exits: dict[str, Exit] = {}
        self._changed = asyncio.Condition()
        self.runner = LocalRunner(settings, api="http://127.0.0.1:9", on_exit=self._exited)

    def _exited(self, name: RolloutId, number: int, end: Exit) -> None:
        assert name not in self.exits, "two ends of one attempt"
        self.exits[name] = end

    async def exit(self, name: str) -> Exit:
        """The end of an attempt."""
        await until(lambda: name in self.exits, f"the end of {name}")
        return self.exits[name]

    async def run(self, name: str, task: Command | Program) -> tuple[Exit, dict[str, str]]:
        """Launch, wait, collect the output."""
        end = await self.runner.launch(rollout(name, task), 1, "") or await self.exit(name)
        return end, dict(self.runner.output(RolloutId(name), 1))

    def output(self, name: str, stream: str = "stdout") -> str:
        """What an attempt has written so far."""
        return self.runner.output(RolloutId(name), 1).get(stream, "")


@contextlib.asynccontextmanager
async def bench(work_root: Path, **settings: object) -> AsyncIterator[Bench]:
    """A runner on its own work root; at its end nothing may be left."""
    made = Bench(LocalSettings(work_root=work_root, python=Path(sys.executable), **settings))  # type: ignore[arg-type]
    made.runner.open()
    try:
        yield made
    finally:
        await made.runner.close()
        assert not list(marked(work_root)), "processes were left behind"


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
