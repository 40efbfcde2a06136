"""InferenceService."""

from typing import Any

import grpc
from whippletree.v1 import inference_pb2 as pb
from whippletree.v1.inference_pb2_grpc import InferenceServiceServicer

from gateway_svc import calls, convert_calls, names, turns
from gateway_svc.generate import Generator
from gateway_svc.store import SHARING, Store
from gateway_svc.types import ModelCall, View
from whippletree.errors import InvalidFieldError

Context = grpc.aio.ServicerContext[Any, Any]
ANY_ROLLOUT = "rollouts/-"
DELIVERED_LIMIT = 100
"""Calls, or requests, of one report at most."""


class InferenceServicer(InferenceServiceServicer):
    """Generations, by the generator; deliveries, into the store."""

    def __init__(self, generator: Generator, store: Store) -> None:
        self._generator, self._store = generator, store

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        ask = convert_calls.ask(request, self._generator.recent)
        call = (await self._generator.generate(ask)).payload
        assert isinstance(call, ModelCall)
        return pb.GenerateResponse(
            call=convert_calls.call_to_pb(call, View.BASIC),
            response_token_ids=call.response,
            response_logprobs=call.logprobs,
        )

    async def MarkDelivered(self, request: pb.MarkDeliveredRequest, context: Context) -> pb.MarkDeliveredResponse:
        if len(request.call_ids) > DELIVERED_LIMIT:
            raise InvalidFieldError(f"more than {DELIVERED_LIMIT} calls", field="call_ids")
        rollout_id = None if request.rollout == ANY_ROLLOUT else names.rollout(request.rollout, "rollout")
        call_ids = tuple(request.call_ids)
        await self._store.write(lambda tx: calls.mark_delivered(tx, rollout_id, call_ids), patience=SHARING)
        return pb.MarkDeliveredResponse()

    async def MarkUndelivered(self, request: pb.MarkUndeliveredRequest, context: Context) -> pb.MarkUndeliveredResponse:
        if len(request.request_ids) > DELIVERED_LIMIT:
            raise InvalidFieldError(f"more than {DELIVERED_LIMIT} requests", field="request_ids")
        rollout_id, request_ids = names.rollout(request.rollout, "rollout"), tuple(request.request_ids)
        await self._store.write(lambda tx: turns.lose(tx, rollout_id, request_ids))
        return pb.MarkUndeliveredResponse()
