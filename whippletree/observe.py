"""What is seen of every rpc, in one layer: its ids for the log, its metrics, its span where it is traced.

In: method, metadata, the request's own fields. Order: the ids are set before the method runs, and go with every task
that it starts; code and duration are counted when it has ended, however it ended. Health and reflection are left out.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from whippletree.log import IDS, Ids
from whippletree.methods import Handler, Layer, wrapped
from whippletree.metrics import SECONDS, Bound
from whippletree.tracing import Tracing, fail

OURS = "/whippletree."
CODES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
METHODS = 100
"""Methods at most that are told apart, above what all services together have."""

NAMING = ("name", "parent", "run", "rollout", "attempt")
"""Fields of requests that name what they are about."""

_NAME = re.compile(r"(rollouts|runs)/([^/]{1,64})(?:/attempts/([0-9]{1,9})(?:/|$))?")
_REQUEST = re.compile(r"[\w-]{1,64}")
_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

Metadata = Iterable[tuple[str, str | bytes]]


def ids(metadata: Metadata, request: Any) -> Ids:
    """What an rpc works for, by what Envoy or a service of ours sent along, and by the request's fields. Pure."""
    sent = dict(metadata)
    rollout, attempt, run = str(sent.get("whippletree-rollout", ""))[:64], 0, ""
    for field in _fields(getattr(request, "DESCRIPTOR", None)):
        value = getattr(request, field)
        if field == "attempt":
            attempt = _number(value) or attempt
        elif found := _NAME.match(value):
            kind, identifier, number = found.groups()
            if kind == "runs":
                run = identifier
            else:
                rollout, attempt = identifier, int(number or 0) or attempt
        elif field == "rollout":  # a path has it bare
            rollout = rollout or value[:64]
    return Ids(
        rollout=rollout,
        attempt=attempt,
        run=run,
        request=_matching(_REQUEST, sent.get("x-request-id", "")),
        traceparent=_matching(_TRACEPARENT, sent.get("traceparent", "")),
    )


@cache
def _fields(descriptor: Descriptor | None) -> tuple[str, ...]:
    """The fields of this kind of request that may name something."""
    fields = () if descriptor is None else descriptor.fields
    plain = (FieldDescriptor.CPPTYPE_STRING, FieldDescriptor.CPPTYPE_INT32)
    return tuple(field.name for field in fields if field.name in NAMING and field.cpp_type in plain)


def _number(value: int | str) -> int:
    """An attempt as a message has it, or as a path does."""
    if isinstance(value, int):
        return value
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else 0


def _matching(form: re.Pattern[str], value: str | bytes) -> str:
    return value if value and isinstance(value, str) and form.fullmatch(value) else ""


class Rpcs:
    """The families of all rpcs that a process serves; `method` is `Service/Method`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        ended = Counter("whippletree_rpc", "Rpcs that ended.", ("method", "code"), registry=registry)
        flying = Gauge("whippletree_rpc_in_flight", "Rpcs under way.", ("method",), registry=registry)
        seconds = Histogram(
            "whippletree_rpc_duration_seconds",
            "From the request to the end of the answer, watches included.",
            ("method",),
            buckets=SECONDS,
            registry=registry,
        )
        self._ended = Bound(ended, METHODS * len(CODES))
        self._flying, self._seconds = Bound(flying, METHODS), Bound(seconds, METHODS)

    def begun(self, method: str) -> None:
        """An rpc came."""
        self._flying.of(method).inc()

    def ended(self, method: str, code: str, seconds: float) -> None:
        """It has ended."""
        self._flying.of(method).dec()
        self._ended.of(method, code).inc()
        self._seconds.of(method).observe(seconds)


def observing(rpcs: Rpcs, tracing: Tracing) -> Layer:
    """To be the outermost one: it sees the code that a call really ended with."""

    def layer(method: str, handler: Handler) -> Handler:
        if not method.startswith(OURS):
            return handler
        observed = partial(_Observed, rpcs, tracing, method.rpartition(".")[2])
        return wrapped(handler, partial(_unary, observed=observed), partial(_stream, observed=observed))

    return layer


class _Observed:
    """One rpc while it runs."""

    __slots__ = ("_begin", "_context", "_ids", "_name", "_rpcs", "_span", "_tracing")

    def __init__(self, rpcs: Rpcs, tracing: Tracing, name: str, request: object, context: Any) -> None:
        self._rpcs, self._tracing, self._name, self._context = rpcs, tracing, name, context
        self._ids, self._begin = ids(context.invocation_metadata() or (), request), 0.0
        self._span: Span = INVALID_SPAN

    def __enter__(self) -> None:
        self._begin = time.perf_counter()
        IDS.set(self._ids)
        self._rpcs.begun(self._name)
        if self._ids.traceparent:  # what no trace led to, such as a watch of ours, would be a trace of its own
            self._span = self._tracing.begin(self._name, SpanKind.SERVER, attributes(self._ids, self._name))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = code_of(kind, self._context.code())
        self._rpcs.ended(self._name, code, time.perf_counter() - self._begin)
        if self._span is not INVALID_SPAN:
            _end(self._span, code)


def attributes(known: Ids, method: str) -> dict[str, str | int]:
    """Of an rpc's span."""
    service, _, name = method.partition("/")
    found: dict[str, str | int] = {"rpc.system": "grpc", "rpc.service": f"whippletree.v1.{service}", "rpc.method": name}
    own: dict[str, str | int] = {
        "rollout": known.rollout,
        "attempt": known.attempt,
        "run": known.run,
        "request": known.request,
    }
    return found | {f"whippletree.{key}": value for key, value in own.items() if value}


def code_of(kind: type[BaseException] | None, code: Any) -> str:
    """How a call ended: what it raised, and the code that its context holds (0 = none was set)."""
    if kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit)):
        return grpc.StatusCode.CANCELLED.name
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    return CODES.get(number or (grpc.StatusCode.UNKNOWN.value[0] if kind else 0), "UNKNOWN")


def _end(span: Span, code: str) -> None:
    span.set_attribute("rpc.grpc.status_code", code)
    if code != "OK":
        fail(span, code)
    span.end()


def _unary(
    method: Callable[..., Awaitable[Any]], observed: Callable[[Any, Any], _Observed]
) -> Callable[..., Awaitable[Any]]:
    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        with observed(request, context):
            return await method(request, context)

    return run


def _stream(
    method: Callable[..., AsyncIterator[Any]], observed: Callable[[Any, Any], _Observed]
) -> Callable[..., AsyncIterator[Any]]:
    async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        with observed(request, context):
            messages = method(request, context)
            del request  # a call that is aborted keeps this frame until garbage is collected
            async for message in messages:
                yield message

    return run
