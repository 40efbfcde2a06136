"""The work behind every open answer: cancelled when its harness goes away, cut when the bridge stops.

The server gives answers their time (`whippletree/stop.py`). What is cut after it ends with an error that its harness
understands.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from whippletree.errors import ShuttingDownError

T = TypeVar("T")


class Scope:
    """One answer. Invariant: work outlives neither its scope nor its harness."""

    def __init__(self, in_flight: "InFlight") -> None:
        self._in_flight = in_flight
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends: list[Callable[[], None]] = []

    def at_end(self, act: Callable[[], None]) -> None:
        """Call this when the answer ends, its harness goes away or the bridge cuts it: whichever happens first."""
        self._ends.append(act)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work until it ends, the scope closes, or the bridge stops. ShuttingDownError after a cut."""
        if self._in_flight.closing:
            work.close()
            raise ShuttingDownError("The service is shutting down.")
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel what runs."""
        while self._ends:
            self._ends.pop()()
        for task in list(self._tasks):
            task.cancel()

    async def result(self, task: asyncio.Task[T]) -> T:
        """The result of work, when it has ended; ShuttingDownError where the stop cut it."""
        try:
            return await task
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is not None and waiting.cancelling():
                raise  # it is who waits that is cut
            raise ShuttingDownError("The service is shutting down.") from None
        finally:
            del task  # or it, its error and this frame would keep one another until garbage is collected

    def __enter__(self) -> Self:
        self._in_flight.opened(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        self._in_flight.closed(self)


class InFlight:
    """All open answers."""

    def __init__(self) -> None:
        self.closing = False
        self._scopes: set[Scope] = set()

    def scope(self) -> Scope:
        """A scope for one answer: `with in_flight.scope() as scope`."""
        return Scope(self)

    def opened(self, scope: Scope) -> None:
        """Count an answer."""
        self._scopes.add(scope)

    def closed(self, scope: Scope) -> None:
        """Count it no more."""
        self._scopes.discard(scope)

    def cut(self) -> None:
        """Cut what runs and begin nothing more: the server has given it its time."""
        self.closing = True
        for scope in list(self._scopes):
            scope.cancel()
