"""A TCP wire between two parts that a test can cut or stop: what comes back is lost after so many bytes, or waits, or
connections vanish: nothing comes through any more, not even their end.

In: the address behind it, or the path of a Unix socket. Out: `address` to give to whoever calls. Example::

    async with Wire("127.0.0.1:8080") as wire:
        wire.cut_after = 100  # the next answer ends, by a reset, after 100 bytes
"""

import asyncio
from typing import Self

CHUNK = 65_536


class Wire:
    """One listening port of the loopback. `cut_after` counts from the start of a connection and holds for one cut."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.cut_after: int | None = None
        self.cuts = 0
        self.open = asyncio.Event()
        """Answers pass while it is set."""
        self.open.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self.swallow()
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def swallow(self) -> None:
        """Let nothing through on the connections that there are; new ones work."""
        self._passing.clear()
        self._passing = asyncio.Event()
        self._passing.set()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._pass(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both directions, until one side ends or the wire is cut; then both sides are reset."""
        try:
            answers, behind = await self._open()
        except OSError:
            writer.transport.abort()
            return
        passing = self._passing
        there = asyncio.create_task(self._forward(reader, behind, passing))
        back = asyncio.create_task(self._back(answers, writer, passing))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            writer.transport.abort()
            behind.transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._behind.startswith("/"):
            return await asyncio.open_unix_connection(self._behind)
        host, _, port = self._behind.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event
    ) -> None:
        while data := await _read(reader, passing):
            writer.write(data)
            await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        passed = 0
        while data := await _read(reader, passing):
            await self.open.wait()
            if self.cut_after is not None and passed + len(data) > self.cut_after:
                writer.write(data[: self.cut_after - passed])
                await writer.drain()
                self.cut_after = None
                self.cuts += 1
                return
            writer.write(data)
            await writer.drain()
            passed += len(data)


async def _read(reader: asyncio.StreamReader, passing: asyncio.Event) -> bytes:
    """What came, empty at the end; without end on a connection that has vanished."""
    data = await reader.read(CHUNK)
    await passing.wait()
    return data
