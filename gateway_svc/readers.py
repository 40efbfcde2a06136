"""Threads for queries. They are daemons: one that waits for a database without end must not keep the process.

In: functions, from one event loop. Out: their results or errors, in that loop. An executor of the library is joined
when the interpreter ends, however long that takes.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Readers:
    """So many threads, started at once. For one event loop."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pending: set[asyncio.Future[Any]] = set()
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        names = [f"store-reader-{number}" for number in range(count)]
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Have a thread do this; who is cancelled meanwhile does not wait for it."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.add(future)
        self._work.put((work, future))
        try:
            return await future
        finally:
            self._pending.discard(future)

    def stop(self) -> None:
        """Threads end when what is queued is done."""
        for _ in self._threads:
            self._work.put(None)

    def join(self, deadline: float) -> bool:
        """Wait until all have ended, by `time.monotonic`; False = some have not."""
        return joined(self._threads, deadline)

    def abandon(self, error: Exception) -> None:
        """Whoever still waits gets this."""
        for future in self._pending:
            _settle(future, None, error)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            run, future = work
            if future.cancelled():
                continue
            error, result = None, None
            try:
                result = run()
            except BaseException as raised:  # the task that waits must get it, whatever it is
                error = raised
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                self._loop.call_soon_threadsafe(_settle, future, result, error)
            del run, future, work, result, error  # not kept while this thread waits


def joined(threads: "list[threading.Thread]", deadline: float) -> bool:
    """Wait until all have ended, by `time.monotonic`; False = some have not."""
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
