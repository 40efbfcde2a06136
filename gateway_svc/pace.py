"""Watchers that are too slow: a stream that waits too long for its reader is ended, and its reader is told.

gRPC takes the next message only when the transport has taken the one before, so a reader that stands still holds up
its stream there. What was read for it is let go when its time is up; when it reads again it gets OVERLOADED and goes
on from its resume token.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TypeVar

from whippletree.errors import OverloadedError

T = TypeVar("T")


async def paced(messages: AsyncIterator[T], patience: float) -> AsyncIterator[T]:
    """The messages, while each is taken within `patience` seconds. Raises OverloadedError."""
    assert isinstance(messages, AsyncGenerator)
    loop = asyncio.get_running_loop()
    closing: asyncio.Task[None] | None = None

    def give_up() -> None:
        nonlocal closing
        closing = loop.create_task(messages.aclose())

    async with aclosing(messages):
        async for message in messages:
            timer = loop.call_later(patience, give_up)
            try:
                yield message
            finally:
                timer.cancel()
                if closing is not None:
                    await closing
            if closing is not None:
                text = f"the watcher took a message for more than {patience:g} s; go on from the last resume token"
                raise OverloadedError(text)
