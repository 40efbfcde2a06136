"""The cheapest HTTP client there can be: one request at a time over one kept connection. For measurements alone."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

HEAD = b"POST %s HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"


class Request(NamedTuple):
    """What is posted."""

    path: bytes
    body: bytes
    token: bytes = b""
    """The attempt's, as its agent sends it; empty = none."""

    def head(self) -> bytes:
        """What goes before the body."""
        key = b"authorization: Bearer %s\r\n" % self.token if self.token else b""
        return HEAD % (self.path, key, len(self.body))


class Connection(asyncio.Protocol):
    """One connection. Invariant: one request is under way at most."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.buffer = cast("asyncio.Transport", transport), bytearray()
        self.answer: asyncio.Future[bytes] | None = None

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.answer is not None and not self.answer.done() and is_whole(self.buffer):
            self.answer.set_result(bytes(self.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionError("the connection was closed before the answer was whole"))

    async def post(self, request: Request) -> bytes:
        """The whole answer, head and framing included. RuntimeError where its status is not 200."""
        self.buffer.clear()
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request.head())
        self.transport.write(request.body)
        answer = await self.answer
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(answer[:600].decode(errors="replace"))
        return answer


def is_whole(buffer: bytearray) -> bool:
    """Whether one answer has arrived in full. JSON never holds the line ends that end a chunked body."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return False
    _, found, rest = bytes(buffer[:end]).lower().partition(b"content-length:")
    if found:
        return len(buffer) >= end + 4 + int(rest.split(b"\r\n", 1)[0])
    return buffer.endswith(b"\r\n0\r\n\r\n")


async def connect(address: str) -> Connection:
    """A connection to `host:port`."""
    host, _, port = address.rpartition(":")
    _, made = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
    return made


Requests = Iterator[Request]
"""One after another: the calls of one agent."""


@dataclass(slots=True, kw_only=True)
class Load:
    """Agents that each make one call after another, until the time is up or `begin` gives no further one."""

    address: str
    begin: Callable[[], Requests | None]
    """The next agent's calls."""
    clients: int
    """Agents at once."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of every call that ended in time."""
    seconds: float = 0.0
    """How long it really took."""

    async def run(self, seconds: float) -> None:
        """Make calls for so long; those under way then are waited for and counted."""
        started = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.clients):
                tasks.create_task(self._client(started + seconds))
        self.seconds = time.perf_counter() - started

    async def _client(self, until: float) -> None:
        connection = await connect(self.address)
        try:
            while (requests := self.begin()) is not None:
                for request in requests:
                    begin = time.perf_counter()
                    if begin >= until:
                        return
                    await connection.post(request)
                    self.latencies.append(time.perf_counter() - begin)
        finally:
            connection.transport.close()
