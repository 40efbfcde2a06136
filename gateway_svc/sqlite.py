"""The store's database as one SQLite file in WAL mode, for one process; a lock file beside it keeps others out."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from gateway_svc.backend import Near, Numbers

PAGE = 8192
"""Bytes of a page: several rows of rollouts and calls fit, so that both take less room and time than in 4096."""


class Sqlite:
    """`synchronous` FULL syncs the log at every commit, NORMAL leaves that to the operating system."""

    url = ""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._lock = locked(path)
        self.writer = _engine(path, synchronous, "BEGIN IMMEDIATE")
        self.reader = _engine(path, synchronous, "BEGIN")
        self._snapshots = Snapshots(_engine(path, synchronous, ""))
        self.near: Near | None = self._snapshots

    def prepare(self, connection: Connection) -> None:
        """The lock file keeps others out."""

    def begin(self, connection: Connection, known: Numbers) -> Numbers:
        """There is no other writer."""
        return known

    def announce(self, connection: Connection, numbers: Numbers) -> None:
        """There is nobody to tell."""

    async def follow(self, committed: Callable[[Numbers], None]) -> None:
        """There is nobody to hear of."""

    def lost(self, error: DBAPIError) -> bool:
        """A file does not go away."""
        return False

    def cut(self) -> None:
        """There is nobody who might not answer."""

    def close(self) -> None:
        """Close and unlock."""
        self._snapshots.close()
        self.writer.dispose()
        self.reader.dispose()
        self._lock.close()


class Snapshots:
    """One connection, for one thread, whose transactions begin and end without SQLAlchemy: that would take most of the
    time of a read. Its `engine` begins none by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection on which a reading transaction runs while the block does."""
        connection = self._connection = self._connection or self._engine.connect()
        driver: Any = connection.connection.dbapi_connection
        driver.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.rollback()  # where SQLAlchemy executed something, it takes part in the transaction
            if driver.in_transaction:
                driver.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._engine.dispose()


def locked(path: Path) -> Any:
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
    """A SQLAlchemy engine whose transactions begin as told, if at all (pysqlite's implicit BEGIN is switched off)."""
    engine = create_engine(f"sqlite:///{path}", pool_size=16, connect_args={"timeout": 30, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA page_size={PAGE}").close()  # holds for a file that is made now
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", "cache_size=-16384", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}").close()

    if begin:

        @event.listens_for(engine, "begin")
        def begun(connection: Connection) -> None:
            connection.exec_driver_sql(begin)

    return engine
