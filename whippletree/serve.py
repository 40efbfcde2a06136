"""How every service serves: limits, health, reflection, errors, and a stop that lets calls in flight end.

In: servicers. Out: a listening `grpc.aio` server. How it stops is told in `stop.py`.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from whippletree.channel import MESSAGE_LIMIT
from whippletree.errors import InternalError, InvalidFieldError, ShuttingDownError, WhippletreeError
from whippletree.identity.guard import Guard
from whippletree.methods import Handler, Layer, Methods, wrapped
from whippletree.settings import ServerTls
from whippletree.stop import REFUSED, WRITING, Calls
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


class Door(Protocol):
    """Another way in to a server's methods, open while the server is; see `http_door.py`."""

    async def open(self, methods: Methods) -> None:
        """Let calls in. OSError where its address is in use."""

    def leave(self) -> None:
        """The server begins to stop: callers are to look for another one after their present calls."""

    async def close(self) -> None:
        """Let nobody in; what is being written may end."""


STOPS = ShuttingDownError("the service stops")


async def drain_nothing() -> None:
    """For a service that holds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a composition root has built, to be served by a server of its own or by one that serves others too."""

    services: Sequence[Service]
    drain: Callable[[], Awaitable[None]] = drain_nothing
    """Ends what only the service can end; see `stop.py`."""
    cut: Callable[[], None] | None = None
    """Ends what still runs when the grace is over, each answer in its own words; None = with the server's."""
    checks: health.aio.HealthServicer | None = None
    """Health that the service speaks of itself."""
    guard: Guard | None = None
    """Who may call it; None = everybody."""


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Stands for a request whose bytes are no message: text that is not UTF-8, nesting that is too deep."""


def mapping(calls: Calls) -> Layer:
    """Turns WhippletreeError into google.rpc.Status, and anything unforeseen into INTERNAL without its text.

    It counts the calls too, refuses them while the server stops, and says so where the stop cuts one.
    """

    def layer(method: str, handler: Handler) -> Handler:
        if method.startswith("/grpc."):  # health is told to the very end
            return handler
        unary, stream = partial(_unary, name=method, calls=calls), partial(_stream, name=method, calls=calls)
        return wrapped(handler, unary, stream, _decoder)

    return layer


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


def _status(error: Exception, name: str) -> Any:
    """How a call ends. To be aborted outside of the `except` clause: a call and what aborted it keep one another, and
    whatever led to that, until garbage is collected. A body in some frame may be large."""
    return rpc_status.to_status(known(error, name).to_status())


async def _refuse(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    status = rpc_status.to_status(STOPS.to_status())
    await context.abort(status.code, status.details, trailing_metadata=(REFUSED, *status.trailing_metadata))


def _unary(method: Callable[..., Awaitable[Any]], name: str, calls: Calls) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        if calls.refusing:
            await _refuse(context)
        calls.begin()
        try:
            _check_decoded(request)
            return await method(request, context)
        except asyncio.CancelledError:
            if not calls.was_cut():
                raise
            status = _status(STOPS, name)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            status = _status(error, name)
        return await context.abort_with_status(status)

    return guarded


def _stream(method: Callable[..., AsyncIterator[Any]], name: str, calls: Calls) -> Callable[..., AsyncIterator[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if calls.refusing:
            await _refuse(context)
        calls.begin()
        try:
            _check_decoded(request)
            messages = method(request, context)
            del request  # see `_status`
            async for message in messages:
                calls.writes()
                yield message
                if not calls.goes_on():
                    break
            else:
                return
            status = _status(STOPS, name)
        except asyncio.CancelledError:
            if not calls.was_cut():
                raise
            status = _status(STOPS, name)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            status = _status(error, name)
        await context.abort_with_status(status)

    return guarded


@contextlib.asynccontextmanager
async def listening(
    services: Sequence[Service],
    address: str,
    *,
    notice: float = 0.0,
    grace: float = 5.0,
    drain: Callable[[], Awaitable[None]] = drain_nothing,
    cut: Callable[[], None] | None = None,
    haste: asyncio.Event | None = None,
    reflected: Sequence[str] = (),
    checks: health.aio.HealthServicer | None = None,
    layers: Sequence[Layer] = (),
    guard: Guard | None = None,
    tls: ServerTls | None = None,
    doors: Sequence[Door] = (),
) -> AsyncIterator[int]:
    """Serve on `host:port` (port 0 = any free one) while the block runs; yields the port. OSError where it is taken.

    `notice`, `grace`, `drain`, `cut` and `haste` are told in `stop.py`.
    `reflected` names services of other servers that this one describes too: reflection asked at a front door that
    routes to several servers has to know them all. Their generated modules must be imported. `checks` is the health
    that is served, for a service that has more to say there than that it serves. `layers`, the outermost first, lie
    around the one that maps errors, `guard` within it: who may call; None = everybody. `doors` are other ways in to the
    same methods.
    """
    calls = Calls()
    server = grpc.aio.server(options=OPTIONS)
    methods = Methods([*layers, mapping(calls), *([guard.layer] if guard is not None else [])])
    table = cast(grpc.aio.Server, methods)
    for service in services:
        service.register(table)
    checks = checks or health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, table)
    names = [service.full_name for service in services]
    described = {*names, *reflected, health.SERVICE_NAME, reflection.SERVICE_NAME}
    reflection.enable_server_reflection(sorted(described), table)
    server.add_generic_rpc_handlers((methods,))
    try:
        credentials = server_credentials(tls) if tls is not None else None
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: the port is taken or the address is not ours") from error
    starting = asyncio.ensure_future(server.start())  # cut in the middle, it leaves a server that fails at its stop
    served = False
    try:
        await asyncio.shield(starting)
        for name in ("", *names):
            await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        for door in doors:
            await door.open(methods)
        served = True
        yield port
    finally:
        await asyncio.wait([starting])
        await checks.enter_graceful_shutdown()
        for door in doors:
            door.leave()
        await calls.end(
            notice=notice if served else 0, grace=grace, drain=drain, cut=cut, haste=haste or asyncio.Event()
        )
        await asyncio.gather(server.stop(WRITING), *(door.close() for door in doors))
