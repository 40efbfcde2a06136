"""Tells the gateway what became of replies, behind the harness's back: in groups, repeated, bounded.

In: call ids after the last byte, or (rollout, request ids) where the harness went away before. Out: MarkDelivered,
MarkUndelivered. What does not fit the queue stays unreported: such a call is trained only where a later prompt
continues it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from whippletree import tasks
from whippletree.errors import WhippletreeError

log = logging.getLogger(__name__)
GROUP = 100
"""Ids of one rpc at most."""
AT_ONCE = 8
"""Reports of losses under way at most."""
Count = Callable[[str, int], None]
"""Told what became of so many replies: `written`, `lost`, or `unreported`."""
ANY = ""
"""Where a report concerns no rollout by itself."""


class Report(Protocol):
    """What of the gateway is needed here."""

    async def mark_delivered(self, call_ids: list[str], *, patience: float) -> None:
        """Say that replies were written out; repeats for `patience` seconds."""

    async def mark_undelivered(self, rollout: str, request_ids: list[str], *, patience: float) -> None:
        """Say that the harness of these requests went away; repeats for `patience` seconds."""


class Delivery:
    """One answer to `request_ids`. Its first end counts: written out in full, or lost."""

    def __init__(self, deliveries: "Deliveries", rollout: str, request_ids: Sequence[str]) -> None:
        self._deliveries, self._rollout, self.request_ids = deliveries, rollout, request_ids
        self.asked = False
        """The gateway may know of these requests: before there is nothing to lose."""
        self._ended = False

    def written(self, call_ids: Sequence[str]) -> None:
        """The last byte has been written."""
        if not self._ended:
            self._ended = True
            self._deliveries.add(call_ids)

    def lose(self) -> None:
        """The harness went away, or was told of a failure."""
        if self.asked and not self._ended:
            self._deliveries.add_lost(self._rollout, self.request_ids)
        self._ended = True


class Deliveries:
    """Background tasks. Use as a context; leaving it reports what is left, for at most `flush` seconds.

    Of delivered calls one report is under way at a time, of all rollouts: under load it speaks for all that were
    delivered during the one before, and without load nothing waits.
    """

    def __init__(
        self, gateway: Report, *, queue: int, patience: float, flush: float, count: Count = lambda outcome, number: None
    ) -> None:
        async def delivered(_: str, ids: list[str]) -> None:
            await gateway.mark_delivered(ids, patience=patience)

        async def lost(rollout: str, ids: list[str]) -> None:
            await gateway.mark_undelivered(rollout, ids, patience=patience)

        self._delivered = _Outbox("call", delivered, queue=queue, at_once=1)
        self._lost = _Outbox("request", lost, queue=queue, at_once=AT_ONCE)
        self._flush, self._count = flush, count
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, rollout: str, request_ids: Sequence[str]) -> Delivery:
        """An answer to these requests begins."""
        return Delivery(self, rollout, request_ids)

    def add(self, call_ids: Sequence[str]) -> None:
        """Report these calls as delivered soon."""
        self._count("written", len(call_ids))
        self._count("unreported", self._delivered.put(ANY, call_ids))

    def add_lost(self, rollout: str, request_ids: Sequence[str]) -> None:
        """Report these requests as lost soon."""
        self._count("lost", len(request_ids))
        self._count("unreported", self._lost.put(rollout, request_ids))

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(outbox.run()) for outbox in (self._delivered, self._lost)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(self._flush):
                await self._delivered.queue.join()
                await self._lost.queue.join()
        except TimeoutError:
            log.warning("deliveries stay unreported: the gateway did not answer in time")
        await tasks.end(*self._tasks)


class _Outbox:
    """Reports of one kind; `at_once` of them are under way at most."""

    def __init__(
        self, what: str, tell: Callable[[str, list[str]], Awaitable[None]], *, queue: int, at_once: int
    ) -> None:
        self._what, self._tell, self._at_once = what, tell, at_once
        self.queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue(queue)

    def put(self, rollout: str, ids: Sequence[str]) -> int:
        """Report these soon; what does not fit is dropped, and the log says so. Returns how many."""
        dropped = 0
        for one in ids:
            try:
                self.queue.put_nowait((rollout, one))
            except asyncio.QueueFull:
                log.warning("too many deliveries wait: %s %s stays unreported", self._what, one)
                dropped += 1
        return dropped

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as reports:
            slots = asyncio.Semaphore(self._at_once)
            while True:
                taken = [await self.queue.get()]
                async with slots:  # what comes while it waits for its turn goes with it
                    pass
                while not self.queue.empty() and len(taken) < GROUP * self._at_once:
                    taken.append(self.queue.get_nowait())
                for rollout, ids in grouped(taken):
                    await slots.acquire()
                    reports.create_task(self._report(rollout, ids)).add_done_callback(lambda _: slots.release())

    async def _report(self, rollout: str, ids: list[str]) -> None:
        try:
            await self._tell(rollout, ids)
        except WhippletreeError as error:
            log.warning("deliveries stay unreported, %s %s...: %s", self._what, ids[0], error.message)
        except Exception:
            log.exception("deliveries stay unreported, %s %s...", self._what, ids[0])
        finally:
            for _ in ids:
                self.queue.task_done()


def grouped(taken: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """[(rollout, id)] -> [(rollout, at most GROUP ids)], in order."""
    by_rollout: dict[str, list[str]] = defaultdict(list)
    for rollout, one in taken:
        by_rollout[rollout].append(one)
    return [
        (rollout, ids[start : start + GROUP])
        for rollout, ids in by_rollout.items()
        for start in range(0, len(ids), GROUP)
    ]
