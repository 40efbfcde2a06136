"""Leases that several gateway replicas on one PostgreSQL database share (see `leases.py`).

They are PostgreSQL's advisory locks: a lease is a shared lock, kept over many generations, so a generation
costs nothing; `exclusive` waits for the exclusive lock. Who has a lease sees in `pg_locks` that somebody waits (told by
NOTIFY, looked for every `POLL` seconds), admits no more, lets what is in flight end (or, where the notice names the
key, interrupts it) and gives the lease back. A lease
taken anew begins with reading runs and models again: what was changed meanwhile holds before anything is admitted.

A killed replica's locks end with its connections. One that is cut off gives its leases up by itself within 10
seconds, before the server, which notices silence after 30 seconds, gives them to another.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b

import psycopg

from gateway_svc.connections import UNANSWERED, Dispensable, connected, notices
from gateway_svc.leases import Told
from whippletree import tasks
from whippletree.errors import ShuttingDownError

log = logging.getLogger(__name__)

CHANNEL = "whippletree_leases"
POLL = 1.0
"""Seconds after which everything is looked at although nobody told anything."""
ASKING = 0.1
"""Seconds between two reminders of those that have what is asked for."""
OBTAINING = 2.0
"""Seconds that a generation waits for a lease that nobody keeps from it; after that it counts as held."""
PATIENCE = 7.0
"""Seconds for the answers of one look. With the pause before it, and the cancellation of the statement that waits, less
than the 10 that docs/operations.md names."""
TELLING = 1.0
"""Seconds for what the others would find out by themselves."""
_WAITING = """SELECT classid::bigint << 32 | objid::bigint FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


class SharedLeases:
    """Several replicas on one PostgreSQL database. `run` must run.

    Invariant: `_held` <= keys whose shared lock is ours and after whose locking runs and models were read again.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._wanted: set[str] = set()
        self._locked: set[str] = set()
        self._held: set[str] = set()
        self._interrupts: set[str] = set()
        self._work = asyncio.Event()
        self._moved = asyncio.Event()

    def have(self, keys: Sequence[str]) -> bool:
        """Whether generations of these keys may begin here."""
        return self._held.issuperset(keys)

    async def obtain(self, keys: Sequence[str]) -> None:
        """Ask for the leases of these keys; returns when they are here, or after `OBTAINING` seconds."""
        if not self.have(keys):
            self._wanted.update(keys)
            self._work.set()
            try:
                async with asyncio.timeout(OBTAINING):
                    while not self.have(keys):
                        await self._moved.wait()
            except TimeoutError:
                pass

    @asynccontextmanager
    async def exclusive(self, key: str, *, interrupt: bool) -> AsyncIterator[None]:
        """While the block runs no replica has the lease. Raises ShuttingDownError where the store does not answer."""
        try:
            async with await self._connect() as telling:
                try:
                    async with await self._connect() as connection:
                        await _lock(connection, telling, key, interrupt)
                        yield
                finally:
                    with suppress(psycopg.Error, TimeoutError):  # those that wait look by themselves too
                        async with asyncio.timeout(TELLING):
                            await telling.execute(f"NOTIFY {CHANNEL}")  # the lock has gone with its connection
        except psycopg.Error as error:
            raise ShuttingDownError("the store does not answer; repeat") from error

    async def run(self, told: Told) -> None:
        """Take and give leases, for ever."""
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                try:
                    async with await self._connect() as connection:
                        while True:
                            self._work.clear()
                            async with asyncio.timeout(PATIENCE):
                                await self._turn(connection, told)
                            self._moved.set()
                            self._moved = asyncio.Event()
                            told.changed()
                            await _either(self._work, POLL if self._locked <= self._held else ASKING)
                except (psycopg.Error, ShuttingDownError, OSError) as error:
                    log.warning("leases are given up until the store answers: %s", str(error) or UNANSWERED)
                except Exception:  # whatever it was: without this task every generation would be held for ever
                    log.exception("leases are given up for a moment")
                finally:
                    for key in self._locked:  # others may change weights now, under what still runs here
                        told.interrupt(key)
                    self._wanted |= self._locked
                    self._locked.clear()
                    self._held.clear()
                await asyncio.sleep(POLL)
        finally:
            await tasks.end(listening)

    async def _turn(self, connection: Dispensable, told: Told) -> None:
        """One look: give what others wait for and nothing is in flight of, take what is wanted and free."""
        rows = await (await connection.execute(_WAITING)).fetchall()
        asked = {signed(row[0]) for row in rows}
        self._held -= {key for key in self._locked if number(key) in asked}
        self._interrupts &= self._locked - self._held
        for key in self._interrupts:
            told.interrupt(key)
        for key in self._locked - self._held:
            if not told.in_flight(key):
                await connection.execute("SELECT pg_advisory_unlock_shared(%s)", (number(key),))
                self._locked.discard(key)
                self._wanted.add(key)
        taken = set()
        for key in {key for key in self._wanted - self._locked if number(key) not in asked}:
            query = "SELECT pg_try_advisory_lock_shared(%s)"
            row = await (await connection.execute(query, (number(key),))).fetchone()
            if row is not None and row[0]:
                taken.add(key)
                self._locked.add(key)
        if taken:
            await told.read_again()
            self._held |= taken
            self._wanted -= taken

    async def _listen(self) -> None:
        while True:
            try:
                async with await self._connect() as connection:
                    async with asyncio.timeout(PATIENCE):
                        await connection.execute(f"LISTEN {CHANNEL}")
                    async for notice in notices(connection, pause=POLL, patience=PATIENCE):
                        if notice.payload:
                            self._interrupts.add(notice.payload)
                        self._work.set()
            except (psycopg.Error, OSError) as error:
                log.warning("notifications of leases: %s", str(error) or UNANSWERED)
            await asyncio.sleep(POLL)

    async def _connect(self) -> Dispensable:
        return await connected(self._url, "whippletree-leases")


def number(key: str) -> int:
    """A key as an advisory lock's number: 64 bits, signed."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big", signed=True)


def signed(value: int) -> int:
    """The number of a lock as `pg_locks` shows it in two halves."""
    return value - (1 << 64) if value >= 1 << 63 else value


async def _lock(
    connection: Dispensable,
    telling: Dispensable,
    key: str,
    interrupt: bool,
) -> None:
    """Wait for the exclusive lock, and remind those that have the lease meanwhile."""
    locked = asyncio.Event()
    reminding = asyncio.create_task(_remind(telling, key if interrupt else "", locked))
    try:
        await connection.execute("SELECT pg_advisory_lock(%s)", (number(key),))
        locked.set()
        await asyncio.wait([reminding], timeout=TELLING)  # a statement that is cut would take `telling` along
    finally:
        await tasks.end(reminding)


async def _remind(connection: Dispensable, interrupted: str, locked: asyncio.Event) -> None:
    """Say again and again that somebody waits, and which key is to be interrupted; empty = none."""
    while not locked.is_set():
        await connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, interrupted))
        await _either(locked, ASKING)


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
