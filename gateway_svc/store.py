"""The store: one writer thread that commits many operations at once, and readers beside it, on SQLite or PostgreSQL.

In: operations (functions of a `Transaction`) and queries (functions of a connection). Out: their results; that of an
operation only after its commit. `synchronous` FULL syncs the log to the disk at every commit, so acknowledged writes
survive loss of power; NORMAL leaves that to the operating system, and then they survive `kill -9` alone.

On PostgreSQL several processes share the store. Then too one transaction writes at a time, so an operation sees what
all before it did, whichever process did it (see `postgresql.py`).

Rules for an operation: it decides before it writes (a WhippletreeError after a write would leave half of it), and it
can be run again, because a batch in which something unforeseen fails is rolled back and repeated one by one.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, bindparam, select, update
from sqlalchemy.exc import DataError, DBAPIError

from gateway_svc.backend import Backend, Numbers
from gateway_svc.prepared import Prepared
from gateway_svc.readers import Readers, joined
from gateway_svc.schema import counters, facts
from gateway_svc.sqlite import Sqlite
from gateway_svc.types import Micros
from whippletree import tasks
from whippletree.errors import InvalidFieldError, ShuttingDownError, StoreFullError, WhippletreeError

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH = 512
"""Operations that are gathered for one commit at most; what is queued behind them may double it."""
SHARING = 0.01
"""Seconds of patience for what nobody notices: small beside a generation, and beside an agent's end."""
FULL_PAUSE = 2.0
"""Seconds after which a caller that found no room may come again."""
COMMITTING = 2.0
"""Seconds at the close for what is queued, and for queries that run."""
CUT = 1.0
"""Seconds for threads to end after their connections were cut."""

_IDENTITY = select(facts.c.text).where(facts.c.name == "store")
_COUNTERS = select(counters.c.change, counters.c.sequence, counters.c.catalog)
_COUNT = Prepared(update(counters).values({name: bindparam(name) for name in ("change", "sequence", "catalog")}))


_FULL = frozenset(
    # SQLite: no space, beyond a limit of the file's size, the log's index cannot grow. PostgreSQL: disk_full.
    (
        "SQLITE_FULL",
        "SQLITE_IOERR_WRITE",
        "SQLITE_IOERR_FSYNC",
        "SQLITE_IOERR_SHMSIZE",
        "SQLITE_IOERR_TRUNCATE",
        "53100",
    )
)


class Transaction:
    """What an operation gets: the connection, the time, and new gateway-wide numbers."""

    def __init__(self, connection: Connection, now: Micros, given: Numbers) -> None:
        self.connection = connection
        self.now = now
        self._change, self._sequence, self._catalog = given.change, given.sequence, given.catalog

    @property
    def given(self) -> Numbers:
        """The last numbers given."""
        return Numbers(change=self._change, sequence=self._sequence, catalog=self._catalog)

    def next_change(self) -> int:
        """A new number of a change of a rollout, above all that were given."""
        self._change += 1
        return self._change

    def next_sequence(self) -> int:
        """The sequence of a new event, one above the last."""
        self._sequence += 1
        return self._sequence

    def change_catalog(self) -> None:
        """Say that runs or models change: replicas that hold them in memory read them again."""
        self._catalog += 1


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    operation: Callable[[Transaction], T]
    future: "asyncio.Future[T]"
    result: T | None = None
    error: BaseException | None = None


