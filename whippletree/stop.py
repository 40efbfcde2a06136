"""How a server stops while calls run: in an order in which no caller loses anything, and within a stated time.

Order: health says NOT_SERVING, and for `notice` seconds calls are still taken, until Envoy, which asks every second,
has seen it; then new calls are refused with SHUTTING_DOWN and a mark that lets Envoy ask another replica; what only the
service can end is drained; calls in flight end by themselves until `grace` seconds after the signal; what is left is
cut, with an error that its caller understands. A second signal ends all waiting at once.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

REFUSED = ("whippletree-refused", "stopping")
"""Metadata of a refusal: nothing has happened, any other replica may be asked."""
WRITING = 2.0
"""Seconds for the last answers to be written after the cut."""


class Signals:
    """SIGTERM and SIGINT: the first asks for a stop, the second for haste."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.haste = asyncio.Event()

    @classmethod
    def caught(cls) -> "Signals":
        """From now on, by the running loop."""
        signals, loop = cls(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.came)
        return signals

    def came(self) -> None:
        """One of them."""
        (self.haste if self.stop.is_set() else self.stop).set()


async def until_signal() -> None:
    """Return at the first SIGTERM or SIGINT."""
    await Signals.caught().stop.wait()


class Calls:
    """The calls that a server runs, each a task of its own. Invariant: after `end` none runs."""

    def __init__(self) -> None:
        self.refusing = False
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._writing: set[asyncio.Task[Any]] = set()
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """Count the present task until it ends, its status written."""
        task = _present()
        self._running.add(task)
        self._none.clear()
        task.add_done_callback(self._ended)

    def writes(self) -> None:
        """The present task hands out a message. It is not cancelled before `goes_on`: what would be cancelled is the
        writing, and then the server can send no status."""
        self._writing.add(_present())

    def goes_on(self) -> bool:
        """The message has been written. False = the stop has come to this call meanwhile."""
        task = _present()
        self._writing.discard(task)
        return task not in self._cut

    def was_cut(self) -> bool:
        """Whether the stop, and not its caller, has cancelled the present task; it may go on, to say so."""
        task = _present()
        if task not in self._cut:
            return False
        task.uncancel()
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._writing.discard(task)
        if not self._running:
            self._none.set()

    async def end(
        self,
        *,
        notice: float,
        grace: float,
        drain: Callable[[], Awaitable[None]],
        cut: Callable[[], None] | None,
        haste: asyncio.Event,
    ) -> None:
        """Stop in the order above, in grace + 2 * WRITING at most; `drain` and `cut` are the service's part in it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + grace
        await first_of(haste, seconds=min(notice, grace))
        self.refusing = True
        await drain()
        await first_of(haste, self._none, seconds=deadline - clock())
        if self._running and cut is not None:
            cut()
            await first_of(self._none, seconds=WRITING)
        self._cut = set(self._running)
        for task in self._cut - self._writing:
            task.cancel()
        await first_of(self._none, seconds=WRITING)


def _present() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


async def first_of(*events: asyncio.Event, seconds: float) -> None:
    """Return when one of these is set, or after so many seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
