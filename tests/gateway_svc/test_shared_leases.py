"""Leases on a real PostgreSQL, without a gateway around them."""

import asyncio
from pathlib import Path

import pytest

from gateway_svc.leases import Told
from gateway_svc.postgresql import conninfo
from gateway_svc.shared_leases import SharedLeases
from tests.fakes.gateway import record_of

DATABASES = ("postgresql",)


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
