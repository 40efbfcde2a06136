"""Looks after all engines in the background: whether they answer, whether their leases hold, whether they have their
model's weights.

In: the catalog's models. Out: the pool knows. An engine that is behind catches up here, so that generations find it
ready; while it loads it is in flight of its model, so a publish waits for it and nothing loads old weights after new
ones.
"""

import asyncio
import logging

from gateway_svc.catalog import Catalog
from gateway_svc.engines.choice import Rank
from gateway_svc.engines.client import EngineError
from gateway_svc.engines.leased import Leased
from gateway_svc.engines.pool import Pool
from gateway_svc.phase import Gates
from gateway_svc.types import Engine, ModelName
from whippletree import tasks
from whippletree.errors import HeldTooLongError, WhippletreeError

log = logging.getLogger(__name__)


class Watch:
    """One look every `pause` seconds, and whenever `look` is called; at most one look at each engine at a time."""

    def __init__(self, catalog: Catalog, leased: Leased, pool: Pool, gates: Gates, *, pause: float) -> None:
        self._catalog, self._leased, self._pool, self._gates, self._pause = catalog, leased, pool, gates, pause
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._now = asyncio.Event()

    def look(self) -> None:
        """Engines may have changed: look now."""
        self._now.set()

    async def run(self) -> None:
        """Look, for ever."""
        try:
            while True:
                self._now.clear()
                await self._leases()
                for model in tuple(self._catalog.models.values()):
                    for engine in self._pool.engines(model):
                        if engine.address not in self._looks:
                            self._begin(model.name, engine)
                self._pool.call()
                try:
                    async with asyncio.timeout(self._pause):
                        await self._now.wait()
                except TimeoutError:
                    pass
        finally:
            await tasks.end(*self._looks.values())

    async def _leases(self) -> None:
        try:
            await self._leased.refresh()
        except Exception as error:  # whatever it was: without this watch failed engines would stay out for ever
            log.warning("engines could not be read: %s", error)

    def _begin(self, name: ModelName, engine: Engine) -> None:
        look = self._looks[engine.address] = asyncio.create_task(self._look(name, engine))
        look.add_done_callback(lambda _: self._looks.pop(engine.address, None))

    async def _look(self, name: ModelName, engine: Engine) -> None:
        await self._pool.check(engine)
        if self._rank(name, engine) != Rank.BEHIND:
            return
        try:
            async with self._gates.admitted((f"models/{name}",), 0.0):
                await self._pool.ready(self._catalog.model(name), engine)
        except HeldTooLongError:
            return  # weights change: the publish takes it along
        except (EngineError, WhippletreeError) as error:
            self._pool.missed(engine.address)
            log.warning("engine %s could not catch up: %s", engine.address, error)

    def _rank(self, name: ModelName, engine: Engine) -> Rank | None:
        model = self._catalog.models.get(name)
        return None if model is None else self._pool.rank(model, engine.address)
