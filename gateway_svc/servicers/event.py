"""EventService."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
from sqlalchemy import Connection
from whippletree.v1 import event_pb2 as pb
from whippletree.v1.event_pb2_grpc import EventServiceServicer

from gateway_svc import convert, convert_calls, events, names, rollouts
from gateway_svc.event_feed import EventFeed, Place, Wanted
from gateway_svc.facts import Deleted
from gateway_svc.pace import Watchers
from gateway_svc.store import Store
from gateway_svc.types import Event, Rollout, View
from whippletree.errors import InvalidFieldError
from whippletree.identity import guard

Context = grpc.aio.ServicerContext[Any, Any]
EXPORT_LIMIT = 10_000
EXPORT_PAGE = 64
"""Events read at once."""


class EventServicer(EventServiceServicer):
    """Events, from the store."""

    def __init__(self, store: Store, feed: EventFeed, watchers: Watchers) -> None:
        self._store, self._feed, self._watchers = store, feed, watchers

    async def AppendEvent(self, request: pb.AppendEventRequest, context: Context) -> pb.AppendEventResponse:
        rollout_id, payload = names.rollout(request.parent, "parent"), convert_calls.payload(request)
        events.check(payload)
        # An agent may write notes with any id: none of them may stand in the way of its evaluator's reward.
        scope = f"{request.parent}/attempts/{request.attempt}/{request.WhichOneof('payload')}/"
        once = convert.once("AppendEvent", request.request_id, request, scope=scope)
        ordinal = guard.ordinal()
        found = await self._store.write(
            lambda tx: events.append(tx, rollout_id, request.attempt, payload, request.may_ignore, once, ordinal)
        )
        return pb.AppendEventResponse(event=convert_calls.event_to_pb(found, View.BASIC))

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:
        rollout_id, view = names.rollout(request.parent, "parent"), convert_calls.view(request.view)
        size = convert.page_size(request.page_size, 100, 1000)
        after = names.number("events", request.page_token, "page_token")
        found = await self._store.read(
            lambda connection: events.page(
                connection,
                rollouts.get(connection, rollout_id).ordinal,
                rollout_id,
                after,
                size + 1,
                view,
                request.attempt,
            )
        )
        return pb.ListEventsResponse(
            events=[convert_calls.event_to_pb(event, view) for event in found[:size]],
            next_page_token=names.token("events", found[size - 1].sequence) if len(found) > size else "",
        )

    async def ExportEvents(
        self, request: pb.ExportEventsRequest, context: Context
    ) -> AsyncIterator[pb.ExportEventsResponse]:
        if len(request.parents) > EXPORT_LIMIT:
            raise InvalidFieldError(f"more than {EXPORT_LIMIT} rollouts", field="parents")
        for parent in request.parents:
            rollout_id, after = names.rollout(parent, "parents"), 0
            rollout = await self._store.read(partial(rollouts.get, rollout_id=rollout_id))
            more = True
            while more:
                found = await self._store.read(partial(self._page, rollout, after))
                for event in found:
                    packed = convert_calls.event_to_pb(event, View.PACKED)
                    yield pb.ExportEventsResponse(rollout=parent, event=packed)
                more = len(found) == EXPORT_PAGE
                after = found[-1].sequence if found else after

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        view, parent, identity = convert_calls.view(request.view), request.parent, self._store.identity
        wanted = Wanted(
            run_id=names.run(parent, "parent") if parent.startswith("runs/") else None,
            rollout_id=names.rollout(parent, "parent") if parent and not parent.startswith("runs/") else None,
            view=view,
        )
        sequence, change = names.resumed("events", identity, request.resume_token, 2)
        watch = self._feed.watch(wanted, Place(sequence=sequence, change=change))
        async for record, place in self._watchers.paced(watch):
            token = names.resume("events", identity, place.sequence, place.change)
            made = pb.WatchEventsResponse(resume_token=token)
            match record:
                case None:
                    made.bookmark.sequence = place.sequence
                case Deleted(rollout_id=rollout_id):
                    made.deleted = f"rollouts/{rollout_id}"
                case _:
                    made.event.CopyFrom(convert_calls.event_to_pb(record, view))
            yield made

    @staticmethod
    def _page(rollout: Rollout, after: int, connection: Connection) -> list[Event]:
        rollouts.get(connection, rollout.spec.rollout_id)  # a rollout that was deleted meanwhile is no short one
        return events.page(connection, rollout.ordinal, rollout.spec.rollout_id, after, EXPORT_PAGE, View.PACKED)
