"""The watch of rollouts: a snapshot, a bookmark, then changes as they are committed.

In: commits, told by the store, and a place to begin. Out: rollouts and deletions by change number, and bookmarks. The
snapshot is the same query as the changes, from 0 on, so a watch that was cut inside its snapshot goes on where it was.
A watcher reads the store at its own pace, one page at a time: nothing is queued for it, however slow it is. After a
commit one query finds which runs it touched, and only their watchers look.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from gateway_svc import rollouts
from gateway_svc.facts import Deleted
from gateway_svc.rollouts import Filter
from gateway_svc.store import Store
from gateway_svc.types import Rollout, RunId
from gateway_svc.wake import Wake
from whippletree.errors import ShuttingDownError

log = logging.getLogger(__name__)

PAGE = 100
"""Rollouts read at once, which is all that a watcher holds."""
PAUSE = 1.0
"""Seconds before it is looked again which runs changed, where that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bookmark:
    """Everything up to this change was sent."""

    change: int


class Feed:
    """Watches over one store. `quiet` = seconds without a change after which a bookmark is sent."""

    def __init__(self, store: Store, *, quiet: float) -> None:
        self._store, self._quiet = store, quiet
        self._latest = store.change
        self._closed = False
        self._commits = Wake()
        self._tail: asyncio.Task[None] | None = None
        self._upto = 0  # the last change whose run is known
        self._touched: dict[RunId | None, int] = {}  # last change of each run, of all under None
        self._wakes: defaultdict[RunId | None, Wake] = defaultdict(Wake)
        store.on_commit(self._committed)

    def close(self) -> None:
        """End all watches with SHUTTING_DOWN."""
        self._closed = True
        if self._tail is not None:
            self._tail.cancel()
        for wake in self._wakes.values():
            wake.fire()

    async def watch(self, wanted: Filter, after: int) -> AsyncIterator[Rollout | Deleted | Bookmark]:
        """What changed after a number, then bookmark and changes, without end. Raises ResumeTokenExpiredError."""
        if self._tail is None:
            self._upto = self._latest  # what came before is in every snapshot
            self._tail = asyncio.create_task(self._follow())
        position, due = after, True
        while True:
            changes = await self._store.read(partial(rollouts.changed, wanted=wanted, after=position, size=PAGE))
            found: list[Rollout | Deleted] = [*changes.rollouts, *changes.deleted]
            for record in sorted(found, key=lambda item: item.change):
                yield record
            position = changes.upto
            if changes.more:
                continue
            if due:
                yield Bookmark(change=position)
            due = not await self._beyond(wanted.run_id, position)

    async def _beyond(self, run_id: RunId | None, position: int) -> bool:
        """Wait for a change of a run (None = of any) above `position`; False = nothing came for `quiet` seconds."""
        try:
            async with asyncio.timeout(self._quiet):
                await self._wakes[run_id].until(lambda: self._closed or self._touched.get(run_id, 0) > position)
        except TimeoutError:
            return False
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        return True

    def _committed(self, change: int) -> None:
        if change > self._latest:
            self._latest = change
            self._commits.fire()

    async def _follow(self) -> None:
        """Find out which runs the commits touched and wake their watchers, without end."""
        while not self._closed:
            await self._commits.until(lambda: self._latest > self._upto)
            latest = self._latest
            try:
                touched, upto = await self._store.read(partial(rollouts.touched, after=self._upto))
            except Exception as error:  # also a store that is away for a while: without this task watchers hear nothing
                log.warning("which runs changed is not known; looking again: %s", error)
                await asyncio.sleep(PAUSE)
                continue
            self._upto = max(upto, latest)  # a commit during the query is for the next one
            for run_id, change in (*touched.items(), (None, self._upto)):
                self._touched[run_id] = change
                if run_id in self._wakes:
                    self._wakes[run_id].fire()
