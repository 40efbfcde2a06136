"""Which engine takes a generation, and that it has the right weights.

In: models and what their engines answered. Out: an engine that has been seen with the model's weights. After a failed
connection an engine is looked at again before it gets a generation; one with other weights loads the right ones
first.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b

from gateway_svc.engines.sglang import EngineError, Sglang
from gateway_svc.types import Model

log = logging.getLogger(__name__)


def choose(engines: Sequence[str], in_flight: Mapping[str, int], avoid: frozenset[str], affinity: str) -> str:
    """The least loaded engine outside `avoid` (of all, where none is left); of equals the one `affinity` hashes to."""
    left = [engine for engine in engines if engine not in avoid] or list(engines)
    return min(left, key=lambda engine: (in_flight.get(engine, 0), blake2b(f"{affinity} {engine}".encode()).digest()))


class Pool:
    """All engines by address. `verified[address]` = the weight version that it was seen with."""

    def __init__(self, client: Sglang) -> None:
        self._client = client
        self._in_flight: Counter[str] = Counter()
        self._verified: dict[str, str] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def pick(self, model: Model, avoid: frozenset[str], affinity: str) -> str:
        """An engine of the model. Raises EngineError where it has none."""
        if not model.engines:
            raise EngineError(f"models/{model.name} has no engine")
        return choose(model.engines, self._in_flight, avoid, affinity)

    @contextmanager
    def using(self, address: str) -> Iterator[None]:
        """Count a generation at an engine, from the moment that the engine was picked."""
        self._in_flight[address] += 1
        try:
            yield
        finally:
            self._in_flight[address] -= 1

    def doubt(self, address: str) -> None:
        """Look at this engine's weights before it gets another generation."""
        self._verified.pop(address, None)

    async def ready(self, model: Model, address: str) -> None:
        """Return when the engine has the model's weights, loading them where it must. Raises EngineError."""
        if not model.weight_version or not model.weights_path or self._verified.get(address) == model.weight_version:
            return
        async with self._locks[address]:
            if self._verified.get(address) == model.weight_version:
                return
            found = await self._client.weight_version(address)
            if found != model.weight_version:
                log.info("engine %s has weights %s instead of %s: loading", address, found, model.weight_version)
                await self._client.load_weights(address, model.weights_path, model.weight_version)
            self._verified[address] = model.weight_version

    async def publish(self, address: str, weights_path: str, weight_version: str) -> None:
        """Load new weights into one engine. Raises EngineError, and then the engine is in doubt."""
        self.doubt(address)
        async with self._locks[address]:
            await self._client.load_weights(address, weights_path, weight_version)
            self._verified[address] = weight_version

    def weights_of(self, address: str) -> str:
        """The weight version the engine was seen with; empty = unknown."""
        return self._verified.get(address, "")
