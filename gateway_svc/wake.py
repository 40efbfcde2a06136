"""Waking by condition: tasks wait until something they look at has changed, and nobody polls."""

import asyncio
from collections.abc import Callable


class Wake:
    """`fire` wakes everybody who waits now; each looks again and waits on, or goes its way. For one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake all."""
        self._event.set()
        self._event = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return as soon as `holds()`; it is asked now and after every `fire`."""
        while not holds():
            await self._event.wait()
