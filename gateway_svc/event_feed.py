"""The watch of events: those that are there, a bookmark, then new ones as they are committed.

In: commits, told by the store, and a place to begin. Out: events by sequence, deleted rollouts, bookmarks. One tail
looks once per commit at what is new and wakes the watchers that it concerns; each of them reads the store at its own
pace, one page at a time, so that nothing is queued for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, func, select

from gateway_svc import events, facts
from gateway_svc.facts import Deleted
from gateway_svc.schema import events as events_table
from gateway_svc.schema import rollouts as rollouts_table
from gateway_svc.store import Store, last_change
from gateway_svc.types import Event, RolloutId, RunId, View
from gateway_svc.wake import Wake
from whippletree.errors import NotFoundError, ShuttingDownError

log = logging.getLogger(__name__)
PAUSE = 1.0
"""Seconds after a look that failed."""
PAGE = 64
"""Events read at once, which is all that a watcher holds."""
WINDOW = 1000
"""Events of any run that are looked through at once."""
TAIL = 1000
"""New events that are looked at one by one; of more, every watcher is woken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a watch is: the last sequence and the last change that it has seen."""

    sequence: int = 0
    change: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose events: one rollout's, one run's, or all."""

    run_id: RunId | None = None
    rollout_id: RolloutId | None = None
    view: View = View.BASIC

    def concerns(self, run_id: str, rollout_id: str) -> bool:
        """Whether an event of this rollout is wanted."""
        return self.run_id in (None, run_id) and self.rollout_id in (None, rollout_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Deleted rollouts, then events, up to a place."""

    deleted: tuple[Deleted, ...]
    events: tuple[Event, ...]
    upto: Place
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _News:
    sequence: int
    change: int
    touched: frozenset[tuple[str, str]] | None
    """(run, rollout) of new events; None = too many to say."""


@dataclass(slots=True, eq=False)
class _Watcher:
    wanted: Wanted
    woken: asyncio.Event


class EventFeed:
    """Watches over one store, while `run` runs. `quiet` = seconds without news after which a bookmark is sent."""

    def __init__(self, store: Store, *, quiet: float) -> None:
        self._store, self._quiet = store, quiet
        self._watchers: set[_Watcher] = set()
        self._fresh, self._wake, self._closed = True, Wake(), False
        store.on_commit(self._committed)

    def close(self) -> None:
        """End all watches with SHUTTING_DOWN."""
        self._closed = True
        self._wake.fire()
        for watcher in self._watchers:
            watcher.woken.set()

    async def run(self) -> None:
        """Tell watchers of what is committed, until `close`."""
        known = await self._store.read(partial(_news, sequence=None))
        while True:
            await self._wake.until(lambda: self._closed or (self._fresh and bool(self._watchers)))
            if self._closed:
                return
            self._fresh = False
            try:
                found = await self._store.read(partial(_news, sequence=known.sequence))
            except Exception as error:  # whatever it was: without this task no watcher would be told of anything
                log.warning("events could not be read: %s", error)
                await asyncio.sleep(PAUSE)
                self._fresh = True
                continue
            for watcher in self._watchers:
                if found.change > known.change or _concerned(watcher.wanted, found):
                    watcher.woken.set()
            known = found

    async def watch(self, wanted: Wanted, after: Place) -> AsyncIterator[tuple[Event | Deleted | None, Place]]:
        """Records and the place after each, without end; None = a bookmark. ResumeTokenExpiredError, NotFoundError."""
        place, due = after, True
        await self._store.read(partial(_check, wanted=wanted))
        with self._watching(wanted) as watcher:
            while True:
                watcher.woken.clear()
                page = await self._store.read(partial(_page, wanted=wanted, after=place))
                for gone in page.deleted:
                    place = Place(sequence=place.sequence, change=gone.change)
                    yield gone, place
                for event in page.events:
                    place = Place(sequence=event.sequence, change=page.upto.change)
                    yield event, place
                place = page.upto
                if page.more:
                    continue
                if due:
                    yield None, place
                due = not await self._woken(watcher)

    @contextmanager
    def _watching(self, wanted: Wanted) -> Iterator[_Watcher]:
        watcher = _Watcher(wanted, asyncio.Event())
        self._watchers.add(watcher)
        self._fresh = True  # the tail may have slept while nobody watched
        self._wake.fire()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)

    async def _woken(self, watcher: _Watcher) -> bool:
        """Wait for news; False = nothing came for `quiet` seconds."""
        try:
            async with asyncio.timeout(self._quiet):
                await watcher.woken.wait()
        except TimeoutError:
            return False
        if self._closed:
            raise ShuttingDownError("the gateway stops")
        return True

    def _committed(self, change: int) -> None:
        self._fresh = True
        if self._watchers:
            self._wake.fire()


def _concerned(wanted: Wanted, news: _News) -> bool:
    if news.touched is None:
        return True
    return any(wanted.concerns(run_id, rollout_id) for run_id, rollout_id in news.touched)


def _news(connection: Connection, sequence: int | None) -> _News:
    """What was stored after a sequence; None = only where the store stands."""
    last: int = connection.execute(select(func.max(events_table.c.sequence))).scalar() or 0
    change = last_change(connection)
    if sequence is None:
        return _News(sequence=last, change=change, touched=frozenset())
    if last - sequence > TAIL:
        return _News(sequence=last, change=change, touched=None)
    query = select(rollouts_table.c.run_id, rollouts_table.c.rollout_id).distinct()
    query = query.join(events_table, rollouts_table.c.ordinal == events_table.c.rollout)
    rows = connection.execute(query.where(events_table.c.sequence > sequence))
    touched = frozenset((row.run_id, row.rollout_id) for row in rows)
    return _News(sequence=max(last, sequence), change=change, touched=touched)


def _check(connection: Connection, wanted: Wanted) -> None:
    """Raise NotFoundError where a rollout is wanted that is neither there nor known to be deleted."""
    if wanted.rollout_id is None or facts.was_deleted(connection, wanted.rollout_id):
        return
    query = select(rollouts_table.c.ordinal).where(rollouts_table.c.rollout_id == wanted.rollout_id)
    if connection.execute(query).first() is None:
        name = f"rollouts/{wanted.rollout_id}"
        raise NotFoundError(f"{name} does not exist", name=name)


def _page(connection: Connection, wanted: Wanted, after: Place) -> Page:
    """What follows a place, on one snapshot. Raises ResumeTokenExpiredError."""
    change = last_change(connection)
    facts.check_known(connection, after.change, change)
    gone: tuple[Deleted, ...] = ()
    if after != Place():
        gone = facts.deleted(connection, wanted.run_id, after.change, change, PAGE)
    if len(gone) == PAGE:
        upto = Place(sequence=after.sequence, change=gone[-1].change)
        return Page(deleted=_of(wanted, gone), events=(), upto=upto, more=True)
    last: int = connection.execute(select(func.max(events_table.c.sequence))).scalar() or 0
    found, end = _next(connection, wanted, after.sequence)
    upto = Place(sequence=max(last, after.sequence) if end is None else end, change=change)
    return Page(deleted=_of(wanted, gone), events=found, upto=upto, more=end is not None)


def _next(connection: Connection, wanted: Wanted, after: int) -> tuple[tuple[Event, ...], int | None]:
    """The next wanted events after a sequence, and how far was looked; None = to the end."""
    if wanted.rollout_id is not None:
        query = select(rollouts_table.c.ordinal).where(rollouts_table.c.rollout_id == wanted.rollout_id)
        if (ordinal := connection.execute(query).scalar()) is None:
            return (), None
        found = tuple(events.page(connection, ordinal, wanted.rollout_id, after, PAGE, wanted.view))
        return found, found[-1].sequence if len(found) == PAGE else None
    ahead = select(events_table.c.sequence, events_table.c.rollout).where(events_table.c.sequence > after)
    window = ahead.order_by(events_table.c.sequence).limit(WINDOW).subquery()
    query = select(window.c.sequence, rollouts_table.c.rollout_id)
    query = query.join(rollouts_table, rollouts_table.c.ordinal == window.c.rollout)
    if wanted.run_id is not None:
        query = query.where(rollouts_table.c.run_id == wanted.run_id)
    rows = connection.execute(query.order_by(window.c.sequence).limit(PAGE)).all()
    found = tuple(events.of(connection, {row.sequence: RolloutId(row.rollout_id) for row in rows}, wanted.view))
    if len(found) == PAGE:
        return found, found[-1].sequence
    end, count = connection.execute(select(func.max(window.c.sequence), func.count()).select_from(window)).one()
    return found, end if count == WINDOW else None


def _of(wanted: Wanted, gone: tuple[Deleted, ...]) -> tuple[Deleted, ...]:
    return tuple(one for one in gone if wanted.rollout_id in (None, one.rollout_id))
