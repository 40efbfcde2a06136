"""Generations under way: who waits for each, who may join, and when one that nobody waits for is ended.

In: what is asked, and the work that answers it. Out: the recorded event, the same for all that wait. A repeat (same
request id) and a retry (`retry.choose`) join; a generation that was left by all waits `grace` seconds for a retry,
twice as long after each that came, because clients come back later each time; then it is cancelled.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway_svc import retry
from gateway_svc.types import Ask, Event, Repeat, RolloutId
from whippletree import tasks
from whippletree.errors import RequestIdReusedError

LOOK_AGAIN = 1.0
"""Seconds between two looks whether another replica still waits for what nobody here waits for."""
LONGEST_GRACE = 8.0
"""Seconds at most, however many retries came, unless the setting is longer: the official clients' longest pause."""

Place = tuple[RolloutId, int, int, bytes]


class Elsewhere(Protocol):
    """What other replicas have to do with a flight of this one."""

    def left(self, is_left: bool) -> None:
        """Tell them that nobody waits here any more, or again."""

    async def wanted(self) -> bool:
        """Whether one of them waits for it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A running generation. `requests`: digest of the body by request, the one that began it first."""

    ask: Ask
    requests: dict[str, bytes]
    task: "asyncio.Task[Event]" = field(init=False)
    waiting: int = 0
    timer: asyncio.TimerHandle | None = None
    elsewhere: Elsewhere | None = None

    @property
    def left(self) -> bool:
        """Nobody waits for it."""
        return self.waiting == 0

    @property
    def place(self) -> Place | None:
        """Where retries look for it."""
        return None if self.ask.repeat is None else _place(self.ask, self.ask.repeat)


class Flights:
    """All generations under way. For one event loop. `grace` in seconds; 0 = what is left by all ends at once."""

    def __init__(self, *, grace: float) -> None:
        self._grace = grace
        self._by_request: dict[str, Flight] = {}
        self._by_place: dict[Place, list[Flight]] = {}
        self._tasks: set[asyncio.Task[Event]] = set()
        self._asking: set[asyncio.Task[None]] = set()

    def find(self, key: str, digest: bytes, ask: Ask) -> Flight | None:
        """The generation that this request repeats or retries. Raises RequestIdReusedError."""
        flight = self._by_request.get(key)
        if flight is None:
            flight = self._retried(ask)
        if flight is not None and flight.requests.setdefault(key, digest) != digest:
            raise RequestIdReusedError(f"request_id {key} was used for another request")
        if flight is not None:
            self._by_request[key] = flight
        return flight

    def begin(self, key: str, digest: bytes, ask: Ask, run: Callable[[Flight], Coroutine[Any, Any, Event]]) -> Flight:
        """Start the work for a request that found none."""
        flight = Flight(ask=ask, requests={key: digest})
        flight.task = asyncio.create_task(run(flight))
        self._by_request[key] = flight
        if flight.place is not None:
            self._by_place.setdefault(flight.place, []).append(flight)
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._landed(flight))
        return flight

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    async def wait(self, flight: Flight) -> Event:
        """Wait for a generation; call it in the same step as `find` or `begin`."""
        flight.waiting += 1
        if flight.timer is not None:
            flight.timer.cancel()
            flight.timer = None
            if flight.elsewhere is not None:
                flight.elsewhere.left(False)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if flight.left and not flight.task.done():
                self._abandon(flight)

    async def close(self) -> None:
        """End what still runs."""
        await tasks.end(*self._tasks)  # what was cancelled before aborts at its engine: that is not cut

    def _retried(self, ask: Ask) -> Flight | None:
        if ask.repeat is None:
            return None
        flights = self._by_place.get(_place(ask, ask.repeat), [])[::-1]
        keys = [flight.ask.repeat.key if flight.ask.repeat else "" for flight in flights]
        earlier = [retry.Earlier(key=key, lost=flight.left) for key, flight in zip(keys, flights, strict=True)]
        found = retry.choose(ask.repeat, earlier)
        return None if found is None else flights[found]

    def _abandon(self, flight: Flight) -> None:
        if flight.elsewhere is not None:
            flight.elsewhere.left(True)
        grace = patience(self._grace, len(flight.requests) - 1)
        if grace > 0 and (flight.ask.once or flight.ask.repeat):  # else nobody could join
            flight.timer = asyncio.get_running_loop().call_later(grace, self._give_up, flight)
        else:
            self._give_up(flight)

    def _give_up(self, flight: Flight) -> None:
        """End it, unless another replica waits for it: then look again after a while."""
        if flight.elsewhere is None:
            self._end(flight)
        else:
            task = asyncio.create_task(self._end_unless_wanted(flight, flight.elsewhere))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _end_unless_wanted(self, flight: Flight, elsewhere: Elsewhere) -> None:
        wanted = await elsewhere.wanted()
        if not flight.left or flight.task.done():
            return
        if wanted:
            flight.timer = asyncio.get_running_loop().call_later(LOOK_AGAIN, self._give_up, flight)
        else:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        self._forget(flight)
        if not flight.task.cancelling():
            flight.task.cancel()

    def _landed(self, flight: Flight) -> None:
        self._tasks.discard(flight.task)
        self._forget(flight)
        if flight.timer is not None:
            flight.timer.cancel()
        if not flight.task.cancelled():
            flight.task.exception()  # its callers may be gone

    def _forget(self, flight: Flight) -> None:
        """Let nobody join any more."""
        for key in flight.requests:
            if self._by_request.get(key) is flight:
                del self._by_request[key]
        if flight.place is not None and flight in (there := self._by_place.get(flight.place, [])):
            there.remove(flight)
            if not there:
                del self._by_place[flight.place]


def patience(grace: float, retries: int) -> float:
    """Seconds for which a generation waits after so many retries have come for it."""
    return min(grace * 2.0 ** min(retries, 32), max(grace, LONGEST_GRACE))


def _place(ask: Ask, repeat: Repeat) -> Place:
    return ask.rollout_id, ask.ordinal, ask.attempt, repeat.turn
