"""A real PostgreSQL server for tests: in a folder of its own, on a Unix socket, gone at the end.

In: Debian's server package (`/usr/lib/postgresql/*/bin`) or another one on PATH. Out: a server that makes empty
databases. It runs as an unprivileged user, for PostgreSQL refuses root.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import create_engine

from gateway_svc.store import migrate

VARIABLE = "WHIPPLETREE_TEST_POSTGRESQL"
"""Folder of the server that gateways of tests use; unset = SQLite."""
STARTING = 60.0
"""Seconds for the server to be ready; only a fault ever takes that long."""
_TEMPLATE = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. `folder` holds its socket."""

    folder: Path
    process: "subprocess.Popen[bytes] | None" = None

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """All its processes stand still while the block runs: the kernel takes connections, nobody answers."""
        assert self.process is not None
        first = self.process.pid
        try:
            _signal(signal.SIGSTOP, first)
            while _state(first) != "T":  # from then on it makes no more of the others
                time.sleep(0.01)
            _signal(signal.SIGSTOP, *_children(first))
            yield
        finally:
            _signal(signal.SIGCONT, *_children(first), first)

    def url(self, name: str) -> str:
        """Where the gateway finds a database."""
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    @property
    def socket(self) -> str:
        """Path of its Unix socket."""
        return str(self.folder / ".s.PGSQL.5432")

    def database(self, key: str) -> str:
        """URL of the database for this key, empty when it is asked for first, its schema up to date."""
        name = _name(key)
        try:
            self._copy(_TEMPLATE, name)
        except psycopg.errors.DuplicateDatabase:
            return self.url(name)
        with psycopg.connect(f"postgresql://postgres@/{name}?host={self.folder}") as connection:
            connection.execute("UPDATE facts SET text = md5(random()::text) WHERE name = 'store'")  # its own identity
        return self.url(name)

    def copy(self, key: str, to: str) -> None:
        """Make the database for the key `to` a copy of the one for `key`, which nobody may use meanwhile."""
        self._copy(_name(key), _name(to))

    def drop(self, key: str) -> None:
        """Remove the database for this key, whoever uses it."""
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(_name(key))))

    def clear(self) -> None:
        """Remove all databases that were asked for, whoever uses them. A database has 400 files: those of a whole run
        of tests, kept to its end, took minutes to remove, and more than a test may take on a busy disk."""
        ours = "SELECT datname FROM pg_database WHERE NOT datistemplate AND datname NOT IN ('postgres', %s)"
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            for (name,) in connection.execute(ours, (_TEMPLATE,)).fetchall():
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _copy(self, template: str, name: str) -> None:
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            query = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
            connection.execute(query)

    def empty(self, name: str) -> str:
        """URL of a new database without any table."""
        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.folder}", autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server while the block runs. RuntimeError where PostgreSQL is not installed."""
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="whippletree-pg-"))
    try:
        if user:
            shutil.chown(folder, user, user)
        data = folder / "data"
        initialise = [_program("initdb"), "--pgdata", str(data), "--username=postgres", "--auth=trust", "--no-sync"]
        subprocess.run(
            [*initialise, "--encoding=UTF8", "--no-locale"],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "max_connections": 200, "fsync": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [_program("postgres"), "-D", data, *options], user=user, cwd=folder, stdout=log, stderr=log
            )
        try:
            server = Server(folder=folder, process=process)
            _wait(server)
            engine = create_engine(server.empty(_TEMPLATE))
            with engine.begin() as connection:
                migrate(connection)
            engine.dispose()
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            process.wait(STARTING)
    finally:
        shutil.rmtree(folder)


def _name(key: str) -> str:
    """The database of a key."""
    return f"t{blake2b(key.encode(), digest_size=10).hexdigest()}"


def _signal(number: int, *processes: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def _state(process: int) -> str:
    """As the kernel shows it: T = stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _program(name: str) -> str:
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = str(packaged[-1]) if packaged else shutil.which(name)
    if program is None:
        raise RuntimeError(f"{name} is missing: install the package postgresql")
    return program


def _wait(server: Server) -> None:
    assert server.process is not None
    end = time.monotonic() + STARTING
    while True:
        try:
            psycopg.connect(f"postgresql://postgres@/postgres?host={server.folder}").close()
            return
        except psycopg.OperationalError:
            if server.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"PostgreSQL did not start: {(server.folder / 'log').read_text()}") from None
            time.sleep(0.05)
