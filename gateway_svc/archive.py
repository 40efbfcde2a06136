"""Whole stores in SQLite files: back up while a gateway serves, restore, compact, look through.

All of it works on the file itself, in a process of its own, and takes nothing from a gateway that serves. A back-up
is one consistent snapshot with everything that was acknowledged before it began. A PostgreSQL store is backed up by
PostgreSQL's own tools; it can be looked through here.
"""

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, text

from gateway_svc.sqlite import locked
from gateway_svc.store import migrate
from gateway_svc.verify import Report, verify


class ArchiveError(Exception):
    """What was asked for cannot be done; the message is for people."""


def back_up(store: Path, target: Path) -> int:
    """Write a snapshot of a store, served or not, to a new file; its size. Raises ArchiveError."""
    if target.exists():
        raise ArchiveError(f"{target} exists; choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    with _opened(store) as connection:
        _vacuum_into(connection, partial)
    partial.replace(target)
    _sync(target.parent)
    return target.stat().st_size


def restore(source: Path, store: Path, *, replace: bool) -> Path | None:
    """Make a store of a back-up, after it was looked through; where a store was before, None = there was none.

    The store gets another identity: what was given after the back-up was taken will be given again, so that tokens of
    watchers from then must expire. Raises ArchiveError: faults, a store that is there or in use.
    """
    if faults := _pages(source):
        raise ArchiveError(f"{source} is damaged: {faults[0]}")
    if store.exists() and not replace:
        raise ArchiveError(f"{store} exists; --replace puts it aside")
    with _alone(store):
        made = store.with_name(store.name + ".restoring")
        made.unlink(missing_ok=True)
        with _opened(source) as connection:
            _vacuum_into(connection, made)
        _adopt(made)
        if found := look_through(made).faults:
            made.unlink()
            raise ArchiveError(f"{source} has {len(found)} faults, the first: {found[0].where}: {found[0].what}")
        before = _put_aside(store) if store.exists() else None
        made.replace(store)
        _sync(store.parent)
    return before


def compact(store: Path) -> tuple[int, int]:
    """Give the room of deleted rows back to the disk; bytes before and after. Raises ArchiveError: it is in use."""
    if not store.is_file():
        raise ArchiveError(f"{store} does not exist")
    with _alone(store), _opened(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        before = store.stat().st_size
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return before, store.stat().st_size


def look_through(store: Path | str) -> Report:
    """Verify a store, served or not, changing nothing: a file's path or a PostgreSQL URL. Raises ArchiveError."""
    if isinstance(store, Path) and (faults := _pages(store)):  # nothing that such a file says can be believed
        report = Report()
        for what in faults:
            report.fault(str(store), what)
        return report
    engine = _reader(store)
    try:
        with engine.connect() as connection:
            if (found := connection.execute(text("SELECT version_num FROM alembic_version")).scalar()) != _head():
                raise ArchiveError(f"{store} has schema {found}, this version {_head()}: start its gateway once")
            return verify(connection)
    finally:
        engine.dispose()


def _reader(store: Path | str) -> Engine:
    """Reads one snapshot and writes nothing."""
    if isinstance(store, str):
        return create_engine(store, isolation_level="REPEATABLE READ")
    engine = create_engine(f"sqlite:///{store}")

    @event.listens_for(engine, "connect")
    def connected(raw: sqlite3.Connection, record: object) -> None:
        raw.isolation_level = None
        raw.execute("PRAGMA query_only=1").close()

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _pages(path: Path) -> list[str]:
    """What SQLite itself finds wrong with a file."""
    try:
        with _opened(path) as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
            query = "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
            tables = connection.execute(query).fetchone()[0]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] and tables else [line for line in found if line != "ok"] or ["it is no record"]


def _head() -> str:
    """The newest revision of the schema."""
    folder = Path(__file__).with_name("migrations") / "versions"
    return max(path.name[1:5] for path in folder.glob("v[0-9]*.py"))


def _adopt(path: Path) -> None:
    """Bring a copy up to date and give it an identity of its own; durable afterwards."""
    engine = create_engine(f"sqlite:///{path}")
    try:
        with engine.begin() as connection:
            migrate(connection)
            connection.execute(text("UPDATE facts SET text = :new WHERE name = 'store'"), {"new": uuid.uuid4().hex})
    finally:
        engine.dispose()
    _sync(path)


def _put_aside(store: Path) -> Path:
    """Keep the old store, its log written into it, under a name of its own beside the new one."""
    with _opened(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    number = 1
    while (aside := store.with_name(f"{store.name}.before-{number}")).exists():
        number += 1
    os.link(store, aside)
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    return aside


@contextmanager
def _alone(store: Path) -> Iterator[None]:
    """Keep gateways away. Raises ArchiveError where one serves this store."""
    try:
        lock = locked(store)
    except OSError as error:
        raise ArchiveError(f"{error}: stop its gateway first") from error
    with lock:
        yield


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise ArchiveError(f"{path} does not exist")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        yield connection


def _vacuum_into(connection: sqlite3.Connection, target: Path) -> None:
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.DatabaseError as error:
        target.unlink(missing_ok=True)
        raise ArchiveError(f"writing {target}: {error}") from error
    _sync(target)


def _sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
