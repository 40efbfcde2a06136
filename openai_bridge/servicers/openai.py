"""The bridge's OpenAI rpcs: unpack, await, pack. Every rpc is a server stream of HttpBody, one HTTP answer."""

from collections.abc import AsyncIterator

from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import convert, reply
from openai_bridge.completion import JSON, Completions
from openai_bridge.dialects.openai_chat import OpenAIChat
from openai_bridge.in_flight import InFlight, Scope
from openai_bridge.models import Models
from openai_bridge.servicers.answers import Context, answer, completed
from openai_bridge.types import Part


class OpenAIServicer(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """Chat completions and models."""

    def __init__(self, *, completions: Completions, models: Models, in_flight: InFlight) -> None:
        self._completions, self._models, self._in_flight = completions, models, in_flight
        self._dialect = OpenAIChat()

    def ChatCompletions(self, request: bridge_pb2.ChatCompletionsRequest, context: Context) -> AsyncIterator[HttpBody]:
        """A chat completion, streamed or not."""
        return completed(self._dialect, self._completions, self._in_flight, request, context)

    def ListOpenAIModels(
        self, request: bridge_pb2.ListOpenAIModelsRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """What the rollout may call."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.allowed(convert.caller(request).rollout)
            yield Part(content_type=JSON, data=reply.models(found))

        return answer(self._dialect, self._in_flight, request, context, parts)

    def GetOpenAIModel(self, request: bridge_pb2.GetOpenAIModelRequest, context: Context) -> AsyncIterator[HttpBody]:
        """One model."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.find(convert.caller(request).rollout, request.model)
            yield Part(content_type=JSON, data=reply.model(found))

        return answer(self._dialect, self._in_flight, request, context, parts)
