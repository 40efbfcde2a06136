"""The HTTP/1.1 client of the engines: kept connections, one request at a time on each, and nothing that engines do not
need. It costs a fifth of a general client's processor time, which every call pays.

In: method, address, path, body. Out: status and whole body, or HttpError. Cancelling a request, or its deadline, closes
its connection, by which an engine knows that nobody waits. Nothing is ever sent twice: a kept connection is looked at
before it is used, and one that the engine has closed is replaced before anything of the request has left.

No redirects, cookies, proxies or compression: the engine's address is the operator's word.
"""

import asyncio
import re
import select
import socket
import ssl
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

from gateway_svc.engines.http_answer import BODY_LIMIT, Answer, HttpError
from whippletree.tracing import outgoing

KEPT = 4.0
"""Seconds for which an unused connection is kept: uvicorn, under both engines, closes after 5."""
CONNECTING = 5.0
"""Seconds for making a connection."""
_PROBES = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A host that vanishes during a generation is noticed after a minute."""
_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a base URL leads. `path` precedes every request's path."""

    host: str
    port: int
    tls: bool
    path: str
    authority: str


@lru_cache(maxsize=4096)
def origin(address: str) -> Origin:
    """Base URL -> origin. Raises HttpError."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise HttpError(f"{address!r} is no URL") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or not _VISIBLE.fullmatch(address):
        raise HttpError(f"{address!r} is no http or https URL")
    tls = parts.scheme == "https"
    return Origin(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        path=parts.path.rstrip("/"),
        authority=parts.netloc.rpartition("@")[2],
    )


class Client:
    """For one event loop; closed by `close`. Connections are not limited: holding back is others' business."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, body_limit: int = BODY_LIMIT, kept: float = KEPT) -> None:
        self._tls, self._body_limit, self._kept_for = tls or ssl.create_default_context(), body_limit, kept
        self._kept: defaultdict[Origin, deque[_Connection]] = defaultdict(deque)
        self._clock = asyncio.get_running_loop().time

    async def request(self, method: str, address: str, path: str, body: bytes, *, seconds: float) -> Reply:
        """Send, and wait for the whole answer, `seconds` at most. `path` begins with `/`. Raises HttpError."""
        to = origin(address)
        head = (
            f"{method} {to.path}{path} HTTP/1.1\r\nhost: {to.authority}\r\naccept-encoding: identity\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"{_traced()}\r\n"
        )
        try:
            async with asyncio.timeout(seconds):
                connection = self._take(to) or await self._connect(to)
                answer = await connection.exchange(b"".join((head.encode(), body)), self._body_limit)
        except TimeoutError as error:
            raise HttpError(f"no answer within {seconds:g} s") from error
        if answer.kept:
            self._keep(to, connection)
        else:
            connection.transport.abort()
        assert answer.body is not None
        return Reply(status=answer.status, body=answer.body)

    def close(self) -> None:
        """Close what is kept. Requests under way end by their own callers' cancellation."""
        for connections in self._kept.values():
            for connection in connections:
                connection.transport.abort()
        self._kept.clear()

    async def _connect(self, to: Origin) -> "_Connection":
        tls = self._tls if to.tls else None
        try:
            async with asyncio.timeout(CONNECTING):
                _, made = await asyncio.get_running_loop().create_connection(_Connection, to.host, to.port, ssl=tls)
        except TimeoutError as error:
            raise HttpError(f"not connected within {CONNECTING:g} s") from error
        except OSError as error:  # TLS errors too
            raise HttpError(f"not connected ({type(error).__name__})") from error
        return made

    def _take(self, to: Origin) -> "_Connection | None":
        """The connection that was used last, so that others can grow old; None = there is none that lives."""
        connections = self._kept[to]
        while connections:
            connection = connections.pop()
            if self._clock() - connection.since < self._kept_for and connection.quiet():
                return connection
            connection.transport.abort()
        return None

    def _keep(self, to: Origin, connection: "_Connection") -> None:
        connection.since = self._clock()
        connections = self._kept[to]
        connections.append(connection)
        while connections and connection.since - connections[0].since >= self._kept_for:
            connections.popleft().transport.abort()


def _traced() -> str:
    """Header lines that name the trace and the HTTP request that this one is made for."""
    return "".join(f"{name}: {value}\r\n" for name, value in outgoing())


class _Connection(asyncio.Protocol):
    """One connection. `since` = when it was last used."""

    transport: asyncio.Transport
    since = 0.0
    _answer: Answer | None = None
    _done: "asyncio.Future[Answer]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of no such class
        sock = transport.get_extra_info("socket")
        self._descriptor: int = sock.fileno()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def quiet(self) -> bool:
        """Whether it is open and nothing came unasked; an end of the stream, too, is something to read."""
        if self.transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    async def exchange(self, data: bytes, body_limit: int) -> Answer:
        """Send one request, wait for its answer. Whatever ends the wait before closes the connection."""
        self._answer, self._done = Answer(body_limit), asyncio.get_running_loop().create_future()
        try:
            self.transport.write(data)
            return await self._done
        except BaseException:
            self.transport.abort()
            raise
        finally:
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if (answer := self._answer) is None or self._done.done():
            self.transport.abort()  # nobody asked
            return
        try:
            answer.feed(data)
        except HttpError as error:
            self._done.set_exception(error)
        else:
            if answer.body is not None:
                self._done.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if (answer := self._answer) is None or self._done.done():
            return
        try:
            if error is not None:
                raise HttpError(f"the connection broke ({type(error).__name__})")
            answer.end()
        except HttpError as problem:
            self._done.set_exception(problem)
        else:
            self._done.set_result(answer)
