"""Holding, draining and interrupting: who may send a generation to an engine now.

In: closed keys (`runs/R` while its phase is not ROLLOUT, `models/M` while its weights change) and, with several
replicas, leases. Out: generations admitted when all their keys are open and leased, counted until they end or leave.
Between the check and the count nothing can happen (one loop, no await), so whatever drained a key knows that nothing
slips to the engine.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gateway_svc.leases import Alone, Leases
from gateway_svc.types import Phase, Run
from gateway_svc.wake import Wake
from whippletree.errors import HeldTooLongError, ShuttingDownError

RETRY_AFTER = 10.0
"""Seconds after which a caller that was held too long may come again."""


def nobody() -> None:
    """Whom an admission tells at first."""


@dataclass(slots=True, kw_only=True, eq=False)
class Admission:
    """A generation that passed the gates. `told` is called, in the loop, when one of its keys closes."""

    keys: tuple[str, ...]
    max_hold: float
    held: float = 0.0
    """Seconds, over all its holds."""
    interrupted: bool = False
    """It is to leave the engine with what it has, and come again."""
    told: Callable[[], None] = nobody


class Gates:
    """The gates of all runs and models. Invariant: `_in_flight` counts `_admitted`, once for each key."""

    def __init__(self, clock: Callable[[], float], leases: Leases | None = None) -> None:
        self._clock, self._leases = clock, leases or Alone()
        self._closed: set[str] = set()
        self._admitted: set[Admission] = set()
        self._in_flight: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._stopping = False
        self._wake = Wake()

    def close(self, key: str, *, interrupt: bool = False) -> None:
        """Hold what comes from now on; with `interrupt` also what is in flight here, as soon as it has left."""
        self._closed.add(key)
        self._tell(key, interrupt)
        self._wake.fire()

    def interrupt(self, key: str) -> None:
        """Let what is in flight here leave and come again; its key is closed here, or its lease is being given back."""
        self._tell(key, True)

    def open(self, key: str) -> None:
        """Admit again."""
        self._closed.discard(key)
        self._wake.fire()

    def move(self, run: Run) -> None:
        """Hold or admit this run's generations as its phase says."""
        key = f"runs/{run.run_id}"
        if run.phase == Phase.ROLLOUT:
            self.open(key)
        elif key not in self._closed:
            self.close(key)
        else:
            self._wake.fire()

    def look_again(self) -> None:
        """Leases came or went."""
        for key in tuple(self._in_flight):
            if self._in_flight[key] and not self._leases.have((key,)):
                self._tell(key, False)
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

    def closed(self, admission: Admission) -> bool:
        """Whether it would be held if it came now."""
        return not self._open(admission.keys)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return as soon as `holds()`; it is asked whenever a gate may have moved."""
        await self._wake.until(holds)

    async def drained(self, key: str) -> None:
        """Return when nothing of this key is in flight here."""
        await self._wake.until(lambda: not self._in_flight[key])

    @asynccontextmanager
    async def empty(self, key: str, *, interrupt: bool = False) -> AsyncIterator[None]:
        """While the block runs nothing of this key, which must be closed, is in flight at any replica."""
        await self.drained(key)
        async with self._leases.exclusive(key, interrupt=interrupt):
            yield

    @asynccontextmanager
    async def admitted(self, keys: Sequence[str], max_hold: float) -> AsyncIterator[Admission]:
        """Wait until all keys are open. Raises HeldTooLongError after `max_hold` seconds, ShuttingDownError."""
        admission = Admission(keys=tuple(keys), max_hold=max_hold)
        await self._enter(admission)
        try:
            yield admission
        finally:
            self._leave(admission)

    async def again(self, admission: Admission) -> None:
        """Leave, and return when all keys are open once more. Raises as `admitted` does."""
        self._leave(admission)
        await self._enter(admission)

    async def _enter(self, admission: Admission) -> None:
        admission.held += await self._wait(admission.keys, admission.max_hold)
        admission.interrupted = False
        self._admitted.add(admission)
        self._in_flight.update(admission.keys)

    def _leave(self, admission: Admission) -> None:
        if admission in self._admitted:
            self._admitted.discard(admission)
            self._in_flight.subtract(admission.keys)
            self._wake.fire()

    def _tell(self, key: str, interrupt: bool) -> None:
        for admission in tuple(self._admitted):
            if key in admission.keys:
                admission.interrupted = admission.interrupted or interrupt
                admission.told()

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
