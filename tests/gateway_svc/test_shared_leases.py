"""Leases on a real PostgreSQL, without a gateway around them."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from gateway_svc.leases import Told
from gateway_svc.postgresql import conninfo
from gateway_svc.shared_leases import SharedLeases
from tests.fakes.gateway import record_of

DATABASES = ("postgresql",)
CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = 'whippletree-leases' AND datname = current_database()"""


async def test_leases_come_again_after_a_failure_that_nobody_foresaw(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [RuntimeError("a bug")]

    async def read_again() -> None:
        if failures:
            raise failures.pop()

    leases = SharedLeases(conninfo(str(record_of(tmp_path))))
    told = Told(in_flight=lambda _: 0, interrupt=lambda _: None, changed=lambda: None, read_again=read_again)
    running = asyncio.create_task(leases.run(told))
    async with asyncio.timeout(60):
        while not leases.have(["runs/r"]):
            await leases.obtain(["runs/r"])
    assert not failures
    assert "a bug" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_in_flight_when_leases_are_lost_is_interrupted(tmp_path: Path) -> None:
    url, interrupted = conninfo(str(record_of(tmp_path))), asyncio.Event()

    async def read_again() -> None:
        pass

    leases = SharedLeases(url)
    told = Told(
        in_flight=lambda _: 1, interrupt=lambda _: interrupted.set(), changed=lambda: None, read_again=read_again
    )
    running = asyncio.create_task(leases.run(told))
    async with asyncio.timeout(60):
        while not leases.have(["runs/r"]):
            await leases.obtain(["runs/r"])
        assert not interrupted.is_set()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(CUT)
        await interrupted.wait()
        while not leases.have(["runs/r"]):  # and they come again
            await leases.obtain(["runs/r"])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
