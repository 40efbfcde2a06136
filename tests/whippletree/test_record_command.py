"""`rollouts watch|cancel` and `record …` against a real gateway and its file."""

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.record import delete, finish, log

COMMAND = (sys.executable, "-m", "whippletree.cli.main")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(tmp_path) as running:
        await running.create_run("r")
        await running.create_rollout("first")
        await log(running, "first", "line")
        await running.create_rollout("second", start=False)
        yield running


async def command(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_watch_prints_what_is_there(gateway: RunningGateway) -> None:
    code, output = await command("rollouts", "watch", "--once", "--gateway", gateway.address)
    assert (code, output) == (0, "first running, attempt 1\nsecond queued\n")
    code, output = await command(
        "rollouts", "watch", "--once", "--run", "r", "--state", "queued", "--gateway", gateway.address
    )
    assert (code, output) == (0, "second queued\n")
    code, output = await command("rollouts", "watch", "--state", "lost", "--gateway", gateway.address)
    assert code == 2
    assert "--state lost: choose from" in output


async def test_watch_follows_changes_until_it_is_stopped(gateway: RunningGateway) -> None:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "rollouts", "watch", "--gateway", gateway.address, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert [await process.stdout.readline() for _ in range(2)] == [
                b"first running, attempt 1\n",
                b"second queued\n",
            ]
            await finish(gateway, "first")
            assert await process.stdout.readline() == b"first succeeded, attempt 1\n"
            await delete(gateway, "r", force=True)
            told: set[str] = set()
            while len(told) < 2:
                line = (await process.stdout.readline()).decode().strip()
                told |= {line} if line in ("first deleted", "second deleted") else set()
            process.terminate()
            assert await process.wait() == 143
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_cancel_ends_rollouts_and_says_why(gateway: RunningGateway) -> None:
    code, output = await command(
        "rollouts", "cancel", "first", "second", "--reason", "hangs", "--gateway", gateway.address
    )
    assert (code, output) == (0, "first cancelled: hangs\nsecond cancelled: hangs\n")
    code, output = await command("rollouts", "cancel", "nobody", "--gateway", gateway.address)
    assert code == 1
    assert "NOT_FOUND" in output


async def test_verify_backup_restore_compact(gateway: RunningGateway, tmp_path: Path) -> None:
    copy, other = str(tmp_path / "copy.db"), str(tmp_path / "other" / "record.db")
    code, output = await command("record", "verify", "--run-dir", str(tmp_path))
    assert code == 0, output
    assert "2 rollouts\n" in output
    assert "all of it is as it must be" in output
    code, output = await command("record", "backup", copy, "--run-dir", str(tmp_path))
    assert code == 0, output
    code, output = await command("record", "restore", copy, "--store", other)
    assert code == 0, output
    code, output = await command("record", "compact", "--store", other)
    assert code == 0, output
    code, output = await command("record", "compact", "--run-dir", str(tmp_path))
    assert code == 2
    assert "stop its gateway first" in output


async def test_verify_names_faults_and_fails(gateway: RunningGateway, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert (await command("record", "backup", str(copy), "--run-dir", str(tmp_path)))[0] == 0
    with sqlite3.connect(copy) as connection:
        connection.execute("delete from attempts")
    code, output = await command("record", "verify", "--store", str(copy))
    assert code == 1
    assert "fault: rollouts/first: attempts 1 to 1 were opened, stored are []" in output
    assert "error: 1 faults" in output
