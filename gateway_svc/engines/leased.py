"""Engines that come and go by themselves: registered with a lease, kept by heartbeats, durable.

In: registrations and heartbeats, at whichever gateway. Out: the engines of a model, and whether a lease has expired.
A lease runs anew, by this process's clock, whenever its engine's `heartbeat_time` is seen to differ, so clocks of
machines are never compared and a gateway that was started again gives everybody one lease.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update

from gateway_svc import requests
from gateway_svc.schema import engines, models
from gateway_svc.store import Store, Transaction
from gateway_svc.types import Engine, EngineKind, LeasedEngine, Micros, ModelName, Once
from whippletree.errors import NotFoundError

FORGOTTEN = Micros(3600 * 1_000_000)
"""Without a heartbeat for so long an engine is removed when another registers."""

Key = tuple[ModelName, str]


class Leased:
    """All engines with a lease. Invariant: equals the store's rows, with several gateways those at the last refresh."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._engines: dict[Key, LeasedEngine] = {}
        self._of: dict[ModelName, list[LeasedEngine]] = {}
        self._until: dict[Key, float] = {}
        self._lock = asyncio.Lock()

    def of(self, model: ModelName) -> Sequence[LeasedEngine]:
        """The engines of a model by id, expired ones too."""
        return self._of.get(model, ())

    def expired(self, engine: LeasedEngine) -> bool:
        """Whether no heartbeat came for the time of its lease."""
        return self._clock() >= self._until[engine.model, engine.engine_id]

    async def refresh(self) -> None:
        """Read what other gateways were told."""
        async with self._lock:
            found = await self._store.read(_load)
            for key in self._engines.keys() - {(one.model, one.engine_id) for one in found}:
                self._forget(key)
            for one in found:
                self._see(one)

    async def register(self, engine: LeasedEngine, once: Once | None) -> tuple[LeasedEngine, bool]:
        """Store an engine, or replace it; True = it was there. Raises NotFoundError: no such model."""
        async with self._lock:
            made, existed = await self._store.write(lambda tx: _register(tx, engine, once))
            self._see(made)
            return made, existed

    async def heartbeat(self, model: ModelName, engine_id: str) -> LeasedEngine:
        """Renew a lease. Raises NotFoundError."""
        async with self._lock:
            found = await self._store.write(lambda tx: _heartbeat(tx, model, engine_id))
            self._see(found)
            return found

    async def delete(self, model: ModelName, engine_id: str, once: Once | None) -> None:
        """Remove an engine, if it is there and this is no repeat."""
        async with self._lock:
            if await self._store.write(lambda tx: _delete(tx, model, engine_id, once)):
                self._forget((model, engine_id))

    def _see(self, engine: LeasedEngine) -> None:
        key = (engine.model, engine.engine_id)
        if self._engines.get(key) != engine:
            self._engines[key], self._until[key] = engine, self._clock() + engine.lease / 1e6
            self._sort(engine.model)

    def _forget(self, key: Key) -> None:
        if self._engines.pop(key, None) is not None:
            del self._until[key]
            self._sort(key[0])

    def _sort(self, model: ModelName) -> None:
        self._of[model] = [one for (name, _), one in sorted(self._engines.items()) if name == model]


def _load(connection: Connection) -> list[LeasedEngine]:
    return [_engine(row) for row in connection.execute(select(engines))]


def _register(tx: Transaction, engine: LeasedEngine, once: Once | None) -> tuple[LeasedEngine, bool]:
    row = tx.connection.execute(select(engines).where(*_is(engine.model, engine.engine_id))).first()
    if (answer := requests.first_answer(tx.connection, once)) is not None and row is not None:
        return _engine(row), orjson.loads(answer)
    if answer is not None or not tx.connection.execute(select(models).where(models.c.name == engine.model)).first():
        raise NotFoundError(f"{engine.name} does not exist", name=engine.name)
    tx.connection.execute(delete(engines).where(engines.c.heartbeat_time < tx.now - FORGOTTEN))
    values = {
        "address": engine.engine.address,
        "kind": engine.engine.kind,
        "max_in_flight": engine.engine.max_in_flight,
        "lease": engine.lease,
        "heartbeat_time": tx.now,
    }
    tx.connection.execute(delete(engines).where(*_is(engine.model, engine.engine_id)))
    tx.connection.execute(insert(engines), values | {"model": engine.model, "engine_id": engine.engine_id})
    requests.remember(tx, once, orjson.dumps(row is not None))
    return _engine(tx.connection.execute(select(engines).where(*_is(engine.model, engine.engine_id))).one()), bool(row)


def _heartbeat(tx: Transaction, model: ModelName, engine_id: str) -> LeasedEngine:
    row = tx.connection.execute(select(engines).where(*_is(model, engine_id))).first()
    if row is None:
        name = f"models/{model}/engines/{engine_id}"
        raise NotFoundError(f"{name} is not registered", name=name)
    now = max(tx.now, row.heartbeat_time + 1)
    tx.connection.execute(update(engines).where(*_is(model, engine_id)).values(heartbeat_time=now))
    return _engine(tx.connection.execute(select(engines).where(*_is(model, engine_id))).one())


def _delete(tx: Transaction, model: ModelName, engine_id: str, once: Once | None) -> bool:
    if requests.first_answer(tx.connection, once) is not None:
        return False
    tx.connection.execute(delete(engines).where(*_is(model, engine_id)))
    requests.remember(tx, once, b"null")
    return True


def _is(model: ModelName, engine_id: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return engines.c.model == model, engines.c.engine_id == engine_id


def _engine(row: Row[Any]) -> LeasedEngine:
    return LeasedEngine(
        model=ModelName(row.model),
        engine_id=row.engine_id,
        engine=Engine(address=row.address, kind=EngineKind(row.kind), max_in_flight=row.max_in_flight),
        lease=Micros(row.lease),
        heartbeat_time=Micros(row.heartbeat_time),
    )
