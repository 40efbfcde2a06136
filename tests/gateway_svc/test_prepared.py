"""Statements that go to the driver: what comes back, in whose transaction, and which errors."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from sqlalchemy import Connection, bindparam, insert, select
from sqlalchemy.exc import IntegrityError

from gateway_svc.prepared import Prepared
from gateway_svc.schema import facts
from gateway_svc.store import Store, Transaction
from gateway_svc.types import Micros
from tests.fakes.gateway import record_of

PUT = Prepared(insert(facts))
BY_NAME = Prepared(select(facts.c.number, facts.c.text).where(facts.c.name == bindparam("name")).limit(7))


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A new one."""
    made = await Store.open(record_of(tmp_path), synchronous="NORMAL", capacity=10, readers=1, clock=lambda: Micros(1))
    yield made
    await made.close()


def put(tx: Transaction, name: str, number: int) -> None:
    PUT.run(tx.connection, {"name": name, "number": number, "text": "é"})


async def test_rows_come_back_as_tuples_wherever_they_are_read(store: Store) -> None:
    await store.write(lambda tx: put(tx, "x", 1 << 40))
    for read in (store.read, store.look):
        assert await read(lambda connection: BY_NAME.all(connection, {"name": "x"})) == [(1 << 40, "é")]
        assert await read(lambda connection: BY_NAME.first(connection, {"name": "y"})) is None


async def test_an_error_is_the_stores_and_rolls_back(store: Store) -> None:
    def twice(tx: Transaction) -> None:
        put(tx, "x", 1)
        put(tx, "x", 2)

    with pytest.raises(IntegrityError):
        await store.write(twice)
    assert await store.look(lambda connection: BY_NAME.all(connection, {"name": "x"})) == []


async def test_a_look_sees_every_write_that_was_acknowledged(store: Store) -> None:
    for number in range(20):
        await store.write(partial(put, name=f"n{number}", number=number))
        assert await store.look(partial(BY_NAME.first, values={"name": f"n{number}"})) == (number, "é")


async def test_a_look_may_use_both_ways_of_execution_and_leaves_no_transaction(store: Store) -> None:
    def both(connection: Connection) -> tuple[int, int]:
        one = connection.execute(select(facts.c.number).where(facts.c.name == "x")).scalar_one()
        row = BY_NAME.first(connection, {"name": "x"})
        assert row is not None
        return one, row[0]

    for number in (1, 2):
        await store.write(lambda tx: tx.connection.execute(facts.delete().where(facts.c.name == "x")))
        await store.write(partial(put, name="x", number=number))
        assert await store.look(both) == (number, number)


async def test_a_look_that_fails_spoils_no_later_one(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        await store.look(lambda connection: 1 // len(BY_NAME.all(connection, {"name": "none"})))
    assert await store.look(lambda connection: BY_NAME.all(connection, {"name": "none"})) == []
