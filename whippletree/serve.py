"""How every service serves: limits, health, reflection, errors, and a stop that lets calls in flight end.

In: servicers. Out: a listening `grpc.aio` server. Order of a stop: health says NOT_SERVING, `drain` ends what only the
service can end, calls in flight get `grace` seconds, then the server closes.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from whippletree.channel import MESSAGE_LIMIT
from whippletree.errors import InternalError, InvalidFieldError, WhippletreeError
from whippletree.identity.guard import Guard
from whippletree.settings import ServerTls
from whippletree.tls import server_credentials

log = logging.getLogger(__name__)

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    # By default requests with more than 8 KiB of headers are refused, some with 429; Envoy decides, at 60 KiB.
    ("grpc.max_metadata_size", 128 << 10),
    ("grpc.absolute_max_metadata_size", 256 << 10),
    # Envoy and our channels ping every 30 s; by default the server answers too_many_pings and kills calls in flight.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # By default the core cancels calls at random above 1,000 pending ones.
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 20),
    ("grpc.so_reuseport", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One gRPC service: its full name and what adds its servicer to a server."""

    full_name: str
    register: Callable[[grpc.aio.Server], None]


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a composition root has built, to be served by a server of its own or by one that serves others too."""

    services: Sequence[Service]
    drain: Callable[[], Awaitable[None]] = _nothing
    """Ends what only the service can end; see `listening`."""
    checks: health.aio.HealthServicer | None = None
    """Health that the service speaks of itself."""
    guard: Guard | None = None
    """Who may call it; None = everybody."""


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands for a request whose bytes are no message: text that is not UTF-8, nesting that is too deep."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns WhippletreeError into google.rpc.Status, and anything unforeseen into INTERNAL without its text."""

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _unary(handler.unary_unary, handler_call_details.method),
                _decoder(handler.request_deserializer),
                handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                _stream(handler.unary_stream, handler_call_details.method),
                _decoder(handler.request_deserializer),
                handler.response_serializer,
            )
        return handler


def _decoder(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Bytes -> message or `_Undecodable`: what is raised in a deserializer is told with the exception's text."""

    def decoded(data: bytes) -> Any:
        try:
            return decode(data)
        except DecodeError:
            return _Undecodable()

    return decoded


def _check_decoded(request: Any) -> None:
    if isinstance(request, _Undecodable):
        raise InvalidFieldError("the request cannot be decoded: text that is not UTF-8, or nesting that is too deep")


def known(error: Exception, name: str) -> WhippletreeError:
    """What the caller of the method `name` is told; what is unforeseen goes to the log and is told as INTERNAL."""
    if isinstance(error, WhippletreeError):
        return error
    log.error("unforeseen failure in %s", name, exc_info=error)
    return InternalError("internal error")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception, name: str) -> None:
    """End a call with its error's status."""
    await context.abort_with_status(rpc_status.to_status(known(error, name).to_status()))


def _unary(method: Callable[..., Awaitable[Any]], name: str) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            _check_decoded(request)
            return await method(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await _abort(context, error, name)

    return guarded


def _stream(method: Callable[..., AsyncIterator[Any]], name: str) -> Callable[..., AsyncIterator[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            _check_decoded(request)
            async for message in method(request, context):
                yield message
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            await _abort(context, error, name)

    return guarded


@contextlib.asynccontextmanager
async def listening(
    services: Sequence[Service],
    address: str,
    *,
    grace: float = 5.0,
    drain: Callable[[], Awaitable[None]] | None = None,
    reflected: Sequence[str] = (),
    checks: health.aio.HealthServicer | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    guard: Guard | None = None,
    tls: ServerTls | None = None,
) -> AsyncIterator[int]:
    """Serve on `host:port` (port 0 = any free one) while the block runs; yields the port. OSError where it is taken.

    `reflected` names services of other servers that this one describes too: reflection asked at a front door that
    routes to several servers has to know them all. Their generated modules must be imported. `checks` is the health
    that is served, for a service that has more to say there than that it serves. `interceptors`, the outermost first,
    lie around the one that maps errors, `guard` within it: who may call; None = everybody.
    """
    around = [*interceptors, ErrorInterceptor(), *([guard] if guard is not None else [])]
    server = grpc.aio.server(interceptors=around, options=OPTIONS)
    for service in services:
        service.register(server)
    checks = checks or health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    names = [service.full_name for service in services]
    described = {*names, *reflected, health.SERVICE_NAME, reflection.SERVICE_NAME}
    reflection.enable_server_reflection(sorted(described), server)
    try:
        credentials = server_credentials(tls) if tls is not None else None
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: the port is taken or the address is not ours") from error
    await server.start()
    for name in ("", *names):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield port
    finally:
        await checks.enter_graceful_shutdown()
        if drain is not None:
            await drain()
        await server.stop(grace)


async def until_signal() -> None:
    """Return at the first SIGTERM or SIGINT."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
