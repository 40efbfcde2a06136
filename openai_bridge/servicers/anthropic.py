"""The bridge's Anthropic rpcs: unpack, await, pack. Every rpc is a server stream of HttpBody, one HTTP answer."""

from collections.abc import AsyncIterator

from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import convert
from openai_bridge.completion import JSON, Completions
from openai_bridge.dialects import anthropic_reply
from openai_bridge.dialects.anthropic_messages import AnthropicMessages
from openai_bridge.in_flight import InFlight, Scope
from openai_bridge.models import Models
from openai_bridge.servicers.answers import Context, answer, completed
from openai_bridge.types import Part


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

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            caller = convert.caller(request)
            data = convert.body(request, context.invocation_metadata() or (), self._completions.limits)
            count = await self._completions.count(self._dialect, caller, data)
            yield Part(content_type=JSON, data=anthropic_reply.token_count(count))

        return answer(self._dialect, self._in_flight, request, context, parts)

    def ListAnthropicModels(
        self, request: bridge_pb2.ListAnthropicModelsRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """What the rollout may call."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.allowed(convert.caller(request).rollout)
            yield Part(content_type=JSON, data=anthropic_reply.models(found))

        return answer(self._dialect, self._in_flight, request, context, parts)

    def GetAnthropicModel(
        self, request: bridge_pb2.GetAnthropicModelRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """One model."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.find(convert.caller(request).rollout, request.model)
            yield Part(content_type=JSON, data=anthropic_reply.model(found))

        return answer(self._dialect, self._in_flight, request, context, parts)
