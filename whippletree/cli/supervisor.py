"""Starts the parts, waits until each is ready, starts again what dies, and stops all in reverse order.

In: `Part`s. Out: running processes, each with a log file and a keeper that leaves nothing behind (`keeper.py`), and
lines for people through `report`. Decisions are elsewhere: when to start again in `restart.py`, what in `plan.py`.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from whippletree import keeper, tasks
from whippletree.cli import health, ports, restart
from whippletree.cli.parts import Part, keep_previous, log_path, tail

Report = Callable[[str, str], None]
"""(name of the part, what happened)."""


class PartError(Exception):
    """A part cannot start, died while starting, or dies again and again; the message is for people."""


class PortTakenError(PartError):
    """Another program listens where a part would; the message names the setting."""


@dataclass(slots=True, kw_only=True)
class Running:
    """One part and its present process."""

    part: Part
    process: Process
    """The keeper; its exit code is the part's."""
    pid: int
    """The part itself."""
    started: float
    lifetimes: list[float] = field(default_factory=list)
    stopping: bool = False


class Supervisor:
    """Owns the processes. Use as an asynchronous context: leaving it stops everything, whatever happened inside."""

    def __init__(
        self,
        run_dir: Path,
        report: Report,
        *,
        policy: restart.RestartPolicy | None = None,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._report = report
        self._policy = policy or restart.RestartPolicy()
        self._on_change = on_change
        self._clock = clock
        self._running: list[Running] = []
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._after_restart: dict[str, Callable[[], Awaitable[None]]] = {}
        self._failed: asyncio.Future[None] | None = None

    async def __aenter__(self) -> "Supervisor":
        self._failed = asyncio.get_running_loop().create_future()
        log_path(self._run_dir, "any").parent.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())

    @property
    def pids(self) -> dict[str, int]:
        """Process id of every part that runs."""
        return {running.part.name: running.pid for running in self._running}

    async def start(self, parts: Sequence[Part]) -> None:
        """Start `parts` together and wait until all are ready. PartError names the part and says why."""
        for part in parts:
            if not ports.is_free(part.port):
                raise PortTakenError(f"{part.name}: port {part.port} is taken; choose another with {part.port_setting}")
        started = []
        for part in parts:
            keep_previous(log_path(self._run_dir, part.name))
            started.append(await self._spawn(part))
            self._running.append(started[-1])
        self._on_change()
        waits = [asyncio.create_task(self._first_start(running)) for running in started]
        try:
            for wait in asyncio.as_completed(waits):
                if (error := await wait) is not None:
                    raise error
        finally:
            for task in waits:
                task.cancel()
        for running in started:
            self._watchers[running.part.name] = asyncio.create_task(self._watch(running))

    def after_restart(self, name: str, action: Callable[[], Awaitable[None]]) -> None:
        """Await `action` each time the part `name` has been started again and is ready."""
        self._after_restart[name] = action

    async def failed(self) -> None:
        """Wait for the moment when a part is given up; raises PartError then."""
        assert self._failed is not None
        await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """Stop every part, the last started first."""
        for running in self._running:
            running.stopping = True
        await tasks.end(*self._watchers.values())
        while self._running:
            running = self._running.pop()
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()
            await running.process.wait()
            self._report(running.part.name, "stopped")

    async def _spawn(self, part: Part) -> Running:
        with log_path(self._run_dir, part.name).open("ab") as log:
            process, pid = await spawn(part.command, part.environment, grace=part.grace, stderr=log)
        return Running(part=part, process=process, pid=pid, started=self._clock())

    async def _first_start(self, running: Running) -> PartError | None:
        self._report(running.part.name, "starting")
        error = await self._until_ready(running)
        if error is None:
            self._report(running.part.name, f"ready at {running.part.address} ({self._age(running):.1f} s)")
        return error

    async def _until_ready(self, running: Running) -> PartError | None:
        """None when it is ready; the error where it ended or took longer than its patience."""
        part, pause = running.part, 0.05
        while running.process.returncode is None:
            if await health.is_ready(part.ready):
                return None
            if self._age(running) > part.patience:
                return self._error(running, f"not ready after {part.patience:.0f} s")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
        return self._error(running, describe_exit(running.process.returncode))

    async def _watch(self, running: Running) -> None:
        """Start the part again each time it ends, until the policy gives up."""
        while True:
            code = await running.process.wait()
            if running.stopping:
                return
            running.lifetimes.append(self._age(running))
            decision = restart.decide(running.lifetimes, self._policy)
            if isinstance(decision, restart.GiveUp):
                error = self._error(running, f"{describe_exit(code)}, {decision.deaths} times in a row")
                self._report(running.part.name, "given up")
                if self._failed is not None and not self._failed.done():
                    self._failed.set_exception(error)
                return
            self._report(running.part.name, f"{describe_exit(code)}; starting again in {decision.delay:.1f} s")
            await asyncio.sleep(decision.delay)
            await self._again(running)

    async def _again(self, running: Running) -> None:
        fresh = await self._spawn(running.part)
        running.process, running.pid, running.started = fresh.process, fresh.pid, fresh.started
        self._on_change()
        error = await self._until_ready(running)
        if error is not None:  # it ended, which `_watch` sees next, or hangs: then it must end
            with contextlib.suppress(ProcessLookupError):
                running.process.terminate()
            return
        self._report(running.part.name, f"ready again at {running.part.address} ({self._age(running):.1f} s)")
        if (action := self._after_restart.get(running.part.name)) is not None:
            try:
                await action()
            except Exception as failure:
                self._report(running.part.name, f"after the restart: {failure}")

    def _age(self, running: Running) -> float:
        return self._clock() - running.started

    def _error(self, running: Running, what: str) -> PartError:
        path = log_path(self._run_dir, running.part.name)
        return PartError(f"{running.part.name}: {what}; the end of {path}:\n{tail(path) or '(empty)'}")


async def spawn(
    command: Sequence[str], environment: Mapping[str, str], *, grace: float, stderr: IO[bytes] | None
) -> tuple[Process, int]:
    """Start `command` under a keeper: (keeper, the command's process id). Its output goes to `stderr`, None = ours."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(grace), "--"),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=stderr,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        return process, int(await process.stdout.readline() or 0)
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise


async def run_job(command: Sequence[str], environment: Mapping[str, str], *, grace: float, log: Path | None) -> int:
    """Run `command` to its end: its exit code. Cancelled, it is stopped first. Output goes to `log`, None = ours."""
    with log.open("ab") if log is not None else contextlib.nullcontext() as file:
        process, _ = await spawn(command, environment, grace=grace, stderr=file)
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.shield(process.wait())


def describe_exit(code: int) -> str:
    """A keeper's exit code in words."""
    if code > 128 and (code - 128) in {int(number) for number in signal.Signals}:
        return f"ended by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"
