"""The watch of rollouts: a snapshot, a bookmark, then changes as they are committed.

In: commits, told by the store, and a place to begin. Out: rollouts and deletions by change number, and bookmarks. The
snapshot is the same query as the changes, from 0 on, so a watch that was cut inside its snapshot goes on where it was.
A watcher reads the store at its own pace, one page at a time: nothing is queued for it, however slow it is.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from gateway_svc import rollouts
from gateway_svc.facts import Deleted
from gateway_svc.rollouts import Filter
from gateway_svc.store import Store
from gateway_svc.types import Rollout
from gateway_svc.wake import Wake
from whippletree.errors import ShuttingDownError

PAGE = 100
"""Rollouts read at once, which is all that a watcher holds."""


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
        self._wake = Wake()
        store.on_commit(self._committed)

    def close(self) -> None:
        """End all watches with SHUTTING_DOWN."""
        self._closed = True
        self._wake.fire()

    async def watch(self, wanted: Filter, after: int) -> AsyncIterator[Rollout | Deleted | Bookmark]:
        """What changed after a number, then bookmark and changes, without end. Raises ResumeTokenExpiredError."""
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
            due = not await self._beyond(position)

    async def _beyond(self, position: int) -> bool:
        """Wait for a change above `position`; False = nothing came for `quiet` seconds."""
        try:
            async with asyncio.timeout(self._quiet):
                await self._wake.until(lambda: self._closed or self._latest > position)
        except TimeoutError:
            return False
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        return True

    def _committed(self, change: int) -> None:
        if change > self._latest:
            self._latest = change
            self._wake.fire()
