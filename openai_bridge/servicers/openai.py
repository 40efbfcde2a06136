"""The bridge's OpenAI rpcs: unpack, await, pack. Every rpc is a server stream of HttpBody, one HTTP answer."""

from collections.abc import AsyncIterator

from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import reply
from openai_bridge.completion import Completions
from openai_bridge.dialects.openai_chat import OpenAIChat
from openai_bridge.in_flight import InFlight
from openai_bridge.models import Models
from openai_bridge.servicers.answers import Context, completed, whole
from openai_bridge.types import Caller


class OpenAIServicer(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """Chat completions and models."""

    def __init__(self, *, completions: Completions, models: Models, in_flight: InFlight) -> None:
        self._completions, self._models, self._in_flight = completions, models, in_flight
        self._dialect = OpenAIChat()

    def ChatCompletions(self, request: bridge_pb2.ChatCompletionsRequest, context: Context) -> AsyncIterator[HttpBody]:
        """A chat completion, streamed or not."""
        dialect = OpenAIChat(model=request.model) if request.model else self._dialect
        return completed(dialect, self._completions, self._in_flight, request, context)

    def ListOpenAIModels(
        self, request: bridge_pb2.ListOpenAIModelsRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """What the rollout may call."""

        async def body(caller: Caller) -> bytes:
            return reply.models(await self._models.allowed(caller.rollout))

        return whole(self._dialect, self._in_flight, request, context, body)

    def GetOpenAIModel(self, request: bridge_pb2.GetOpenAIModelRequest, context: Context) -> AsyncIterator[HttpBody]:
        """One model."""

        async def body(caller: Caller) -> bytes:
            return reply.model(await self._models.find(caller.rollout, request.model))

        return whole(self._dialect, self._in_flight, request, context, body)
