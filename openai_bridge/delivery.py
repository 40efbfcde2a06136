"""Tells the gateway what became of replies, behind the harness's back: in groups, repeated, bounded.

In: (rollout, call ids) after the last byte, or (rollout, request ids) where the harness went away before. Out:
MarkDelivered, MarkUndelivered. What does not fit the queue stays unreported, which costs a sample only where the
harness asks the same prompt again.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, TypeVar

from whippletree.errors import WhippletreeError

log = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)
GROUP = 100
"""Ids of one rpc at most."""
AT_ONCE = 8
"""Reports under way at most."""


class Report(Protocol):
    """What of the gateway is needed here."""

    async def mark_delivered(self, rollout: str, call_ids: list[str], *, patience: float) -> None:
        """Say that replies were written out; repeats for `patience` seconds."""

    async def mark_undelivered(self, rollout: str, request_ids: list[str], *, patience: float) -> None:
        """Say that the harness of these requests went away; repeats for `patience` seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What reports are put together: those of one rollout that say the same."""

    rollout: str
    lost: bool


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
            self._deliveries.add(self._rollout, call_ids)

    def lose(self) -> None:
        """The harness went away, or was told of a failure."""
        if self.asked and not self._ended:
            self._deliveries.add_lost(self._rollout, self.request_ids)
        self._ended = True


class Deliveries:
    """A background task. Use as a context; leaving it reports what is left, for at most `flush` seconds."""

    def __init__(self, gateway: Report, *, queue: int, patience: float, flush: float) -> None:
        self._gateway, self._patience, self._flush = gateway, patience, flush
        self._queue: asyncio.Queue[tuple[_Kind, str]] = asyncio.Queue(queue)
        self._task: asyncio.Task[None] | None = None

    def begin(self, rollout: str, request_ids: Sequence[str]) -> Delivery:
        """An answer to these requests begins."""
        return Delivery(self, rollout, request_ids)

    def add(self, rollout: str, call_ids: Sequence[str]) -> None:
        """Report these calls as delivered soon."""
        self._put(_Kind(rollout=rollout, lost=False), call_ids)

    def add_lost(self, rollout: str, request_ids: Sequence[str]) -> None:
        """Report these requests as lost soon."""
        self._put(_Kind(rollout=rollout, lost=True), request_ids)

    def _put(self, kind: _Kind, ids: Sequence[str]) -> None:
        for one in ids:
            try:
                self._queue.put_nowait((kind, one))
            except asyncio.QueueFull:
                log.warning("too many deliveries wait: %s %s stays unreported", "request" if kind.lost else "call", one)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        try:
            async with asyncio.timeout(self._flush):
                await self._queue.join()
        except TimeoutError:
            log.warning("deliveries stay unreported: the gateway did not answer in time")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            slots = asyncio.Semaphore(AT_ONCE)
            while True:
                taken = [await self._queue.get()]
                while not self._queue.empty() and len(taken) < GROUP * AT_ONCE:
                    taken.append(self._queue.get_nowait())
                for kind, ids in grouped(taken):
                    await slots.acquire()
                    tasks.create_task(self._report(kind, ids)).add_done_callback(lambda _: slots.release())

    async def _report(self, kind: _Kind, ids: list[str]) -> None:
        tell = self._gateway.mark_undelivered if kind.lost else self._gateway.mark_delivered
        try:
            await tell(kind.rollout, ids, patience=self._patience)
        except WhippletreeError as error:
            log.warning("deliveries of rollout %s stay unreported: %s", kind.rollout, error.message)
        except Exception:
            log.exception("deliveries of rollout %s stay unreported", kind.rollout)
        finally:
            for _ in ids:
                self._queue.task_done()


def grouped(taken: list[tuple[K, str]]) -> list[tuple[K, list[str]]]:
    """[(kind, id)] -> [(kind, at most GROUP ids)], in order."""
    by_kind: dict[K, list[str]] = defaultdict(list)
    for kind, one in taken:
        by_kind[kind].append(one)
    return [(kind, ids[start : start + GROUP]) for kind, ids in by_kind.items() for start in range(0, len(ids), GROUP)]
