"""Ends background tasks for certain.

A cancellation can get lost: `asyncio.wait_for` of Python 3.11 drops one that comes together with the result, and so may
a library that handles it. Whoever then waits for the task waits for ever, at the stop of a service above all.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)
AGAIN = 60.0
"""Seconds after which what still runs is cancelled again: longer than any of our tasks takes to tidy up, which a second
cancellation would cut. The longest is a job that is given 30 s to end."""


async def end(*tasks: "asyncio.Future[Any]", again: float = AGAIN) -> None:
    """Cancel tasks and return when all are done, whatever they raise; one that is being cancelled gets its time."""
    for task in tasks:
        if not (isinstance(task, asyncio.Task) and task.cancelling()):
            task.cancel()
    left = _running(tasks)
    while left:
        await asyncio.wait(left, timeout=again)
        if left := _running(left):
            log.warning("cancelled again, for they went on: %s", ", ".join(sorted(map(_name, left))))
        for task in left:
            task.cancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio says that nobody asked


def _running(tasks: Iterable["asyncio.Future[Any]"]) -> "list[asyncio.Future[Any]]":
    return [task for task in tasks if not task.done()]


def _name(task: "asyncio.Future[Any]") -> str:
    return str(getattr(task.get_coro(), "__qualname__", task)) if isinstance(task, asyncio.Task) else repr(task)
