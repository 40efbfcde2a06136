"""An OpenTelemetry collector for tests: a real OTLP gRPC server that keeps what it is sent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

PATIENCE = 60.0
"""Seconds for a span to come; only a fault ever takes that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One span as it came. Ids are hexadecimal."""

    service: str
    name: str
    kind: int
    trace: str
    span: str
    parent: str
    failed: bool
    attributes: dict[str, Any]

    @property
    def traceparent(self) -> str:
        """How W3C names it."""
        return f"00-{self.trace}-{self.span}-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps spans."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Sent] = []
        self._changed = asyncio.Condition()

    async def until(self, holds: Callable[[list[Sent]], bool]) -> list[Sent]:
        """All spans, once this holds of them."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: holds(self.spans))
        return self.spans

    async def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:
        """The one rpc of OTLP's traces."""
        async with self._changed:
            for resource in request.resource_spans:
                service = _attributes(resource.resource.attributes).get("service.name", "")
                self.spans += [_sent(service, span) for scope in resource.scope_spans for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()


def _sent(service: str, span: Any) -> Sent:
    return Sent(
        service=service,
        name=span.name,
        kind=span.kind,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        failed=span.status.code == 2,
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextlib.asynccontextmanager
async def collector(address: str = "127.0.0.1:0") -> AsyncIterator[Collector]:
    """A collector while the block runs."""
    server, made = grpc.aio.server(), Collector()
    add: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server  # untyped
    add(made, server)
    made.url = f"http://127.0.0.1:{server.add_insecure_port(address)}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)
