"""AttemptService."""

from typing import Any

import grpc
from whippletree.v1 import attempt_pb2 as pb
from whippletree.v1.attempt_pb2_grpc import AttemptServiceServicer

from gateway_svc import convert, names, rollouts
from gateway_svc.store import Store

Context = grpc.aio.ServicerContext[Any, Any]


class AttemptServicer(AttemptServiceServicer):
    """Attempts, from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def GetAttempt(self, request: pb.GetAttemptRequest, context: Context) -> pb.GetAttemptResponse:
        rollout_id, number = names.attempt(request.name)
        found = await self._store.read(lambda connection: rollouts.get_attempt(connection, rollout_id, number))
        return pb.GetAttemptResponse(attempt=convert.attempt_to_pb(found))

    async def ListAttempts(self, request: pb.ListAttemptsRequest, context: Context) -> pb.ListAttemptsResponse:
        rollout_id = names.rollout(request.parent, "parent")
        size = convert.page_size(request.page_size, 100, 100)
        after = names.number("attempts", request.page_token, "page_token")
        found = await self._store.read(
            lambda connection: rollouts.list_attempts(connection, rollout_id, after, size + 1)
        )
        return pb.ListAttemptsResponse(
            attempts=[convert.attempt_to_pb(attempt) for attempt in found[:size]],
            next_page_token=names.token("attempts", found[size - 1].number) if len(found) > size else "",
        )
