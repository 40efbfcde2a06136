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
import fcntl
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, func, select

from gateway_svc import schema
from gateway_svc.types import Micros
from whippletree.errors import ShuttingDownError, WhippletreeError

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH = 512
"""Operations in one commit at most."""


_IDENTITY = select(schema.facts.c.text).where(schema.facts.c.name == "store")


class Transaction:
    """What an operation gets: the connection, the time, and the gateway-wide number of changes of rollouts."""

    def __init__(self, connection: Connection, change: int, now: Micros) -> None:
        self.connection = connection
        self.now = now
        self.change = change

    def next_change(self) -> int:
        """A new number, above all that were given."""
        self.change += 1
        return self.change


@dataclass(slots=True, eq=False)
class _Job(Generic[T]):
    operation: Callable[[Transaction], T]
    future: "asyncio.Future[T]"
    result: T | None = None
    error: BaseException | None = None


class Store:
    """Opened by `open`, used from one event loop, closed by `close`. One process at a time (a lock file guards it)."""

    def __init__(
        self, path: Path, *, synchronous: str, capacity: int, readers: int, clock: Callable[[], Micros]
    ) -> None:
        self._path, self._clock = path, clock
        self._lock = _locked(path)
        self._writer_engine = _engine(path, synchronous, "BEGIN IMMEDIATE")
        self._reader_engine = _engine(path, synchronous, "BEGIN")
        self._room = asyncio.Semaphore(capacity)
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(readers, "store-reader")
        self._loop = asyncio.get_running_loop()
        self._on_commit: list[Callable[[int], None]] = []
        self._closed = False
        self._change, self._identity = 0, ""
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)

    @classmethod
    async def open(
        cls, path: Path, *, synchronous: str, capacity: int, readers: int, clock: Callable[[], Micros]
    ) -> "Store":
        """Open or make the store and bring its schema up to date. OSError where another process has it."""
        store = cls(path, synchronous=synchronous, capacity=capacity, readers=readers, clock=clock)
        await asyncio.to_thread(store._prepare)
        store._thread.start()
        return store

    def on_commit(self, listener: Callable[[int], None]) -> None:
        """Call `listener(number of the last change)` in the loop after every commit."""
        self._on_commit.append(listener)

    @property
    def change(self) -> int:
        """Number of the last change that was committed when the store was opened."""
        return self._change

    @property
    def identity(self) -> str:
        """Of this store; it is part of every resume token."""
        return self._identity

    async def write(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation in the writer's next commit and wait for it; at most `capacity` wait there."""
        async with self._room:
            if self._closed:
                raise ShuttingDownError("the gateway stops")
            future: asyncio.Future[T] = self._loop.create_future()
            self._jobs.put(_Job(operation, future))
            return await future

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on one consistent snapshot that holds every acknowledged write."""
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        return await self._loop.run_in_executor(self._readers, self._read, query)

    async def close(self) -> None:
        """Commit what is queued, then close."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._readers.shutdown)
        self._writer_engine.dispose()
        self._reader_engine.dispose()
        self._lock.close()

    def _prepare(self) -> None:
        with self._writer_engine.begin() as connection:
            migrate(connection)
            self._change = last_change(connection)
            self._identity = str(connection.execute(_IDENTITY).scalar_one())

    def _read(self, query: Callable[[Connection], T]) -> T:
        with self._reader_engine.connect() as connection:
            return query(connection)

    def _write_loop(self) -> None:
        with self._writer_engine.connect() as connection:
            change, more = self._change, True
            while more:
                batch, more = self._take()
                if not batch:
                    continue
                change = self._commit(connection, batch, change)
                self._loop.call_soon_threadsafe(self._settle, batch, change)

    def _take(self) -> tuple[list[_Job[Any]], bool]:
        """The first job, waited for, and all that are queued behind it; False = the store closes."""
        job = self._jobs.get()
        batch: list[_Job[Any]] = []
        while job is not None:
            batch.append(job)
            if len(batch) >= BATCH:
                return batch, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, True
        return batch, False

    def _commit(self, connection: Connection, batch: Sequence[_Job[Any]], change: int) -> int:
        """Run a batch in one transaction; where it breaks, each job in its own. Returns the last change number."""
        try:
            return self._transact(connection, batch, change)
        except Exception as error:
            if len(batch) == 1:
                log.exception("an operation of the store failed")
                batch[0].error = error
                return change
        for job in batch:
            change = self._commit(connection, [job], change)
        return change

    def _transact(self, connection: Connection, batch: Sequence[_Job[Any]], change: int) -> int:
        with connection.begin():
            transaction = Transaction(connection, change, self._clock())
            for job in batch:
                job.error = None
                try:
                    job.result = job.operation(transaction)
                except WhippletreeError as error:
                    job.error = error
        return transaction.change

    def _settle(self, batch: Sequence[_Job[Any]], change: int) -> None:
        for job in batch:
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        for listener in self._on_commit:
            listener(change)


def migrate(connection: Connection, revision: str = "head") -> None:
    """Bring the schema of this database to a revision."""
    config = Config()
    config.set_main_option("script_location", "gateway_svc:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def last_change(connection: Connection) -> int:
    """The highest number of a change that was ever given."""
    kept = connection.execute(select(func.max(schema.rollouts.c.change))).scalar() or 0
    gone = connection.execute(select(func.max(schema.deletions.c.change))).scalar() or 0
    forgotten = select(schema.facts.c.number).where(schema.facts.c.name == "forgotten_change")
    return max(kept, gone, connection.execute(forgotten).scalar() or 0)


def _locked(path: Path) -> Any:
    """A lock file beside the store that lives as long as this process. OSError where another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise OSError(f"the store {path} is in use by another process") from error
    return file


def _engine(path: Path, synchronous: str, begin: str) -> Engine:
    """A SQLAlchemy engine whose transactions begin as told (pysqlite's own implicit BEGIN is switched off)."""
    engine = create_engine(f"sqlite:///{path}", pool_size=16, connect_args={"timeout": 30, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "cache_size=-16384", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
