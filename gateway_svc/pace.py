"""Watchers that are too slow: a stream that waits too long for its reader is ended, and its reader is told.

gRPC takes the next message only when the transport has taken the one before, so a reader that stands still holds up
its stream there. What was read for it is let go when its time is up; when it reads again it gets OVERLOADED and goes
on from its resume token.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TypeVar

from whippletree.errors import OverloadedError

T = TypeVar("T")


class Watchers:
    """All watchers of a service. Each may take `patience` seconds for a message."""

    def __init__(self, patience: float, clock: Callable[[], float]) -> None:
        self._patience, self._clock = patience, clock
        self._since: dict[object, float] = {}

    def lag(self) -> float:
        """Seconds for which the slowest of them has been at its message."""
        return max(0.0, self._clock() - min(self._since.values(), default=self._clock()))

    async def paced(self, messages: AsyncIterator[T]) -> AsyncIterator[T]:
        """The messages, while each is taken in time. Raises OverloadedError."""
        assert isinstance(messages, AsyncGenerator)
        loop = asyncio.get_running_loop()
        closing: asyncio.Task[None] | None = None
        watcher = object()

        def give_up() -> None:
            nonlocal closing
            closing = loop.create_task(messages.aclose())

        async with aclosing(messages):
            async for message in messages:
                timer = loop.call_later(self._patience, give_up)
                self._since[watcher] = self._clock()
                try:
                    yield message
                finally:
                    del self._since[watcher]
                    timer.cancel()
                    if closing is not None:
                        await closing
                if closing is not None:
                    text = f"the watcher took a message for more than {self._patience:g} s"
                    raise OverloadedError(f"{text}; go on from the last resume token")
