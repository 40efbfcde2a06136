"""Leases on a real PostgreSQL, without a gateway around them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from gateway_svc import shared_leases
from gateway_svc.connections import CANCELLING
from gateway_svc.leases import Told
from gateway_svc.postgresql import conninfo
from gateway_svc.shared_leases import SharedLeases
from tests.fakes import postgresql
from tests.fakes.gateway import record_of
from whippletree import tasks

DATABASES = ("postgresql",)
CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'whippletree-leases' AND datname = current_database()"""


async def nothing() -> None: ...


async def had(leases: SharedLeases) -> None:
    """Return when the lease of `runs/r` is here."""
    while not leases.have(["runs/r"]):
        await leases.obtain(["runs/r"])


@asynccontextmanager
async def leasing(
    url: str,
    *,
    in_flight: int,
    interrupted: asyncio.Event | None = None,
    read_again: Callable[[], Awaitable[None]] = nothing,
) -> AsyncIterator[SharedLeases]:
    """Leases at work, with the one of `runs/r`; `interrupted` is set when they interrupt what is in flight."""
    leases, interrupted = SharedLeases(url), interrupted or asyncio.Event()
    told = Told(
        in_flight=lambda _: in_flight,
        interrupt=lambda _: interrupted.set(),
        changed=lambda: None,
        read_again=read_again,
    )
    running = asyncio.create_task(leases.run(told))
    try:
        async with asyncio.timeout(60):
            await had(leases)
            yield leases
    finally:
        await tasks.end(running)


async def test_leases_come_again_after_a_failure_that_nobody_foresaw(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [RuntimeError("a bug")]

    async def read_again() -> None:
        if failures:
            raise failures.pop()

    async with leasing(conninfo(str(record_of(tmp_path))), in_flight=0, read_again=read_again):
        assert not failures
        assert "a bug" in caplog.text


async def test_what_is_in_flight_when_leases_are_lost_is_interrupted(tmp_path: Path) -> None:
    url, interrupted = conninfo(str(record_of(tmp_path))), asyncio.Event()
    async with leasing(url, in_flight=1, interrupted=interrupted) as leases:
        assert not interrupted.is_set()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(CUT)
        await interrupted.wait()
        await had(leases)  # and they come again


def test_leases_are_given_up_as_soon_as_the_documentation_says() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    assert "gives them up within 10 seconds" in guide
    assert shared_leases.POLL + shared_leases.PATIENCE + CANCELLING < 10


async def test_a_replica_whose_server_is_silent_gives_its_leases_up(tmp_path: Path, server: postgresql.Server) -> None:
    url, interrupted = conninfo(str(record_of(tmp_path))), asyncio.Event()
    async with leasing(url, in_flight=1, interrupted=interrupted) as leases:
        with server.silent():
            await interrupted.wait()
            assert not leases.have(["runs/r"])
        await had(leases)