class Store:
    """Opened by `open`, used from one event loop, closed by `close`."""

    def __init__(self, backend: Backend, *, capacity: int, readers: int, clock: Callable[[], Micros]) -> None:
        self._backend, self._clock = backend, clock
        self._room = asyncio.Semaphore(capacity)
        self._jobs: queue.SimpleQueue[list[_Job[Any]] | None] = queue.SimpleQueue()
        self._gathered: list[_Job[Any]] = []
        self._sending: asyncio.TimerHandle | None = None
        self._pending: set[_Job[Any]] = set()
        self._readers = Readers(readers)
        self._loop = asyncio.get_running_loop()
        self._on_commit: list[Callable[[int], None]] = []
        self._on_full: Callable[[], None] = lambda: None
        self._on_batch: Callable[[int, float], None] = lambda operations, seconds: None
        self._full = False
        self._closed = False
        self._opened, self._latest, self._identity = Numbers(), Numbers(), ""
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._following: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, where: Path | str, *, synchronous: str, capacity: int, readers: int, clock: Callable[[], Micros]
    ) -> "Store":
        """Open or make the store and bring its schema up to date: a path of a SQLite file, or a PostgreSQL URL.

        Raises OSError where another process has the file, or the server does not answer.
        """
        backend = await asyncio.to_thread(_backend, where, synchronous, readers)
        store = cls(backend, capacity=capacity, readers=readers, clock=clock)
        try:
            await asyncio.to_thread(store._prepare)
        except BaseException:
            backend.close()
            raise
        store._thread.start()
        store._following = asyncio.create_task(backend.follow(store._followed))
        return store

    def on_commit(self, listener: Callable[[int], None]) -> None:
        """Call `listener(number of the last change)` in the loop after every commit, also of other processes."""
        self._on_commit.append(listener)

    def on_full(self, listener: Callable[[], None]) -> None:
        """Call `listener()` in the loop after a write that found no room."""
        self._on_full = listener

    def check_room(self) -> None:
        """Raise StoreFullError where a write found no room and none was found since: what costs much is not begun."""
        if self._full:
            raise StoreFullError("the store has no room", retry_after=FULL_PAUSE)

    def has_room(self) -> None:
        """Somebody wrote as much as is needed to go on."""
        self._full = False

    def on_batch(self, listener: Callable[[int, float], None]) -> None:
        """Call `listener(operations, seconds)` in the writer's thread after every commit of this process."""
        self._on_batch = listener

    @property
    def queued(self) -> int:
        """Operations that wait for their commit."""
        return len(self._pending)

    @property
    def writable(self) -> bool:
        """Whether there was room, when it was last looked."""
        return not self._full

    @property
    def change(self) -> int:
        """Number of the last change that was committed when the store was opened."""
        return self._opened.change

    @property
    def latest(self) -> Numbers:
        """The last numbers that are known to be committed, by this process or, a moment later, by another."""
        return self._latest

    @property
    def url(self) -> str:
        """The database as other processes reach it; empty = this process has it alone."""
        return self._backend.url

    @property
    def identity(self) -> str:
        """Of this store; it is part of every resume token."""
        return self._identity

    async def write(self, operation: Callable[[Transaction], T], *, patience: float = 0.0) -> T:
        """Run an operation in the writer's next commit and wait for it; at most `capacity` wait there.

        `patience` = seconds for which it may wait for others to share its commit; one without any takes along all that
        wait. A commit costs more than what is in it.
        """
        async with self._room:
            if self._closed:
                raise ShuttingDownError("the gateway stops")
            future: asyncio.Future[T] = self._loop.create_future()
            self._gather(_Job(operation, future), patience)
            return await future

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on one consistent snapshot that holds every acknowledged write."""
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        return await self._readers.run(partial(self._read, query))

    async def look(self, query: Callable[[Connection], T]) -> T:
        """As `read`, for a few rows found by their keys. In SQLite at once: asking a thread would take far longer."""
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        if self._backend.near is None:
            return await self.read(query)
        with self._backend.near.snapshot() as connection:
            return query(connection)

    async def close(self) -> None:
        """Commit what is queued, then close. What a database does not commit in time gets an error."""
        self._closed = True
        self._send()
        self._jobs.put(None)
        self._readers.stop()
        if self._following is not None:
            await tasks.end(self._following, again=CUT)
        ended = await asyncio.to_thread(self._join, COMMITTING)
        if not ended:
            log.warning("the store does not answer: its connections are cut")
            self._backend.cut()
            ended = await asyncio.to_thread(self._join, CUT)
        await asyncio.sleep(0)  # what the writer settled last comes before
        unanswered = ShuttingDownError("the store did not answer; repeat")
        for job in self._pending:
            if not job.future.done():
                job.future.set_exception(unanswered)
        self._readers.abandon(unanswered)
        if ended:
            self._backend.close()
        else:
            log.error("the store is left as it is: it still does not answer")

    def _join(self, seconds: float) -> bool:
        """Wait until all threads have ended; False = some have not."""
        deadline = time.monotonic() + seconds
        return joined([self._thread], deadline) and self._readers.join(deadline)

    def _gather(self, job: _Job[Any], patience: float) -> None:
        self._pending.add(job)
        self._gathered.append(job)
        if patience <= 0 or len(self._gathered) >= BATCH:
            self._send()
            return
        when = self._loop.time() + patience
        if self._sending is None or when < self._sending.when():
            if self._sending is not None:
                self._sending.cancel()
            self._sending = self._loop.call_at(when, self._send)

    def _send(self) -> None:
        """Hand the writer what was gathered, in the order in which it came."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._gathered:
            self._jobs.put(self._gathered)
            self._gathered = []

    def _prepare(self) -> None:
        try:
            with self._backend.writer.begin() as connection:
                self._backend.prepare(connection)
                migrate(connection)
                self._opened = self._latest = numbers(connection)
                self._identity = str(connection.execute(_IDENTITY).scalar_one())
        except DBAPIError as error:
            if self._backend.lost(error):
                raise OSError(f"the store does not answer: {error.orig}") from error
            raise

    def _read(self, query: Callable[[Connection], T]) -> T:
        try:
            with self._backend.reader.begin() as connection:
                return query(connection)
        except DBAPIError as error:
            if self._backend.lost(error):
                raise ShuttingDownError("the store does not answer") from error
            raise

    def _write_loop(self) -> None:
        with self._backend.writer.connect() as connection:
            given, more = self._opened, True
            while more:
                batch, more = self._take()
                if not batch:
                    continue
                given = self._commit(connection, batch, given)
                with suppress(RuntimeError):  # the loop has ended: whoever waited was told by `close`
                    self._loop.call_soon_threadsafe(self._settle, batch, given)

    def _take(self) -> tuple[list[_Job[Any]], bool]:
        """The first jobs, waited for, and all that are queued behind them; False = the store closes."""
        batch: list[_Job[Any]] = []
        jobs = self._jobs.get()
        while jobs is not None:
            batch += jobs
            if len(batch) >= BATCH:
                return batch, True
            try:
                jobs = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, connection: Connection, batch: Sequence[_Job[Any]], given: Numbers) -> Numbers:
        """Run a batch in one transaction; where it breaks, each job in its own. Returns the last numbers given."""
        try:
            return self._transact(connection, batch, given)
        except Exception as error:
            lost = isinstance(error, DBAPIError) and self._backend.lost(error)
            if len(batch) == 1 or lost:  # a commit may have been carried out, its answer lost: callers know their ids
                if _is_full(error):
                    log.warning("no room: %s", error.orig if isinstance(error, DBAPIError) else error)
                else:
                    log.exception("an operation of the store failed")
                for job in batch:
                    job.error = ShuttingDownError("the store did not answer; repeat") if lost else _told(error)
                return given
        for job in batch:
            given = self._commit(connection, [job], given)
        return given

    def _transact(self, connection: Connection, batch: Sequence[_Job[Any]], given: Numbers) -> Numbers:
        begin = time.perf_counter()
        with connection.begin():
            given = self._backend.begin(connection, given)
            transaction = Transaction(connection, self._clock(), given)
            for job in batch:
                job.error = None
                try:
                    job.result = job.operation(transaction)
                except WhippletreeError as error:
                    job.error = error
            if transaction.given != given:
                given = transaction.given
                _COUNT.run(connection, asdict(given))
                self._backend.announce(connection, given)
        self._on_batch(len(batch), time.perf_counter() - begin)
        return given

    def _settle(self, batch: Sequence[_Job[Any]], given: Numbers) -> None:
        self._pending.difference_update(batch)
        for job in batch:
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        if any(isinstance(job.error, StoreFullError) for job in batch):
            self._full = True
            self._on_full()
        self._committed(given)

    def _followed(self, given: Numbers) -> None:
        """Another process committed, or this one, and that is known already."""
        if given != self._latest:
            self._committed(given)

    def _committed(self, given: Numbers) -> None:
        self._latest = Numbers(
            change=max(given.change, self._latest.change),
            sequence=max(given.sequence, self._latest.sequence),
            catalog=max(given.catalog, self._latest.catalog),
        )
        for listener in self._on_commit:
            listener(self._latest.change)


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the schema of this database to a revision."""
    config = Config()
    config.set_main_option("script_location", "gateway_svc:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def numbers(connection: Connection) -> Numbers:
    """The last numbers given."""
    row = connection.execute(_COUNTERS).one()
    return Numbers(change=row.change, sequence=row.sequence, catalog=row.catalog)


def last_change(connection: Connection) -> int:
    """The highest number of a change that was ever given."""
    return numbers(connection).change


def _backend(where: Path | str, synchronous: str, readers: int) -> Backend:
    if isinstance(where, Path):
        return Sqlite(where, synchronous)
    try:
        from gateway_svc.postgresql import Postgresql  # its driver is an optional extra
    except ModuleNotFoundError as error:
        raise OSError(f"PostgreSQL needs {error.name}: install whippletree[postgresql]") from error
    return Postgresql(where, synchronous, readers)


def _is_full(error: Exception) -> bool:
    """Whether the database could not write for want of room, or because its disk takes no more."""
    if not isinstance(error, DBAPIError):
        return False
    return getattr(error.orig, "sqlite_errorname", "") in _FULL or getattr(error.orig, "sqlstate", "") in _FULL


def _told(error: Exception) -> Exception:
    """What the callers of a failed operation are told."""
    if _is_full(error):
        return StoreFullError("the store has no room; nothing was written", retry_after=FULL_PAUSE)
    if isinstance(error, DataError):
        return InvalidFieldError("the store cannot hold this value: a NUL character, or a number out of range")
    return error
