"""Runs and models: few and asked for by every call, so they are held in memory and written through to the store.

In: commands of the control plane. Out: durable runs and models. Reads come from memory and never wait. A command whose
caller goes away is carried out whole: what is committed is in memory too. What another replica committed is read by
`refresh`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, Row, delete, insert, select, update

from gateway_svc import facts, remembered, requests, schema
from gateway_svc.calls import sampling_from
from gateway_svc.schema import models, runs
from gateway_svc.store import Store, Transaction, numbers
from gateway_svc.types import Engine, EngineKind, Micros, Model, ModelName, Once, Phase, Role, Run, RunId
from whippletree.errors import AlreadyExistsError, InvalidFieldError, NotFoundError, WrongStateError

log = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE = 1.0
"""Seconds before another try to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All runs and models as they stood after the change with this number."""

    runs: Mapping[RunId, Run]
    models: Mapping[ModelName, Model]
    number: int


class Catalog:
    """All runs, by creation, and all models, by name. Invariant: equals the store's committed rows, with several
    replicas those at the last `refresh`. `moved` is called with every run whose phase may be another one."""

    def __init__(self, store: Store, found: Found, moved: Callable[[Run], None] = lambda run: None) -> None:
        self._store, self._moved = store, moved
        self.runs, self.models, self._number = dict(found.runs), dict(found.models), found.number
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lock, self._told = asyncio.Lock(), asyncio.Event()
        store.on_commit(self._committed)

    @classmethod
    async def load(cls, store: Store, moved: Callable[[Run], None] = lambda run: None) -> "Catalog":
        """Read everything; `moved` is called with every run, then and whenever its phase may be another one."""
        made = cls(store, await store.read(_load), moved)
        for run in made.runs.values():
            moved(run)
        return made

    async def refresh(self) -> None:
        """Return when memory holds everything that was committed before, by whichever replica."""
        if not self._store.url or (await self._store.read(numbers)).catalog == self._number:
            return
        async with self._lock:  # a command of this process is either read, or not yet in memory
            found = await self._store.read(_load)
            gone = [run for run_id, run in self.runs.items() if run_id not in found.runs]
            self.runs, self.models, self._number = dict(found.runs), dict(found.models), found.number
            for run in self.runs.values():
                self._moved(run)
            for run in gone:
                self._moved(replace(run, phase=Phase.ROLLOUT))  # what is held finds that its rollout is gone

    async def follow(self) -> None:
        """Refresh whenever another replica changed something, for ever: what is held there waits for it."""
        while True:
            await self._told.wait()
            self._told.clear()
            try:
                await self.refresh()
            except Exception as error:  # whatever it was: without this task what is held would not hear of changes
                log.warning("runs and models could not be read: %s", error)
                await asyncio.sleep(PAUSE)
                self._told.set()

    def run(self, run_id: RunId) -> Run:
        """One run. Raises NotFoundError."""
        if run_id not in self.runs:
            raise NotFoundError(f"runs/{run_id} does not exist", name=f"runs/{run_id}")
        return self.runs[run_id]

    def model(self, name: ModelName) -> Model:
        """One model. Raises NotFoundError."""
        if name not in self.models:
            raise NotFoundError(f"models/{name} is not registered", name=f"models/{name}")
        return self.models[name]

    async def create_run(self, run: Run, once: Once | None) -> tuple[Run, bool]:
        """Store a run; True = it was there. Raises AlreadyExistsError with other content."""

        async def carry_out() -> tuple[Run, bool]:
            made, existed = await self._store.write(lambda tx: _create_run(tx, run, once))
            self.runs.setdefault(made.run_id, made)
            return made, existed

        return await self._whole(carry_out())

    def forget_run(self, run_id: RunId) -> None:
        """A run was deleted from the store."""
        self.runs.pop(run_id, None)

    async def set_phase(self, run_id: RunId, phase: Phase, once: Once | None, then: Callable[[], None]) -> None:
        """Store a run's phase and call `then`; a repeat changes nothing. Raises NotFoundError."""
        self.run(run_id)

        async def carry_out() -> None:
            if await self._store.write(lambda tx: _set_phase(tx, run_id, phase, once)):
                self.runs[run_id] = replace(self.run(run_id), phase=phase)  # it may have been deleted meanwhile
                then()

        await self._whole(carry_out())

    async def register(self, model: Model, once: Once | None) -> tuple[Model, bool]:
        """Store a model, or replace it; its weights stay unless new ones are named. True = it was there."""

        async def carry_out() -> tuple[Model, bool]:
            made, existed, new = await self._store.write(lambda tx: _register(tx, model, once))
            if new:
                self.models[made.name] = made
            return made, existed

        return await self._whole(carry_out())

    async def published(self, once: Once | None) -> bool:
        """Whether this very request published its weights before. Raises RequestIdReusedError."""
        return await self._store.read(lambda connection: requests.first_answer(connection, once)) is not None

    async def set_weights(self, name: ModelName, weight_version: str, weights_path: str, once: Once | None) -> Model:
        """Store which weights a model has from now on."""
        async with self._lock:
            model = await self._store.write(lambda tx: _set_weights(tx, name, weight_version, weights_path, once))
            self.models[name] = model
            return model

    async def delete_models(self, name: ModelName | None, once: Once | None) -> int:
        """Remove one model, or all; how many there were. A repeat gives the first answer and removes nothing."""

        async def carry_out() -> int:
            count, new = await self._store.write(lambda tx: _delete_models(tx, name, once))
            gone = () if not new else tuple(self.models) if name is None else (name,)
            for one in gone:
                self.models.pop(one, None)
            return count

        return await self._whole(carry_out())

    async def _whole(self, command: Coroutine[Any, Any, T]) -> T:
        """The command's result; it goes on where the caller goes away."""
        task = asyncio.create_task(self._alone(command))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def _alone(self, command: Coroutine[Any, Any, T]) -> T:
        async with self._lock:
            return await command

    def _committed(self, change: int) -> None:
        if self._store.url and self._store.latest.catalog != self._number:
            self._told.set()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone


