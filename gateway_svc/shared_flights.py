"""Generations under way at several gateway replicas on one PostgreSQL database: a repeat or a retry that reaches
another replica waits for the one that runs, instead of sampling again.

In: flights of this replica (`flights.py`). Out: `claimed`, inside which no other replica runs what this one repeats or
retries, and whatever one ran is recorded or gone. Every flight is a row of the table `flights`, from before its engine
is asked until it has ended; a row whose `joins` is set waits for another row to go. Of equal ones that come at the same
moment one runs: claims of one place are made one after the other, each up to its choice. So what is chosen runs, and
never waits for anything itself: waits form no chains, which could become cycles.

The table is no part of the record: it is unlogged, and replicas make it. Rows count only while their replica
lives, which an advisory lock on a connection of its own shows: a killed replica's lock goes with its connections, and
who waited for it runs the generation itself.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import psycopg

from gateway_svc import retry
from gateway_svc.connections import UNANSWERED, Dispensable, connected, notices
from gateway_svc.flights import Flight
from gateway_svc.shared_leases import number
from whippletree import tasks
from whippletree.errors import ShuttingDownError

log = logging.getLogger(__name__)

CHANNEL = "whippletree_flights"
POLL = 1.0
"""Seconds after which everything is looked at although nobody told anything."""
PATIENCE = 7.0
"""Seconds for one answer of the database."""
STOPPING = 1.0
"""Seconds at a stop for telling other replicas what has ended; they would find out by themselves."""
_MAKING = 4775814
_TABLE = """CREATE UNLOGGED TABLE IF NOT EXISTS flights (
    flight bigint PRIMARY KEY,
    number bigint GENERATED ALWAYS AS IDENTITY,
    replica bigint NOT NULL,
    place bytea NOT NULL,
    idempotency_key text NOT NULL,
    request_id text NOT NULL,
    joins bigint,
    abandoned boolean NOT NULL DEFAULT false);
