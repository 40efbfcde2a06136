"""Holding and draining: who may send a generation to an engine now.

In: closed keys (`runs/R` while its phase is not ROLLOUT, `models/M` while its weights change) and, with several
replicas, leases. Out: generations admitted when all their keys are open and leased, counted until they end. Between the
check and the count nothing can happen (one loop, no await), so whatever drained a key knows that nothing slips to the
engine.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway_svc.leases import Alone, Leases
from gateway_svc.types import Phase, Run
from gateway_svc.wake import Wake
from whippletree.errors import HeldTooLongError, ShuttingDownError

RETRY_AFTER = 10.0
"""Seconds after which a caller that was held too long may come again."""


class Gates:
    """The gates of all runs and models."""

    def __init__(self, clock: Callable[[], float], leases: Leases | None = None) -> None:
        self._clock, self._leases = clock, leases or Alone()
        self._closed: set[str] = set()
        self._in_flight: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._stopping = False
        self._wake = Wake()

    def close(self, key: str) -> None:
        """Hold what comes from now on."""
        self._closed.add(key)

    def open(self, key: str) -> None:
        """Admit again."""
        self._closed.discard(key)
        self._wake.fire()

    def move(self, run: Run) -> None:
        """Hold or admit this run's generations as its phase says."""
        key = f"runs/{run.run_id}"
        if run.phase == Phase.ROLLOUT:
            self.open(key)
        else:
            self.close(key)

    def look_again(self) -> None:
        """Leases came or went."""
        self._wake.fire()

    def stop(self) -> None:
        """End all holds with SHUTTING_DOWN: callers come again when the gateway is back."""
        self._stopping = True
        self._wake.fire()

    def in_flight(self, key: str) -> int:
        """Admitted and not ended."""
        return self._in_flight[key]

    def held(self, key: str) -> int:
        """Waiting."""
        return self._held[key]

    def counts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """(in flight, held) by key."""
        return self._in_flight, self._held

    async def drained(self, key: str) -> None:
        """Return when nothing of this key is in flight here."""
        await self._wake.until(lambda: not self._in_flight[key])

    @asynccontextmanager
    async def empty(self, key: str) -> AsyncIterator[None]:
        """While the block runs nothing of this key, which must be closed, is in flight at any replica."""
        await self.drained(key)
        async with self._leases.exclusive(key):
            yield

    @asynccontextmanager
    async def admitted(self, keys: Sequence[str], max_hold: float) -> AsyncIterator[float]:
        """Wait until all keys are open, yield the seconds waited. Raises HeldTooLongError after `max_hold` seconds."""
        held = await self._wait(keys, max_hold)
        self._in_flight.update(keys)
        try:
            yield held
        finally:
            self._in_flight.subtract(keys)
            self._wake.fire()

    async def _wait(self, keys: Sequence[str], max_hold: float) -> float:
        if self._open(keys) and not self._stopping:
            return 0.0
        begin = self._clock()
        self._held.update(keys)
        try:
            await self._leases.obtain(keys)
            async with asyncio.timeout(max_hold):
                await self._wake.until(lambda: self._stopping or self._open(keys))
        except TimeoutError as error:
            text = f"held for {max_hold:g} s while weights change"
            raise HeldTooLongError(text, retry_after=RETRY_AFTER) from error
        finally:
            self._held.subtract(keys)
        if self._stopping:
            raise ShuttingDownError("the gateway stops")
        return self._clock() - begin

    def _open(self, keys: Sequence[str]) -> bool:
        return self._closed.isdisjoint(keys) and self._leases.have(keys)
