"""The bridge's Anthropic rpcs: unpack, await, pack. Every rpc is a server stream of HttpBody, one HTTP answer."""

from collections.abc import AsyncIterator

from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import convert
from openai_bridge.completion import Completions
from openai_bridge.dialects import anthropic_reply
from openai_bridge.dialects.anthropic_messages import AnthropicMessages
from openai_bridge.in_flight import InFlight
from openai_bridge.models import Models
from openai_bridge.servicers.answers import Context, completed, whole
from openai_bridge.types import Caller


class AnthropicServicer(bridge_pb2_grpc.AnthropicBridgeServiceServicer):
    """Messages, their tokens, and models."""

    def __init__(self, *, completions: Completions, models: Models, in_flight: InFlight) -> None:
        self._completions, self._models, self._in_flight = completions, models, in_flight
        self._dialect = AnthropicMessages()

    def CreateMessage(self, request: bridge_pb2.CreateMessageRequest, context: Context) -> AsyncIterator[HttpBody]:
        """A message, streamed or not."""
        return completed(self._dialect, self._completions, self._in_flight, request, context)

    def CountMessageTokens(
        self, request: bridge_pb2.CountMessageTokensRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """The length of a prompt."""

        async def body(caller: Caller) -> bytes:
            data = convert.body(request, context.invocation_metadata() or (), self._completions.limits)
            count = await self._completions.count(self._dialect, caller, data)
            return anthropic_reply.token_count(count)

        return whole(self._dialect, self._in_flight, request, context, body)

    def ListAnthropicModels(
        self, request: bridge_pb2.ListAnthropicModelsRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """What the rollout may call."""

        async def body(caller: Caller) -> bytes:
            return anthropic_reply.models(await self._models.allowed(caller.rollout))

        return whole(self._dialect, self._in_flight, request, context, body)

    def GetAnthropicModel(
        self, request: bridge_pb2.GetAnthropicModelRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """One model."""

        async def body(caller: Caller) -> bytes:
            return anthropic_reply.model(await self._models.find(caller.rollout, request.model))

        return whole(self._dialect, self._in_flight, request, context, body)
