"""All engines: which of them takes a generation, how much each has to do, what it was seen with.

In: models, engines with a lease, and what engines answered. Out: a place at an engine that has been seen with the
model's weights. An engine that failed is looked at again before it gets a generation; one with other weights loads the
right ones first.
"""

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway_svc.engines.choice import Option, Rank, choose
from gateway_svc.engines.client import Clients, EngineError
from gateway_svc.engines.leased import Leased
from gateway_svc.phase import Admission, Gates, nobody
from gateway_svc.types import Engine, Micros, Model, ModelName
from whippletree.errors import OverloadedError

log = logging.getLogger(__name__)

RETRY_AFTER = 5.0
"""Seconds after which a caller that found no place to wait may come again."""
FAILURES = 2
"""Checks in a row without an answer after which an engine is unreachable; a failed generation is enough by itself."""


class GatesClosedError(Exception):
    """A generation that waits for a place has to leave: weights change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Generations at once at an engine that names no limit, 0 = any number; generations of a model that may wait for a
    place; how much above its share of the load a rollout's own engine is left for another."""

    max_in_flight: int
    max_waiting: int
    spread: float


class Pool:
    """All engines by address. `_verified[address]` = the weight version that it was seen with."""

    def __init__(
        self, clients: Clients, leased: Leased, gates: Gates, limits: Limits, clock: Callable[[], Micros]
    ) -> None:
        self._clients, self._leased, self._gates, self._limits, self._clock = clients, leased, gates, limits, clock
        self._in_flight: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._verified: dict[str, str] = {}
        self._seen: dict[str, Micros] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._lines: defaultdict[ModelName, deque[asyncio.Event]] = defaultdict(deque)

    def engines(self, model: Model) -> list[Engine]:
        """The engines that may get generations of this model."""
        return [
            *model.engines,
            *(one.engine for one in self._leased.of(model.name) if not self._leased.expired(one)),
        ]

    def rank(self, model: Model, address: str) -> Rank:
        """How willingly this engine is taken."""
        if self._failures[address] >= FAILURES:
            return Rank.UNREACHABLE
        return Rank.READY if self._has(model, address) else Rank.BEHIND

    @asynccontextmanager
    async def place(
        self, model: Model, affinity: str, avoid: frozenset[str], admission: Admission
    ) -> AsyncIterator[Engine]:
        """Count a generation at an engine while the block runs; waits for room where all are full.

        Raises EngineError where the model has no engine, OverloadedError where too many wait already, GatesClosedError
        where weights are about to change while it waits.
        """
        engine = None if self._lines[model.name] else self._choose(model, affinity, avoid)
        if engine is None:
            engine = await self._wait(model, affinity, avoid, admission)
        self._in_flight[engine.address] += 1
        try:
            yield engine
        finally:
            self._in_flight[engine.address] -= 1
            self.call()

    def call(self) -> None:
        """Let those that wait for a place look: an engine has room, or is there again."""
        for line in self._lines.values():
            _next(line)

    def doubt(self, address: str) -> None:
        """Look at this engine's weights before it gets another generation."""
        self._verified.pop(address, None)

    def answered(self, address: str) -> None:
        """It gave a good answer."""
        self._failures.pop(address, None)
        self._seen[address] = self._clock()

    def missed(self, address: str) -> None:
        """It did not answer a check."""
        self._failures[address] += 1

    def failed(self, address: str) -> None:
        """It gave no good answer to a generation."""
        self.doubt(address)
        self._failures[address] = FAILURES

    async def check(self, engine: Engine) -> None:
        """Ask whether it is there."""
        try:
            await self._clients[engine.kind].check(engine.address)
        except EngineError as error:
            self.missed(engine.address)
            if self._failures[engine.address] == FAILURES:
                log.warning("engine %s: %s", engine.address, error)
        else:
            self.answered(engine.address)
            self.call()

    async def ready(self, model: Model, engine: Engine) -> None:
        """Return when the engine has the model's weights, loading them where it must. Raises EngineError."""
        if self._has(model, engine.address):
            return
        async with self._locks[engine.address]:
            if self._has(model, engine.address):
                return
            client = self._clients[engine.kind]
            found = await client.weight_version(engine.address)
            if found != model.weight_version:
                log.info("engine %s has weights %s instead of %s", engine.address, found, model.weight_version)
                await client.load_weights(engine.address, model.weights_path, model.weight_version)
            self._verified[engine.address] = model.weight_version

    async def publish(self, engine: Engine, weights_path: str, weight_version: str) -> None:
        """Load new weights into one engine. Raises EngineError, and then the engine is in doubt."""
        self.doubt(engine.address)
        async with self._locks[engine.address]:
            await self._clients[engine.kind].load_weights(engine.address, weights_path, weight_version)
            self._verified[engine.address] = weight_version

    def weights_of(self, address: str) -> str:
        """The weight version the engine was seen with; empty = unknown."""
        return self._verified.get(address, "")

    def seen(self, address: str) -> Micros | None:
        """When it last gave a good answer; None = not yet."""
        return self._seen.get(address)

    def in_flight(self, address: str) -> int:
        """Generations there now, from here."""
        return self._in_flight[address]

    def _has(self, model: Model, address: str) -> bool:
        if not model.weight_version or not model.weights_path:
            return True
        return self._verified.get(address) == model.weight_version

    def _choose(self, model: Model, affinity: str, avoid: frozenset[str]) -> Engine | None:
        options = [
            Option(
                engine=engine,
                rank=Rank.UNREACHABLE if engine.address in avoid else self.rank(model, engine.address),
                in_flight=self._in_flight[engine.address],
                limit=engine.max_in_flight or self._limits.max_in_flight,
            )
            for engine in self.engines(model)
        ]
        if not options:
            raise EngineError(f"models/{model.name} has no engine")
        return choose(options, affinity, self._limits.spread)

    async def _wait(self, model: Model, affinity: str, avoid: frozenset[str], admission: Admission) -> Engine:
        """Stand in line until it is this generation's turn and an engine has room."""
        line = self._lines[model.name]
        if self._gates.closed(admission):
            raise GatesClosedError
        if len(line) >= self._limits.max_waiting:
            raise OverloadedError(f"all engines of models/{model.name} are full", retry_after=RETRY_AFTER)
        turn = asyncio.Event()
        line.append(turn)
        admission.told = turn.set
        try:
            while True:
                await turn.wait()
                turn.clear()
                if self._gates.closed(admission):
                    raise GatesClosedError
                if line[0] is turn and (engine := self._choose(model, affinity, avoid)) is not None:
                    return engine
        finally:
            admission.told = nobody
            line.remove(turn)
            _next(line)


def _next(line: deque[asyncio.Event]) -> None:
    if line:
        line[0].set()
