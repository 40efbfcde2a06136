"""Connections to PostgreSQL that never wait for ever: a server can stand still, a network can lose one in silence.

In: a URL. Out: connections that end when they are told to, whether the server answers or not. TCP's own limits
(`NETWORK`) notice a machine or a network that is gone. They do not notice a server process that stands still, whose
kernel answers for it, and a Unix socket has none; so an interrupted statement takes its connection with it here, and
the connections of a thread can be cut from outside.
"""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy import Engine, event

CANCELLING = 0.5
"""Seconds for the server to take the cancellation of a statement; without it a statement that waits for a lock goes on
there, although nobody is left to hear of it."""
NETWORK: dict[str, int] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 10_000,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""This side gives a connection up when the other machine has been silent for about 10 seconds."""
SILENCE = "-c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
"""The server gives a connection up, with its locks, after 30 seconds of silence."""

UNANSWERED = "no answer in time"
"""What logs say of a TimeoutError, which has no text of its own."""


class Dispensable(psycopg.AsyncConnection[TupleRow]):
    """A connection that a cancelled or timed out statement ends: psycopg would wait up to 10 seconds for the server."""

    async def cancel_safe(self, *, timeout: float = CANCELLING) -> None:  # noqa: ASYNC109  # as psycopg has it
        """Tell the server, if it listens, and close. psycopg calls this when the task that waits is cancelled."""
        try:
            await super().cancel_safe(timeout=min(timeout, CANCELLING))
        finally:
            self.pgconn.finish()


async def connected(url: str, name: str) -> Dispensable:
    """A connection in autocommit; `name` shows in the server's list."""
    kwargs: dict[str, Any] = {**NETWORK, "options": SILENCE, "application_name": name}
    return await Dispensable.connect(url, autocommit=True, **kwargs)


async def notices(connection: Dispensable, *, pause: float, patience: float) -> AsyncIterator[psycopg.Notify]:
    """What the server tells, without end. Asks it every `pause` seconds whether it is there, for one that is not tells
    nothing; an answer may take `patience` seconds. Raises psycopg.Error or TimeoutError where it is not."""
    while True:
        async for notice in connection.notifies(timeout=pause):
            yield notice
        async with asyncio.timeout(patience):
            await connection.execute("SELECT 1")


class Lines:
    """The connections of an engine, which threads use. Invariant: after `cut` none of them waits, and none is made."""

    def __init__(self, engine: Engine) -> None:
        self._lock, self._cut = threading.Lock(), False
        self._open: WeakSet[psycopg.Connection[Any]] = WeakSet()
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._connected)

    def cut(self) -> None:
        """Whoever waits for the server gets a broken connection instead, at once; for any thread."""
        with self._lock:
            self._cut, lines = True, list(self._open)
        for line in lines:
            _shut(line)

    def _connect(self, *_: object) -> None:
        if self._cut:
            raise psycopg.OperationalError("the store is closed")

    def _connected(self, line: "psycopg.Connection[Any]", _: object) -> None:
        with self._lock:
            self._open.add(line)
            late = self._cut
        if late:
            _shut(line)


def _shut(line: "psycopg.Connection[Any]") -> None:
    """End the socket under a connection, which the thread that waits on it sees as the server's end."""
    try:
        with socket.socket(fileno=os.dup(line.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    except (psycopg.Error, OSError):
        pass  # it has ended by itself
