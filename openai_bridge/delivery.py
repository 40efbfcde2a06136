"""Tells the gateway which replies were written out, behind the harness's back: in groups, repeated, bounded.

In: (rollout, call ids) after the last byte. Out: MarkDelivered. What does not fit the queue stays unreported, which
costs a sample only where the harness asks the same prompt again.
"""

import asyncio
import logging
from collections import defaultdict
from types import TracebackType
from typing import Protocol, Self

from whippletree.errors import WhippletreeError

log = logging.getLogger(__name__)
GROUP = 100
"""Call ids of one rpc at most."""
AT_ONCE = 8
"""Reports under way at most."""


class Report(Protocol):
    """What of the gateway is needed here."""

    async def mark_delivered(self, rollout: str, call_ids: list[str], *, patience: float) -> None:
        """Say that replies were written out; repeats for `patience` seconds."""


class Deliveries:
    """A background task. Use as a context; leaving it reports what is left, for at most `flush` seconds."""

    def __init__(self, gateway: Report, *, queue: int, patience: float, flush: float) -> None:
        self._gateway, self._patience, self._flush = gateway, patience, flush
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue(queue)
        self._task: asyncio.Task[None] | None = None

    def add(self, rollout: str, call_ids: list[str]) -> None:
        """Report these soon."""
        for call_id in call_ids:
            try:
                self._queue.put_nowait((rollout, call_id))
            except asyncio.QueueFull:
                log.warning("too many deliveries wait: call %s stays unreported", call_id)

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
                for rollout, call_ids in grouped(taken):
                    await slots.acquire()
                    tasks.create_task(self._report(rollout, call_ids)).add_done_callback(lambda _: slots.release())

    async def _report(self, rollout: str, call_ids: list[str]) -> None:
        try:
            await self._gateway.mark_delivered(rollout, call_ids, patience=self._patience)
        except WhippletreeError as error:
            log.warning("deliveries of rollout %s stay unreported: %s", rollout, error.message)
        except Exception:
            log.exception("deliveries of rollout %s stay unreported", rollout)
        finally:
            for _ in call_ids:
                self._queue.task_done()


def grouped(taken: list[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """[(rollout, call id)] -> [(rollout, at most GROUP call ids)], in order."""
    by_rollout: dict[str, list[str]] = defaultdict(list)
    for rollout, call_id in taken:
        by_rollout[rollout].append(call_id)
    return [
        (rollout, ids[start : start + GROUP])
        for rollout, ids in by_rollout.items()
        for start in range(0, len(ids), GROUP)
    ]
