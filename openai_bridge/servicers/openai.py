"""The bridge's OpenAI rpcs: unpack, await, pack; and the one place where errors get OpenAI's shape.

An error before the first byte is sent as initial metadata `x-http-code` (which Envoy's Lua filter makes the status),
one whole error body, and the gRPC status for callers who speak gRPC. After the first byte of an event stream it is an
error event: over HTTP/1.1 a stream that merely ends looks complete.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import grpc
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from openai_bridge import convert, errors, reply
from openai_bridge.completion import JSON, SSE, Completions
from openai_bridge.in_flight import InFlight, Scope
from openai_bridge.models import Models
from openai_bridge.types import Part
from whippletree.errors import InternalError, WhippletreeError
from whippletree.log import ROLLOUT

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[convert.PathRequest, HttpBody]


class OpenAIServicer(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """Every rpc is a server stream of HttpBody; the transcoder makes it one HTTP answer."""

    def __init__(self, *, completions: Completions, models: Models, in_flight: InFlight) -> None:
        self._completions, self._models, self._in_flight = completions, models, in_flight

    def ChatCompletions(self, request: bridge_pb2.ChatCompletionsRequest, context: Context) -> AsyncIterator[HttpBody]:
        """A chat completion, streamed or not."""

        def parts(scope: Scope) -> AsyncIterator[Part]:
            repeat = convert.repeat(context.invocation_metadata() or ())
            return self._completions.answer(convert.caller(request), request.body.data, repeat, scope)

        return self._answer(request, context, parts)

    def ListOpenAIModels(
        self, request: bridge_pb2.ListOpenAIModelsRequest, context: Context
    ) -> AsyncIterator[HttpBody]:
        """What the rollout may call."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.allowed(convert.caller(request).rollout)
            yield Part(content_type=JSON, data=reply.models(found))

        return self._answer(request, context, parts)

    def GetOpenAIModel(self, request: bridge_pb2.GetOpenAIModelRequest, context: Context) -> AsyncIterator[HttpBody]:
        """One model."""

        async def parts(scope: Scope) -> AsyncIterator[Part]:
            found = await self._models.find(convert.caller(request).rollout, request.model)
            yield Part(content_type=JSON, data=reply.model(found))

        return self._answer(request, context, parts)

    async def _answer(
        self, request: convert.PathRequest, context: Context, parts: Callable[[Scope], AsyncIterator[Part]]
    ) -> AsyncIterator[HttpBody]:
        ROLLOUT.set(request.rollout)
        sent = ""
        with self._in_flight.scope() as scope:
            context.add_done_callback(lambda _: scope.cancel())  # type: ignore[arg-type]  # typed for unary
            try:
                async for part in parts(scope):
                    sent = sent or part.content_type
                    yield convert.http_body(part)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except Exception as error:
                known = _known(error)
                async for message in _told(known, context, sent):
                    yield message
                raise known from error


def _known(error: Exception) -> WhippletreeError:
    if isinstance(error, WhippletreeError):
        return error
    log.error("unforeseen failure", exc_info=error)
    return InternalError("internal error")


async def _told(error: WhippletreeError, context: Context, sent: str) -> AsyncIterator[HttpBody]:
    failure = errors.failure(error)
    if not sent:
        await context.send_initial_metadata((("x-http-code", str(failure.status)), *failure.headers.items()))
        yield HttpBody(content_type=JSON, data=failure.body)
    elif sent == SSE:
        yield HttpBody(content_type=SSE, data=b"data: " + failure.body + b"\n\n")
