"""The store: commits, isolation of failures, one owner, schema."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, insert, select, text

from gateway_svc import requests, schema
from gateway_svc.store import Store, Transaction, migrate
from gateway_svc.types import Micros, Once
from whippletree.errors import NotFoundError, RequestIdReusedError, ShuttingDownError


class Clock:
    """Microseconds as the test says."""

    def __init__(self) -> None:
        self.now = Micros(1)

    def __call__(self) -> Micros:
        return self.now


async def opened(path: Path, clock: Clock | None = None) -> Store:
    return await Store.open(path, synchronous="FULL", capacity=100, readers=2, clock=clock or Clock())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store."""
    made = await opened(tmp_path / "record.db")
    yield made
    await made.close()


def put(name: str) -> Any:
    def operation(tx: Transaction) -> str:
        row = {"request_id": name, "method": "m", "digest": b"", "create_time": tx.now, "answer": b""}
        tx.connection.execute(insert(schema.requests), row)
        return name

    return operation


def names(connection: Connection) -> set[str]:
    return set(connection.execute(select(schema.requests.c.request_id)).scalars())


async def test_a_write_is_read_again_at_once(store: Store) -> None:
    assert await store.write(put("a")) == "a"
    assert await store.read(names) == {"a"}


async def test_many_writes_share_commits_and_each_has_its_own_result(store: Store) -> None:
    commits: list[int] = []
    store.on_commit(commits.append)
    results = await asyncio.gather(*(store.write(put(f"n{number}")) for number in range(300)))
    assert results == [f"n{number}" for number in range(300)]
    assert await store.read(names) == set(results)
    assert len(commits) < 300


async def test_a_refusal_touches_only_its_own_operation(store: Store) -> None:
    def refuse(tx: Transaction) -> None:
        raise NotFoundError("no")

    results = await asyncio.gather(
        store.write(put("a")), store.write(refuse), store.write(put("b")), return_exceptions=True
    )
    assert (results[0], type(results[1]), results[2]) == ("a", NotFoundError, "b")
    assert await store.read(names) == {"a", "b"}


async def test_an_unforeseen_failure_is_rolled_back_alone(store: Store) -> None:
    def half(tx: Transaction) -> None:
        put("half")(tx)
        raise RuntimeError("unforeseen")

    results = await asyncio.gather(
        store.write(put("a")), store.write(half), store.write(put("a")), store.write(put("b")), return_exceptions=True
    )
    assert results[0] == "a"
    assert isinstance(results[1], RuntimeError)
    assert isinstance(results[2], Exception), "the same key again"
    assert results[3] == "b"
    assert await store.read(names) == {"a", "b"}


async def test_a_caller_that_gives_up_does_not_disturb_the_writer(store: Store) -> None:
    task = asyncio.create_task(store.write(put("a")))
    await asyncio.sleep(0)
    task.cancel()
    assert await store.write(put("b")) == "b"


async def test_a_second_process_is_kept_out(store: Store, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use"):
        await opened(tmp_path / "record.db")


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    made = await opened(tmp_path / "record.db")
    waiting = asyncio.create_task(made.write(put("a")))
    await asyncio.sleep(0)
    await made.close()
    assert await waiting == "a", "what was queued is committed"
    with pytest.raises(ShuttingDownError):
        await made.write(put("b"))
    with pytest.raises(ShuttingDownError):
        await made.read(names)


async def test_the_log_is_synchronised_at_every_commit(store: Store) -> None:
    assert await store.read(lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()) == "wal"
    assert await store.write(lambda tx: tx.connection.execute(text("PRAGMA synchronous")).scalar()) == 2


def test_the_migrations_make_the_schema_of_the_code() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_a_migrated_store_stays_as_it_is() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection)
        put("a")(Transaction(connection, 0, Micros(1)))
        migrate(connection)
        assert names(connection) == {"a"}
    engine.dispose()


async def test_request_ids_are_honoured_for_a_day(tmp_path: Path) -> None:
    clock = Clock()
    store = await opened(tmp_path / "record.db", clock)
    once = Once(request_id="x", method="m", digest=b"1")
    await store.write(lambda tx: requests.remember(tx, once, b"answer"))
    clock.now = Micros(1 + requests.KEPT)
    await store.write(requests.forget)
    assert await store.read(lambda connection: requests.first_answer(connection, once)) == b"answer"
    other = Once(request_id="x", method="m", digest=b"2")
    with pytest.raises(RequestIdReusedError):
        await store.read(lambda connection: requests.first_answer(connection, other))
    clock.now = Micros(2 + requests.KEPT)
    await store.write(requests.forget)
    assert await store.read(lambda connection: requests.first_answer(connection, once)) is None
    await store.close()
