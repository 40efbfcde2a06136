"""The controller's side of fork servers: start one by exec, speak to it over a socket pair, notice its death.

A fork server (`warm.py`) is a separate interpreter, so that no channel, thread or lock of the controller is forked.
It ends itself and everything it forked as soon as the controller's end of the socket is closed, in whatever way.
Order of its messages: `started` before `exited` for every key.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controller_svc.local.environment import ServerKey
from controller_svc.types import Exit

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("warm.py")


class ServerLostError(Exception):
    """The fork server died, or never came up."""


class RefusedError(Exception):
    """The modules to preload cannot be imported or must not be forked."""


class ForkServer:
    """One warm interpreter. When it dies, `on_lost` hears what ran (key -> process id), then each is an exit, lost."""

    def __init__(
        self,
        key: ServerKey,
        *,
        log_file: Path,
        on_exit: Callable[[str, Exit], None],
        on_lost: Callable[[Mapping[str, int]], None],
    ) -> None:
        self.key = key
        self.pids: dict[str, int] = {}
        """Attempts under way: process id, also id of its group and session."""
        self.used = 0.0
        """When it was last asked to fork; the owner's clock."""
        self._log_file = log_file
        self._on_exit = on_exit
        self._on_lost = on_lost
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._reader_task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether it has attempts, running or on the way."""
        return bool(self.pids or self._starting)

    @property
    def dead(self) -> bool:
        """Whether it can take no more."""
        return self._reader_task is not None and self._reader_task.done()

    async def start(self, python: Path, environment: Mapping[str, str], folder: Path, patience: float) -> None:
        """Start the interpreter and wait until it has imported what it should. Raises ServerLostError, RefusedError."""
        ours, theirs = socket.socketpair()
        try:
            with self._log_file.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    str(python),
                    str(PROGRAM),
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    cwd=folder,
                    env=dict(environment),
                )
        except BaseException as error:
            ours.close()
            if isinstance(error, OSError):
                raise ServerLostError(f"cannot start {python}: {error.strerror}") from error
            raise
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._reader_task = asyncio.create_task(self._read(reader))
        self._send({"preload": self.key.preload, "folder": self.key.folder})
        try:
            async with asyncio.timeout(patience):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            await self.close()
            raise ServerLostError(f"fork server was not ready within {patience:g} s") from error

    async def launch(self, key: str, task: Mapping[str, Any]) -> int:
        """Fork one attempt; returns its process id. Raises ServerLostError."""
        if self.dead:
            raise ServerLostError("fork server died")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._starting[key] = future
        self._send({"start": {"key": key, **task}})
        return await future

    def signal(self, key: str, number: int) -> None:
        """Signal the attempt's process group; nothing where it has ended."""
        if key in self.pids and not self.dead:
            self._send({"signal": {"key": key, "number": number}})

    async def close(self) -> None:
        """End the server and everything it forked; returns when both are gone."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            if not self._ready.done() and self._process.returncode is None:
                self._process.kill()  # it is importing, does not read its socket and has no children
            try:
                async with asyncio.timeout(10):
                    await self._process.wait()
            except TimeoutError:
                log.warning("fork server %d does not end; killing it", self._process.pid)
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._reader_task is not None:
            await asyncio.wait([self._reader_task])

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._writer is not None, "used before start"
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Every message until the server is gone; then nobody waits for it any more."""
        try:
            while line := await reader.readline():
                self._hear(json.loads(line))
        except (OSError, ValueError):
            log.warning("fork server spoke nonsense or broke off", exc_info=True)
        finally:
            self._bury()

    def _hear(self, message: Mapping[str, Any]) -> None:
        if started := message.get("started"):
            self.pids[started["key"]] = started["pid"]
            if (future := self._starting.pop(started["key"], None)) and not future.done():
                future.set_result(started["pid"])
        elif failed := message.get("failed"):
            if (future := self._starting.pop(failed["key"], None)) and not future.done():
                future.set_exception(ServerLostError(failed["reason"]))
        elif exited := message.get("exited"):
            self.pids.pop(exited["key"], None)
            code = os.waitstatus_to_exitcode(exited["status"])
            self._on_exit(exited["key"], Exit(code=code, cpu=exited["cpu"]))
        elif "refused" in message:
            self._ready.set_exception(RefusedError(message["refused"]))
        elif not self._ready.done():
            self._ready.set_result(None)

    def _bury(self) -> None:
        reason = "fork server died"
        if not self._ready.done():
            self._ready.set_exception(ServerLostError(f"{reason} while it imported {', '.join(self.key.preload)}"))
        self._ready.exception()  # retrieved, also where nobody waits
        for future in self._starting.values():
            if not future.done():
                future.set_exception(ServerLostError(reason))
        self._starting.clear()
        lost, self.pids = self.pids, {}
        if lost:
            self._on_lost(lost)
        for key in lost:
            self._on_exit(key, Exit(lost=reason))
