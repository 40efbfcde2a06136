"""How every rpc of a dialect answers: parts become messages, and errors get the dialect's shape in this one place.

An error before the first byte is sent as initial metadata `x-http-code` (which Envoy's Lua filter makes the status),
one whole error body, and the gRPC status for callers who speak gRPC. After the first byte of an event stream it is an
error event: over HTTP/1.1 a stream that merely ends looks complete.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.api.httpbody_pb2 import HttpBody

from openai_bridge import convert, errors
from openai_bridge.completion import JSON, SSE, Completions
from openai_bridge.dialects.dialect import Dialect
from openai_bridge.in_flight import InFlight, Scope
from openai_bridge.types import Caller, Part
from whippletree.errors import InternalError, WhippletreeError
from whippletree.http_door import CODE, TOLD

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, HttpBody]


async def answer(
    dialect: Dialect,
    in_flight: InFlight,
    context: Context,
    parts: Callable[[Scope], AsyncIterator[Part]],
) -> AsyncIterator[HttpBody]:
    """Everything that `parts` yields; what it raises is told in the dialect's shape and then raised."""
    sent = ""
    with in_flight.scope() as scope:
        context.add_done_callback(lambda _: scope.cancel())  # type: ignore[arg-type]  # typed for unary
        try:
            answered = parts(scope)
            del parts  # and the request with it: a call may be held for long
            async for part in answered:
                sent = sent or part.content_type
                yield convert.http_body(part)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            async for message in _told(dialect, _known(error), context, sent):
                yield message
            if isinstance(error, WhippletreeError):
                raise  # as it is: an error that causes itself would keep the body until the next collection of garbage
            raise InternalError("internal error") from error


def completed(
    dialect: Dialect,
    completions: Completions,
    in_flight: InFlight,
    request: convert.BodyRequest,
    context: Context,
) -> AsyncIterator[HttpBody]:
    """The rpc by which a dialect asks a model for a reply."""

    def parts(scope: Scope) -> AsyncIterator[Part]:
        caller, headers = convert.caller(request), context.invocation_metadata() or ()
        data = convert.body(request, headers, completions.limits)
        repeat, keeps_alive = convert.repeat(headers), convert.keeps_alive(headers)
        return completions.answer(dialect, caller, data, repeat, scope, keeps_alive=keeps_alive)

    return answer(dialect, in_flight, context, parts)


def whole(
    dialect: Dialect,
    in_flight: InFlight,
    request: convert.PathRequest,
    context: Context,
    body: Callable[[Caller], Awaitable[bytes]],
) -> AsyncIterator[HttpBody]:
    """An rpc that answers with one JSON body."""

    async def parts(scope: Scope) -> AsyncIterator[Part]:
        yield Part(content_type=JSON, data=await body(convert.caller(request)))

    return answer(dialect, in_flight, context, parts)


def _known(error: Exception) -> WhippletreeError:
    if isinstance(error, WhippletreeError):
        return error
    log.error("unforeseen failure", exc_info=error)
    return InternalError("internal error")


async def _told(dialect: Dialect, error: WhippletreeError, context: Context, sent: str) -> AsyncIterator[HttpBody]:
    failure = errors.failure(error)
    if not sent:
        await context.send_initial_metadata(((CODE, str(failure.status)), *failure.headers.items()))
        yield HttpBody(content_type=JSON, data=dialect.error_body(failure))
    elif sent == SSE:
        context.set_trailing_metadata((TOLD,))
        yield HttpBody(content_type=SSE, data=dialect.error_event(failure))
