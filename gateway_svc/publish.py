"""New weights for a model: hold, drain or interrupt, load into every engine, remember, admit again.

In: a version, a directory. Out: the model with its new version, durable before anything is sampled by it. Where no
engine has the new weights the old version stays, and engines that may have changed are looked at before their next
generation.
"""

import asyncio
import logging
from dataclasses import replace

from gateway_svc.catalog import Catalog
from gateway_svc.engines.choice import Rank
from gateway_svc.engines.client import EngineError
from gateway_svc.engines.pool import Pool
from gateway_svc.engines.watch import Watch
from gateway_svc.phase import Gates
from gateway_svc.types import Model, ModelName, Once
from whippletree import tasks
from whippletree.errors import AlreadyExistsError, EngineUnavailableError, InvalidFieldError, WhippletreeError

log = logging.getLogger(__name__)


class Publisher:
    """One publish per model at a time; one that has begun goes on when its caller goes away."""

    def __init__(self, catalog: Catalog, gates: Gates, pool: Pool, watch: Watch) -> None:
        self._catalog, self._gates, self._pool, self._watch = catalog, gates, pool, watch
        self._locks: dict[ModelName, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Model]] = set()

    async def publish(
        self, name: ModelName, weight_version: str, weights_path: str, once: Once | None, interrupt: bool
    ) -> Model:
        """With `interrupt` generations in flight leave their engines at once, and go on by the new weights.

        Raises InvalidFieldError (also: every engine refused), NotFound-, AlreadyExists-, EngineUnavailableError.
        """
        if not weight_version or len(weight_version) > 64:
            raise InvalidFieldError("weight_version is empty or longer than 64 characters", field="weight_version")
        if not weights_path:
            raise InvalidFieldError("weights_path is missing", field="weights_path")
        await self._catalog.refresh()
        model = self._catalog.model(name)
        if await self._catalog.published(once):  # newer weights may be in place: they stay
            return replace(model, weight_version=weight_version, weights_path=weights_path)
        task = asyncio.create_task(self._publish(name, weight_version, weights_path, once, interrupt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what still runs."""
        await tasks.end(*self._tasks)

    async def _publish(
        self, name: ModelName, weight_version: str, weights_path: str, once: Once | None, interrupt: bool
    ) -> Model:
        async with self._locks.setdefault(name, asyncio.Lock()):
            model = self._catalog.model(name)
            if model.weight_version == weight_version:
                if model.weights_path != weights_path:
                    text = f"models/{name} has version {weight_version} from {model.weights_path}"
                    raise AlreadyExistsError(text, name=f"models/{name}")
                return await self._catalog.set_weights(name, weight_version, weights_path, once)
            key = f"models/{name}"
            self._gates.close(key, interrupt=interrupt)
            try:
                async with self._gates.empty(key, interrupt=interrupt):
                    await self._catalog.refresh()  # another replica may have published meanwhile
                    model = self._catalog.model(name)
                    if (model.weight_version, model.weights_path) != (weight_version, weights_path):
                        await self._load(model, weights_path, weight_version)
                    done = await self._catalog.set_weights(name, weight_version, weights_path, once)
                    log.info("models/%s has weights %s", name, weight_version)
                    return done
            finally:
                self._gates.open(key)
                self._watch.look()

    async def _load(self, model: Model, weights_path: str, weight_version: str) -> None:
        """Load into all engines that answer; enough if one has them, for the others catch up before they are used."""
        engines = self._pool.engines(model)
        there = [one for one in engines if self._pool.rank(model, one.address) != Rank.UNREACHABLE] or engines
        problems = [
            problem
            for problem in await asyncio.gather(
                *(self._pool.publish(engine, weights_path, weight_version) for engine in there),
                return_exceptions=True,
            )
            if problem is not None
        ]
        for problem in problems:
            if not isinstance(problem, EngineError):
                raise problem
            log.warning("models/%s, weights %s: %s", model.name, weight_version, problem)
        if len(problems) == len(there):
            for engine in there:
                self._pool.doubt(engine.address)
            raise _failure(model, weight_version, problems)


def _failure(model: Model, weight_version: str, problems: list[BaseException]) -> WhippletreeError:
    text = f"no engine of models/{model.name} loaded weights {weight_version}"
    if problems:
        text += f": {problems[0]}"
    if problems and all(isinstance(problem, EngineError) and problem.refused for problem in problems):
        return InvalidFieldError(text, field="weights_path")
    return EngineUnavailableError(text, model=model.name)
