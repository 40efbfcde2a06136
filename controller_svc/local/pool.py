"""The fork servers of one controller: one per key, started when first asked for, replaced when it died."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from controller_svc.local.environment import ServerKey, server_environment
from controller_svc.local.forkserver import ForkServer, RefusedError
from controller_svc.types import Exit
from whippletree import tasks

log = logging.getLogger(__name__)

REFUSAL_TIME = 10.0
"""Seconds before a preload that failed is tried again."""


class Pool:
    """Fork servers by key. `limit`: servers kept at once; busy ones are never ended for it."""

    def __init__(
        self,
        *,
        python: Path,
        path: str,
        work_root: Path,
        limit: int,
        timeout: float,
        on_exit: Callable[[str, Exit], None],
        on_lost: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._python, self._path, self._work_root = python, path, work_root
        self._limit, self._timeout = limit, timeout
        self._on_exit, self._on_lost = on_exit, on_lost
        self._servers: dict[ServerKey, ForkServer] = {}
        self._starts: dict[ServerKey, asyncio.Task[None]] = {}
        self._refused: dict[ServerKey, tuple[float, RefusedError]] = {}
        self._numbers = itertools.count(1)

    async def get(self, key: ServerKey) -> ForkServer:
        """The server of this key, ready. Raises ServerLostError, RefusedError."""
        now = asyncio.get_running_loop().time()
        refused_at, refusal = self._refused.get(key, (0.0, None))
        if refusal is not None and now < refused_at + REFUSAL_TIME:
            raise refusal
        server = self._servers.get(key)
        if server is None or server.dead:
            await self._make_room()
            server = self._servers.get(key)
        if server is None or server.dead:
            server = self._servers[key] = self._new(key)
            self._starts[key] = asyncio.create_task(self._start(server))
        server.used = now
        await asyncio.shield(self._starts[key])
        return server

    def signal(self, key: str, number: int) -> None:
        """Signal the process group of this attempt, wherever it runs."""
        for server in self._servers.values():
            server.signal(key, number)

    async def close(self) -> None:
        """End every server and what it forked."""
        await tasks.end(*self._starts.values())
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    def _new(self, key: ServerKey) -> ForkServer:
        log_file = self._work_root / "servers" / f"{next(self._numbers)}.log"
        return ForkServer(key, log_file=log_file, on_exit=self._on_exit, on_lost=self._on_lost)

    async def _start(self, server: ForkServer) -> None:
        try:
            environment = server_environment(server.key, self._path, self._work_root)
            await server.start(self._python, environment, self._work_root, self._timeout)
        except RefusedError as refusal:
            self._refused[server.key] = (asyncio.get_running_loop().time(), refusal)
            raise

    async def _make_room(self) -> None:
        """End idle servers, the one unused for longest first, until there is room for one more."""
        idle = sorted((server for server in self._servers.values() if not server.busy), key=lambda server: server.used)
        for server in idle:
            unneeded = server.dead or (len(self._servers) >= self._limit and self._starts[server.key].done())
            if unneeded and self._servers.get(server.key) is server:  # another task may have been here meanwhile
                del self._servers[server.key], self._starts[server.key]
                await server.close()
