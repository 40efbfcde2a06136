"""The store: commits, isolation of failures, numbers, the end."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select

from gateway_svc import requests, schema
from gateway_svc.store import Store, Transaction
from gateway_svc.types import Micros, Once
from tests.fakes.gateway import record_of
from whippletree.errors import NotFoundError, RequestIdReusedError, ShuttingDownError


class Clock:
    """Microseconds as the test says."""

    def __init__(self) -> None:
        self.now = Micros(1)

    def __call__(self) -> Micros:
        return self.now


async def opened(folder: Path, clock: Clock | None = None) -> Store:
    where = record_of(folder)
    return await Store.open(where, synchronous="FULL", capacity=100, readers=2, clock=clock or Clock())


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store."""
    made = await opened(tmp_path)
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


async def test_patient_writes_go_with_the_next_that_is_not_in_their_order(store: Store) -> None:
    batches: list[int] = []
    store.on_batch(lambda operations, seconds: batches.append(operations))
    patient = [asyncio.create_task(store.write(put(name), patience=3600.0)) for name in "abc"]
    await asyncio.sleep(0)
    assert store.queued == 3
    assert await store.write(put("d")) == "d"
    assert await asyncio.gather(*patient) == ["a", "b", "c"]
    assert (batches, store.queued) == ([4], 0)


async def test_patience_ends_by_itself_and_that_of_the_most_hurried_counts(store: Store) -> None:
    slow = asyncio.create_task(store.write(put("a"), patience=3600.0))
    await asyncio.sleep(0)
    assert await store.write(put("b"), patience=0.001) == "b"
    assert await slow == "a"


async def test_patient_writes_are_committed_when_the_store_closes(tmp_path: Path) -> None:
    made = await opened(tmp_path)
    patient = asyncio.create_task(made.write(put("a"), patience=3600.0))
    await asyncio.sleep(0)
    await made.close()
    assert await patient == "a"


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


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    made = await opened(tmp_path)
    waiting = asyncio.create_task(made.write(put("a")))
    await asyncio.sleep(0)
    await made.close()
    assert await waiting == "a", "what was queued is committed"
    with pytest.raises(ShuttingDownError):
        await made.write(put("b"))
    with pytest.raises(ShuttingDownError):
        await made.read(names)


async def test_request_ids_are_honoured_for_a_day(tmp_path: Path) -> None:
    clock = Clock()
    store = await opened(tmp_path, clock)
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


async def test_numbers_have_no_gaps_and_go_on_after_a_restart(tmp_path: Path) -> None:
    def give(tx: Transaction) -> tuple[int, int]:
        return tx.next_change(), tx.next_sequence()

    def broken(tx: Transaction) -> None:
        give(tx)
        raise RuntimeError("unforeseen")

    store = await opened(tmp_path)
    assert await store.write(give) == (1, 1)
    with pytest.raises(RuntimeError):
        await store.write(broken)
    assert await store.write(give) == (2, 2)
    await store.close()
    store = await opened(tmp_path)
    assert store.change == 2
    assert await store.write(give) == (3, 3)
    await store.close()


async def test_a_query_sees_one_snapshot(store: Store) -> None:
    inside, written = threading.Event(), threading.Event()

    def twice(connection: Connection) -> tuple[set[str], set[str]]:
        first = names(connection)
        inside.set()
        assert written.wait(20)
        return first, names(connection)

    reading = asyncio.create_task(store.read(twice))
    assert await asyncio.to_thread(inside.wait, 20)
    await store.write(put("a"))
    written.set()
    assert await reading == (set(), set())
    assert await store.read(names) == {"a"}