CREATE INDEX IF NOT EXISTS ix_flights_place ON flights (place);
CREATE INDEX IF NOT EXISTS ix_flights_joins ON flights (joins)"""
_ALIVE = """EXISTS (SELECT 1 FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid::bigint << 32 | objid::bigint = flights.replica)"""
_FUNCTION = f"""CREATE OR REPLACE FUNCTION
claim_flight(own bigint, by bigint, at bytea, key text, request text, lock bigint)
RETURNS TABLE (flight bigint, idempotency_key text, request_id text, abandoned boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock(lock);
    INSERT INTO flights (flight, replica, place, idempotency_key, request_id) VALUES (own, by, at, key, request)
    ON CONFLICT (flight) DO UPDATE SET joins = NULL;
    RETURN QUERY SELECT flights.flight, flights.idempotency_key, flights.request_id, flights.abandoned FROM flights
    WHERE place = at AND flights.flight <> own AND joins IS NULL AND {_ALIVE} ORDER BY number DESC;
    IF FOUND THEN
        PERFORM pg_advisory_lock(lock);
    END IF;
END $$"""
"""Where there is something to choose the place stays locked until `_CHOSEN`, or until the connection ends."""
_CLAIM = "SELECT flight, idempotency_key, request_id, abandoned FROM claim_flight(%s, %s, %s, %s, %s, %s)"
_RUNS = f"SELECT 1 FROM flights WHERE flight = %s AND {_ALIVE}"
_JOIN = "UPDATE flights SET joins = %s WHERE flight = %s"
_CHOSEN = "SELECT pg_advisory_unlock(%s)"
_WANTED = f"SELECT 1 FROM flights WHERE joins = %s AND {_ALIVE}"
_LEFT = "UPDATE flights SET abandoned = %s WHERE flight = %s"
_END = """WITH gone AS (DELETE FROM flights WHERE flight = %s RETURNING flight)
SELECT pg_notify(%s, flight::text) FROM gone WHERE EXISTS (SELECT 1 FROM flights WHERE joins = gone.flight)"""


class SharedFlights:
    """The flights of this replica, as the others see them, while its context is open."""

    def __init__(self, url: str) -> None:
        self._url, self._replica = url, secrets.randbits(62)
        self._alive = asyncio.Event()
        self._ended: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._connection: Dispensable | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=STOPPING)
        await tasks.end(*self._tasks, self._running, again=STOPPING)
        if self._connection is not None:
            await self._connection.close()

    @asynccontextmanager
    async def claimed(self, flight: Flight) -> AsyncIterator[None]:
        """While the block runs others find this flight. Raises ShuttingDownError where the store does not answer."""
        row = _Row(self, secrets.randbits(62))
        try:
            try:
                await self._claim(flight, row)
            except (psycopg.Error, TimeoutError) as error:
                raise ShuttingDownError("the store does not answer; repeat") from error
            flight.elsewhere = row
            if flight.left:
                row.left(True)
            yield
        finally:
            self.soon(_END, row.number, CHANNEL)

    async def _run(self) -> None:
        """Show that this replica lives, and hear which flights end, for ever."""
        while True:
            try:
                async with await self._connect() as connection:
                    async with asyncio.timeout(PATIENCE):
                        await self._prepare(connection)
                    self._alive.set()
                    async for told in notices(connection, pause=POLL, patience=PATIENCE):
                        if (event := self._ended.get(int(told.payload))) is not None:
                            event.set()
            except (psycopg.Error, OSError) as error:
                log.warning("generations of other replicas are not known: %s", str(error) or UNANSWERED)
            finally:
                self._alive.clear()
            await asyncio.sleep(POLL)

    async def _prepare(self, connection: Dispensable) -> None:
        """The table, without rows of dead replicas, and its function; the lock that shows life; ears."""
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
            await connection.execute(_TABLE)
            await connection.execute(_FUNCTION)
            await connection.execute(f"DELETE FROM flights WHERE NOT {_ALIVE}")
        # Shared: where a connection has vanished the server keeps its lock for a while, beside which the new one lives.
        await connection.execute("SELECT pg_advisory_lock_shared(%s)", (self._replica,))
        await connection.execute(f"LISTEN {CHANNEL}")

    async def _claim(self, flight: Flight, row: "_Row") -> None:
        """Return when nothing that the flight repeats or retries runs elsewhere."""
        async with asyncio.timeout(PATIENCE):
            await self._alive.wait()
        while (other := await self._look(flight, row.number)) is not None:
            await self._until_ended(other)

    async def _look(self, flight: Flight, row: int) -> int | None:
        """The row whose end this flight must await; without one, its own row says that it runs."""
        ask, place = flight.ask, _place(flight)
        key, request_id = ask.repeat.key if ask.repeat else "", ask.once.request_id if ask.once else ""
        lock = number(place.hex())
        values = (row, self._replica, place, key, request_id, lock)
        async with self._statements() as connection:
            others = await (await connection.execute(_CLAIM, values)).fetchall()
            other = _chosen(flight, request_id, others)
            if other is not None:
                await connection.execute(_JOIN, (other, row))
            if others:
                await connection.execute(_CHOSEN, (lock,))  # by itself: the join must be committed before
        return other

    async def _until_ended(self, other: int) -> None:
        """Return when that row is gone, or its replica."""
        event = self._ended[other]
        try:
            while not event.is_set() and await self.fetch(_RUNS, other) is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await event.wait()
        finally:
            self._ended.pop(other, None)

    def soon(self, query: str, *values: object) -> None:
        """Carry out a statement behind the caller's back, in order; where the database is away it is left out."""
        task = asyncio.create_task(self._quietly(query, values))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def fetch(self, query: str, *values: object) -> Any:
        """The first row of a statement, None where there is none."""
        async with self._statements() as connection:
            found = await connection.execute(query, values)
            return await found.fetchone() if found.description else None

    async def _quietly(self, query: str, values: tuple[object, ...]) -> None:
        try:
            await self.fetch(query, *values)
        except (psycopg.Error, TimeoutError, OSError) as error:
            log.warning("other replicas are not told of a generation: %s", str(error) or UNANSWERED)

    @asynccontextmanager
    async def _statements(self) -> AsyncIterator[Dispensable]:
        """The one connection for statements, one user at a time; made anew after it broke or was left in the middle."""
        async with self._turn, asyncio.timeout(PATIENCE):
            if self._connection is None or self._connection.closed:
                self._connection = await self._connect()
            try:
                yield self._connection
            except BaseException:
                await self._connection.close()
                raise

    async def _connect(self) -> Dispensable:
        return await connected(self._url, "whippletree-flights")


class _Row:
    """One row; `flights.Elsewhere`."""

    def __init__(self, shared: SharedFlights, number_: int) -> None:
        self._shared, self.number = shared, number_

    def left(self, is_left: bool) -> None:
        """Tell others that nobody waits here any more, or again."""
        self._shared.soon(_LEFT, is_left, self.number)

    async def wanted(self) -> bool:
        """Whether another replica waits for it. Where the database is away nobody is known to."""
        try:
            return await self._shared.fetch(_WANTED, self.number) is not None
        except (psycopg.Error, TimeoutError, OSError):
            return False


def _place(flight: Flight) -> bytes:
    """What must be equal for two flights to have anything to do with one another."""
    ask = flight.ask
    about = ask.repeat.turn if ask.repeat else f" {ask.once.request_id if ask.once else ''}".encode()
    return f"{ask.rollout_id} {ask.ordinal} {ask.attempt} ".encode() + about


def _chosen(flight: Flight, request_id: str, rows: Sequence[Any]) -> int | None:
    """Which running flight it repeats or retries, of (flight, key, request id, abandoned), latest first."""
    for flight_, _, known, _ in rows:
        if request_id and known == request_id:
            return int(flight_)
    if flight.ask.repeat is None:
        return None
    found = retry.choose(flight.ask.repeat, [retry.Earlier(key=row[1], lost=row[3]) for row in rows])
    return None if found is None else int(rows[found][0])