def _create_run(tx: Transaction, run: Run, once: Once | None) -> tuple[Run, bool]:
    answer = requests.first_answer(tx.connection, once)
    row = tx.connection.execute(select(runs).where(runs.c.run_id == run.run_id)).first()
    if row is None and answer is not None:
        raise NotFoundError(f"runs/{run.run_id} was deleted", name=f"runs/{run.run_id}")
    if row is None and facts.has(tx.connection, f"deleting {run.run_id}"):
        raise WrongStateError(f"runs/{run.run_id} is being deleted", name=f"runs/{run.run_id}")
    if row is None:
        tx.change_catalog()
        inserted = tx.connection.execute(insert(runs), _run_row(replace(run, create_time=tx.now))).inserted_primary_key
        assert inserted is not None
        made, existed = replace(run, create_time=tx.now, ordinal=inserted[0]), False
    else:
        made, existed = _run(row), True
        if replace(made, create_time=run.create_time, ordinal=run.ordinal, phase=run.phase) != run:
            name = f"runs/{run.run_id}"
            raise AlreadyExistsError(f"{name} exists with other content", name=name)
    if answer is not None:
        existed, phase = remembered.run(answer)
        return replace(made, phase=phase or made.phase), existed
    requests.remember(tx, once, remembered.of_run(existed, made.phase))
    return made, existed


def _set_phase(tx: Transaction, run_id: RunId, phase: Phase, once: Once | None) -> bool:
    """False = a repeat."""
    if requests.first_answer(tx.connection, once) is not None:
        return False
    tx.change_catalog()
    tx.connection.execute(update(runs).where(runs.c.run_id == run_id).values(phase=phase))
    requests.remember(tx, once, b"null")
    return True


def _register(tx: Transaction, model: Model, once: Once | None) -> tuple[Model, bool, bool]:
    """(as stored, whether it was there, whether anything was done)."""
    row = tx.connection.execute(select(models).where(models.c.name == model.name)).first()
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        return *_registered_before(model, row, answer), False
    made = replace(model, create_time=tx.now)
    if row is not None:
        stored = _model(row)
        made = replace(made, create_time=stored.create_time)
        if not model.weight_version and stored.weight_version:
            made = replace(made, weight_version=stored.weight_version, weights_path=stored.weights_path)
        tx.connection.execute(update(models).where(models.c.name == model.name).values(_model_row(made)))
    else:
        tx.connection.execute(insert(models), _model_row(made))
    tx.change_catalog()
    requests.remember(tx, once, remembered.of_model(row is not None, made))
    return made, row is not None, True


