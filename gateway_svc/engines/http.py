"""The HTTP/1.1 client of the engines: kept connections, one request at a time on each, and nothing that engines do not
need. It costs a fifth of a general client's processor time, which every call pays.

In: method, address, path, body. Out: status and whole body, or HttpError. Cancelling a request, or its deadline, closes
its connection, by which an engine knows that nobody waits. Nothing is ever sent twice: a kept connection is looked at
before it is used, and one that the engine has closed is replaced before anything of the request has left.

No redirects, cookies, proxies or compression: the engine's address is the operator's word. A name is resolved here, and
what it leads to is connected to only where that is allowed, so that who answers for the name decides nothing more.
"""

import asyncio
import contextlib
import re
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from gateway_svc.engines.http_answer import BODY_LIMIT, HttpError
from gateway_svc.engines.http_connection import Connection
from whippletree.tracing import outgoing

KEPT = 4.0
"""Seconds for which an unused connection is kept: uvicorn, under both engines, closes after 5."""
CONNECTING = 5.0
"""Seconds for making a connection."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port -> numeric addresses. OSError; UnicodeError where the host can be no name, as `a..b`."""
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


async def resolved(host: str, port: int) -> Sequence[str]:
    """As this machine resolves it. OSError, UnicodeError."""
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]  # without a thread
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Client:
    """For one event loop; closed by `close`. Connections are not limited: holding back is others' business.

    `reachable` says of a numeric address and a port whether it may be connected to.
    """

    def __init__(
        self,
        reachable: Callable[[str, int], bool],
        *,
        resolve: Resolve = resolved,
        tls: ssl.SSLContext | None = None,
        body_limit: int = BODY_LIMIT,
        kept: float = KEPT,
    ) -> None:
        self._reachable, self._resolve = reachable, resolve
        self._tls, self._body_limit, self._kept_for = tls or ssl.create_default_context(), body_limit, kept
        self._kept: defaultdict[Origin, deque[Connection]] = defaultdict(deque)
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

    async def _connect(self, to: Origin) -> Connection:
        try:
            async with asyncio.timeout(CONNECTING):
                return await self._first(to, await self._resolve(to.host, to.port))
        except TimeoutError as error:
            raise HttpError(f"not connected within {CONNECTING:g} s") from error
        except (OSError, UnicodeError) as error:  # TLS errors too
            raise HttpError(f"not connected ({type(error).__name__})") from error

    async def _first(self, to: Origin, addresses: Sequence[str]) -> Connection:
        """A connection to the first address that takes one, of those that are allowed. HttpError, OSError."""
        usable = [address for address in addresses if self._reachable(address, to.port)]
        if not usable:
            found = ", ".join(addresses) or "nothing"
            raise HttpError(f"{to.host} leads to {found}, which the setting engine.allowed does not allow")
        *others, last = usable
        for address in others:
            with contextlib.suppress(OSError):
                return await self._connection(to, address)
        return await self._connection(to, last)

    async def _connection(self, to: Origin, address: str) -> Connection:
        """Raises OSError."""
        tls, name = (self._tls, to.host) if to.tls else (None, None)
        _, made = await asyncio.get_running_loop().create_connection(
            Connection, address, to.port, ssl=tls, server_hostname=name
        )
        return made

    def _take(self, to: Origin) -> Connection | None:
        """The connection that was used last, so that others can grow old; None = there is none that lives."""
        connections = self._kept[to]
        while connections:
            connection = connections.pop()
            if self._clock() - connection.since < self._kept_for and connection.quiet():
                return connection
            connection.transport.abort()
        return None

    def _keep(self, to: Origin, connection: Connection) -> None:
        connection.since = self._clock()
        connections = self._kept[to]
        connections.append(connection)
        while connections and connection.since - connections[0].since >= self._kept_for:
            connections.popleft().transport.abort()


def _traced() -> str:
    """Header lines that name the trace and the HTTP request that this one is made for."""
    return "".join(f"{name}: {value}\r\n" for name, value in outgoing())
