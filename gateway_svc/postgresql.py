"""The store's database on PostgreSQL, for several gateway replicas. Needs psycopg 3 (the extra `postgresql`).

One writer at a time over all replicas: a writing transaction first locks the one row of `counters`, which also holds
the last numbers given. So commits have one order, numbers become visible in it, and every operation decides on what
all earlier ones left: no two replicas start the same attempt, answer one request twice or overtake a watcher. Group
commit makes one lock per transaction cheap.

Readers get REPEATABLE READ: one snapshot for all statements of a query. Commits are told by NOTIFY with the numbers in
the payload; a replica that missed some (its connection broke) reads the counters at least every `POLL` seconds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from gateway_svc.backend import Near, Numbers
from gateway_svc.connections import NETWORK, SILENCE, UNANSWERED, Lines, connected

log = logging.getLogger(__name__)

CHANNEL = "whippletree_commits"
POLL = 1.0
"""Seconds after which the counters are read although nobody told anything."""
PATIENCE = 10.0
"""Seconds for one answer to whoever follows."""
_COUNTERS = "SELECT change, sequence, catalog FROM counters"
_MIGRATING = "SELECT pg_advisory_xact_lock(4775813)"


class Postgresql:
    """`synchronous` FULL waits for the server's disk at every commit; NORMAL does not, so a crash of the server (not
    of a gateway) may lose the last half second."""

    near: Near | None = None

    def __init__(self, url: str, synchronous: str, readers: int) -> None:
        commit = "on" if synchronous == "FULL" else "off"
        self.url = conninfo(url)
        self.writer = _engine(url, 1, "READ COMMITTED", f"-c synchronous_commit={commit}")
        self.reader = _engine(url, readers, "REPEATABLE READ", "-c default_transaction_read_only=on")
        self._lines = Lines(self.writer), Lines(self.reader)

    def prepare(self, connection: Connection) -> None:
        """Replicas that start together migrate one after the other."""
        connection.exec_driver_sql(_MIGRATING)

    def begin(self, connection: Connection, known: Numbers) -> Numbers:
        """Lock the row that every writer locks; statements after that see everything committed before."""
        return _numbers(connection.exec_driver_sql(f"{_COUNTERS} FOR UPDATE").one())

    def announce(self, connection: Connection, numbers: Numbers) -> None:
        """NOTIFY is delivered when, and only if, the transaction commits."""
        payload = f"{numbers.change} {numbers.sequence} {numbers.catalog}"
        connection.exec_driver_sql(f"NOTIFY {CHANNEL}, '{payload}'")

    async def follow(self, committed: Callable[[Numbers], None]) -> None:
        """Listen; after a broken connection look at the counters and listen again."""
        while True:
            try:
                await self._listen(committed)
            except (psycopg.Error, OSError) as error:
                log.warning("the store's notifications: %s", str(error) or UNANSWERED)
                await asyncio.sleep(POLL)

    async def _listen(self, committed: Callable[[Numbers], None]) -> None:
        async with await connected(self.url, "whippletree-commits") as connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            while True:
                async with asyncio.timeout(PATIENCE):
                    row = await (await connection.execute(_COUNTERS)).fetchone()
                assert row is not None, "the migration makes the row"
                committed(_numbers(row))
                async for told in connection.notifies(timeout=POLL):
                    committed(_numbers(told.payload.split()))

    def lost(self, error: DBAPIError) -> bool:
        """A broken connection, or none to be had."""
        state = getattr(error.orig, "sqlstate", None) or "08"
        broken = isinstance(error, OperationalError | InterfaceError) and state.startswith(("08", "57P"))
        return error.connection_invalidated or broken  # not a full disk, say: that is an answer

    def cut(self) -> None:
        """Break all connections of threads; new ones are refused."""
        for lines in self._lines:
            lines.cut()

    def close(self) -> None:
        """Close all connections."""
        self.writer.dispose()
        self.reader.dispose()


def conninfo(url: str) -> str:
    """The same database as psycopg itself takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def _numbers(row: Iterable[Any]) -> Numbers:
    """From a row, or from the words of a payload."""
    change, sequence, catalog = row
    return Numbers(change=int(change), sequence=int(sequence), catalog=int(catalog))


def _engine(url: str, size: int, isolation: str, options: str) -> Engine:
    return create_engine(
        url,
        pool_size=size,
        max_overflow=2,
        pool_pre_ping=True,
        isolation_level=isolation,
        connect_args={**NETWORK, "options": f"{SILENCE} {options}", "application_name": "whippletree"},
    )
