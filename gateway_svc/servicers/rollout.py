"""RolloutService."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from whippletree.v1 import rollout_pb2 as pb
from whippletree.v1.rollout_pb2_grpc import RolloutServiceServicer

from gateway_svc import convert, names, rollouts
from gateway_svc.facts import Deleted
from gateway_svc.feed import Bookmark, Feed
from gateway_svc.issuer import Issuer
from gateway_svc.pace import Watchers
from gateway_svc.rollouts import Filter
from gateway_svc.store import Store
from gateway_svc.types import Once
from whippletree.errors import InvalidFieldError

Context = grpc.aio.ServicerContext[Any, Any]
BATCH_LIMIT = 1000


class RolloutServicer(RolloutServiceServicer):
    """Rollouts, from the store and its feed."""

    def __init__(self, store: Store, feed: Feed, issuer: Issuer | None, watchers: Watchers) -> None:
        """`issuer`: None = attempts get no tokens."""
        self._store, self._feed, self._issuer, self._watchers = store, feed, issuer, watchers

    async def CreateRollout(self, request: pb.CreateRolloutRequest, context: Context) -> pb.CreateRolloutResponse:
        once = convert.once("CreateRollout", request.request_id, request)
        made = pb.CreateRolloutResponse()
        await self._create([request], once, lambda: made)
        return made

    async def BatchCreateRollouts(
        self, request: pb.BatchCreateRolloutsRequest, context: Context
    ) -> pb.BatchCreateRolloutsResponse:
        if len(request.requests) > BATCH_LIMIT:
            text = f"{len(request.requests)} rollouts are more than {BATCH_LIMIT}"
            raise InvalidFieldError(text, field="requests")
        once = convert.once("BatchCreateRollouts", request.request_id, request)
        made = pb.BatchCreateRolloutsResponse()
        await self._create(request.requests, once, made.responses.add)
        return made

    async def GetRollout(self, request: pb.GetRolloutRequest, context: Context) -> pb.GetRolloutResponse:
        rollout_id = names.rollout(request.name)
        found = await self._store.look(lambda connection: rollouts.get(connection, rollout_id))
        return pb.GetRolloutResponse(rollout=convert.rollout_to_pb(found))

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Context) -> pb.ListRolloutsResponse:
        wanted = Filter(
            run_id=names.run(request.run, "run") if request.run else None,
            states=tuple(convert.state(state, "states") for state in request.states),
            group_id=request.group_id,
        )
        size = convert.page_size(request.page_size, 100, 1000)
        after = names.number("rollouts", request.page_token, "page_token")
        found = await self._store.read(lambda connection: rollouts.page(connection, wanted, after, size + 1))
        return pb.ListRolloutsResponse(
            rollouts=[convert.rollout_to_pb(rollout) for rollout in found[:size]],
            next_page_token=names.token("rollouts", found[size - 1].ordinal) if len(found) > size else "",
        )

    async def WatchRollouts(
        self, request: pb.WatchRolloutsRequest, context: Context
    ) -> AsyncIterator[pb.WatchRolloutsResponse]:
        wanted = Filter(
            run_id=names.run(request.run, "run") if request.run else None,
            states=tuple(convert.state(state, "states") for state in request.states),
        )
        identity = self._store.identity
        (after,) = names.resumed("changes", identity, request.resume_token, 1)
        async for record in self._watchers.paced(self._feed.watch(wanted, after)):
            made = pb.WatchRolloutsResponse(resume_token=names.resume("changes", identity, record.change))
            match record:
                case Bookmark(change=change):
                    made.bookmark.change = change
                case Deleted(rollout_id=rollout_id):
                    made.deleted = f"rollouts/{rollout_id}"
                case _:
                    made.rollout.CopyFrom(convert.rollout_to_pb(record))
            yield made

    async def StartRollout(self, request: pb.StartRolloutRequest, context: Context) -> pb.StartRolloutResponse:
        rollout_id = names.rollout(request.name)
        once = convert.once("StartRollout", request.request_id, request)
        rollout, attempt = await self._store.write(lambda tx: rollouts.start(tx, rollout_id, request.worker, once))
        made = pb.StartRolloutResponse(rollout=convert.rollout_to_pb(rollout), attempt=convert.attempt_to_pb(attempt))
        if self._issuer is not None:
            made.token = self._issuer.agents(rollout, attempt, convert.terms(rollout.spec.runner))
        return made

    async def FinishRollout(self, request: pb.FinishRolloutRequest, context: Context) -> pb.FinishRolloutResponse:
        rollout_id, outcome = names.rollout(request.name), convert.outcome(request.outcome)
        once = convert.once("FinishRollout", request.request_id, request)
        found = await self._store.write(
            lambda tx: rollouts.finish(tx, rollout_id, request.attempt, outcome, request.message, once)
        )
        return pb.FinishRolloutResponse(rollout=convert.rollout_to_pb(found))

    async def CancelRollout(self, request: pb.CancelRolloutRequest, context: Context) -> pb.CancelRolloutResponse:
        rollout_id = names.rollout(request.name)
        once = convert.once("CancelRollout", request.request_id, request)
        found = await self._store.write(lambda tx: rollouts.cancel(tx, rollout_id, request.message, once))
        return pb.CancelRolloutResponse(rollout=convert.rollout_to_pb(found))

    async def TransitionRollout(
        self, request: pb.TransitionRolloutRequest, context: Context
    ) -> pb.TransitionRolloutResponse:
        rollout_id, state = names.rollout(request.name), convert.state(request.state)
        once = convert.once("TransitionRollout", request.request_id, request)
        found = await self._store.write(
            lambda tx: rollouts.transition(tx, rollout_id, state, request.attempt, request.message, once)
        )
        return pb.TransitionRolloutResponse(rollout=convert.rollout_to_pb(found))

    async def _create(
        self,
        requests: Sequence[pb.CreateRolloutRequest],
        once: Once | None,
        add: Callable[[], pb.CreateRolloutResponse],
    ) -> None:
        """`add` makes the message that each answer is written into: one copy less than handing messages over."""
        specs = [convert.spec(request) for request in requests]
        made = await self._store.write(lambda tx: rollouts.create(tx, specs, once))
        for request, (rollout, existed) in zip(requests, made, strict=True):
            convert.created_to_pb(add(), request, rollout, existed)