def _registered_before(asked: Model, row: Row[Any] | None, answer: bytes) -> tuple[Model, bool]:
    """The first answer of a register."""
    existed, known = remembered.model(answer)
    if "role" in known:
        known["role"] = Role(known["role"])
    if "engines" in known:
        known["engines"] = _engines(known["engines"])
    return replace(_model(row) if row is not None else asked, **known), existed


def _delete_models(tx: Transaction, name: ModelName | None, once: Once | None) -> tuple[int, bool]:
    """(how many there were, whether anything was done)."""
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        return orjson.loads(answer), False
    query, leased = delete(models), delete(schema.engines)
    if name is not None:
        query, leased = query.where(models.c.name == name), leased.where(schema.engines.c.model == name)
    tx.change_catalog()
    count = tx.connection.execute(query).rowcount
    tx.connection.execute(leased)
    requests.remember(tx, once, orjson.dumps(count))
    return count, True


def _set_weights(tx: Transaction, name: ModelName, weight_version: str, weights_path: str, once: Once | None) -> Model:
    answer = requests.first_answer(tx.connection, once)
    row = tx.connection.execute(select(models).where(models.c.name == name)).first()
    if row is None:
        raise NotFoundError(f"models/{name} is not registered", name=f"models/{name}")
    values = {"weight_version": weight_version, "weights_path": weights_path}
    tx.change_catalog()
    tx.connection.execute(update(models).where(models.c.name == name).values(values))
    if answer is None:
        requests.remember(tx, once, b"null")  # the request itself says which weights
    return replace(_model(row), weight_version=weight_version, weights_path=weights_path)


def check_model(model: Model) -> None:
    """Raise InvalidFieldError where a model cannot serve."""
    if len({engine.address for engine in model.engines}) != len(model.engines):
        raise InvalidFieldError("an engine is named twice", field="model.engines")
    if model.context_length < 1:
        raise InvalidFieldError("context_length is not positive", field="model.context_length")
    if model.vocabulary_size < 1:
        raise InvalidFieldError("vocabulary_size is not positive", field="model.vocabulary_size")
    if len(model.weight_version) > 64:
        raise InvalidFieldError("weight_version is longer than 64 characters", field="model.weight_version")


def _load(connection: Connection) -> Found:
    found_runs = [_run(row) for row in connection.execute(select(runs).order_by(runs.c.ordinal))]
    found_models = [_model(row) for row in connection.execute(select(models))]
    return Found(
        runs={run.run_id: run for run in found_runs},
        models={model.name: model for model in found_models},
        number=numbers(connection).catalog,
    )


def _run_row(run: Run) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "policy": run.policy,
        "train_sampling": orjson.dumps(run.train_sampling).decode(),
        "eval_sampling": orjson.dumps(run.eval_sampling).decode(),
        "max_hold": run.max_hold,
        "phase": run.phase,
        "create_time": run.create_time,
    }


def _run(row: Row[Any]) -> Run:
    return Run(
        run_id=RunId(row.run_id),
        policy=ModelName(row.policy),
        train_sampling=sampling_from(orjson.loads(row.train_sampling)),
        eval_sampling=sampling_from(orjson.loads(row.eval_sampling)),
        max_hold=Micros(row.max_hold),
        phase=Phase(row.phase),
        create_time=Micros(row.create_time),
        ordinal=row.ordinal,
    )


def _model_row(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "role": model.role,
        "engines": orjson.dumps(model.engines).decode(),
        "weight_version": model.weight_version,
        "weights_path": model.weights_path,
        "tokenizer_path": model.tokenizer_path,
        "context_length": model.context_length,
        "vocabulary_size": model.vocabulary_size,
        "create_time": model.create_time,
    }


def _model(row: Row[Any]) -> Model:
    return Model(
        name=ModelName(row.name),
        role=Role(row.role),
        engines=_engines(orjson.loads(row.engines)),
        weight_version=row.weight_version,
        weights_path=row.weights_path,
        tokenizer_path=row.tokenizer_path,
        context_length=row.context_length,
        vocabulary_size=row.vocabulary_size,
        create_time=Micros(row.create_time),
    )


def _engines(stored: list[str | dict[str, Any]]) -> tuple[Engine, ...]:
    return tuple(
        Engine(address=one)
        if isinstance(one, str)
        else Engine(address=one["address"], kind=EngineKind(one["kind"]), max_in_flight=one["max_in_flight"])
        for one in stored
    )
