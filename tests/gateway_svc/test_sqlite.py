"""What only SQLite has: one owner, and a log that is synchronised."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway_svc.store import Store
from gateway_svc.types import Micros
from tests.fakes.gateway import INSECURE, gateway_process

DATABASES = ("sqlite",)


async def opened(path: Path) -> Store:
    return await Store.open(path, synchronous="FULL", capacity=100, readers=2, clock=lambda: Micros(1))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store."""
    made = await opened(tmp_path / "record.db")
    yield made
    await made.close()


async def test_a_second_process_is_kept_out(store: Store, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        await opened(tmp_path / "record.db")


async def test_the_log_is_synchronised_at_every_commit(store: Store) -> None:
    assert await store.read(lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
    assert await store.write(lambda tx: tx.connection.execute(text("PRAGMA synchronous")).scalar()) == 2


async def test_a_gateway_says_that_its_store_is_in_use(tmp_path: Path) -> None:
    async with gateway_process(tmp_path):
        second = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway_svc", "--store.path", str(tmp_path / "record.db"), *INSECURE),
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await second.communicate()
        assert second.returncode == 1
        assert "in use by another process" in error.decode()
