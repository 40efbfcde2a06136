"""Connections to PostgreSQL that vanish: the server has ended them, and the replica is not told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from gateway_svc.leases import Told
from gateway_svc.postgresql import conninfo
from gateway_svc.shared_flights import SharedFlights
from gateway_svc.shared_leases import SharedLeases
from tests.fakes import postgresql
from tests.fakes.gateway import record_of
from tests.fakes.wire import Wire

DATABASES = ("postgresql",)
LIVES = """SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND application_name = %s AND datname = current_database()"""
END = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name LIKE 'whippletree-%' AND datname = current_database()"""
Direct = psycopg.AsyncConnection[tuple[object, ...]]
PATIENT = 120.0
"""Seconds for what takes 10; without the end of a test nobody would come back."""


@pytest.fixture
async def direct(tmp_path: Path) -> AsyncIterator[Direct]:
    """A connection to the test's database that does not lead over the wire."""
    where = conninfo(str(record_of(tmp_path)))
    async with await psycopg.AsyncConnection.connect(where, autocommit=True) as connection:
        yield connection


@contextlib.asynccontextmanager
async def over(server: postgresql.Server, direct: Direct) -> AsyncIterator[tuple[Wire, str]]:
    """A wire to the server, and the URL of the test's database that leads over it."""
    async with asyncio.timeout(PATIENT), Wire(server.socket) as wire:
        yield wire, f"postgresql://postgres@{wire.address}/{direct.info.dbname}"


async def vanish(wire: Wire, direct: Direct) -> None:
    wire.swallow()
    await direct.execute(END)


async def test_a_replica_shows_again_that_it_lives(server: postgresql.Server, direct: Direct) -> None:
    async def shown(before: int) -> int:
        while True:
            row = await (await direct.execute(LIVES, ("whippletree-flights",))).fetchone()
            if row is not None and row[0] != before:
                return int(str(row[0]))
            await asyncio.sleep(0.05)

    async with over(server, direct) as (wire, url), SharedFlights(url):
        first = await shown(0)
        await vanish(wire, direct)
        await shown(first)


async def test_a_replica_hears_again_that_a_lease_is_asked_for(server: postgresql.Server, direct: Direct) -> None:
    heard, lost, key = asyncio.Event(), asyncio.Event(), "runs/r"

    async def read_again() -> None:
        pass

    def interrupt(_: str) -> None:
        (heard if lost.is_set() else lost).set()

    told = Told(
        in_flight=lambda _: 0 if heard.is_set() else 1, interrupt=interrupt, changed=lambda: None, read_again=read_again
    )
    async with over(server, direct) as (wire, url):
        leases, other = SharedLeases(url), SharedLeases(conninfo(server.url(direct.info.dbname)))
        running = asyncio.create_task(leases.run(told))
        while not leases.have([key]):
            await leases.obtain([key])
        await vanish(wire, direct)
        await lost.wait()  # of its leases; then they come again
        while not leases.have([key]):
            await leases.obtain([key])
        async with other.exclusive(key, interrupt=True):  # what is in flight ends only if the notice was heard
            assert heard.is_set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
