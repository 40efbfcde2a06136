"""`record verify` of a record on PostgreSQL, while gateways serve it: by its URL, in the library and as a command."""

import asyncio
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from gateway_svc import archive
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import record_of, running_gateway
from tests.gateway_svc.test_verify import live

DATABASES = ("postgresql",)


async def verify(url: str) -> tuple[int, str]:
    """Exit code and output of the command."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "whippletree.cli.main", "record", "verify", "--store", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_sound_record_is_looked_through_while_it_is_served(tmp_path: Path, engine: FakeEngine) -> None:
    url = str(record_of(tmp_path))
    async with running_gateway(tmp_path) as gateway:
        await live(gateway, engine)
        report = archive.look_through(url)
        assert report.faults == []
        assert (report.counts["rollouts"], report.counts["calls"], report.counts["requests"]) == (3, 4, 4)
        code, output = await verify(url)
    assert code == 0, output
    assert "4 calls" in output


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        pytest.param("update counters set sequence = sequence + 3", "sequences are missing", id="gap"),
        pytest.param("update calls set parent = 999 where parent is not null", "no earlier call", id="no parent"),
        pytest.param(
            "update calls set response = decode('0100000001000000', 'hex')", "do not give its digest", id="response"
        ),
        pytest.param(
            "update calls set logprobs = decode(repeat('00', length(logprobs)), 'hex')",
            "do not give their checksum",
            id="log-probabilities",
        ),
        pytest.param("delete from calls where shared > 0", "its tokens are missing", id="event without its call"),
    ],
)
async def test_damage_is_found(tmp_path: Path, engine: FakeEngine, damage: str, found: str) -> None:
    url = str(record_of(tmp_path))
    async with running_gateway(tmp_path) as gateway:
        await live(gateway, engine)
    database = create_engine(url)
    with database.begin() as connection:
        assert connection.execute(text(damage)).rowcount > 0
    database.dispose()
    faults = archive.look_through(url).faults
    assert any(found in fault.what for fault in faults), faults
