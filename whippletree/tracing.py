"""Spans, exported by OTLP where a collector is configured; elsewhere none is made, and that costs nothing measurable.

In: names and attributes. Out: spans whose parent is the one that is open in this task (`log.IDS`), which may be a
caller's, sent as W3C `traceparent`. Spans wait in a bounded queue for a thread of their own: a collector that is slow
or away costs spans, never a call.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from whippletree.errors import WhippletreeError
from whippletree.log import IDS, about
from whippletree.settings import TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

QUEUE = 8192
"""Spans that wait for the collector at most; further ones push the oldest out."""
EXPORT_DEADLINE = 5.0
"""Seconds for one batch."""
FLUSH_DEADLINE = 2.0
"""Seconds for what is left when the process stops."""

Attributes = Mapping[str, str | int | float | bool]
_OFF: AbstractContextManager[Span] = nullcontext(INVALID_SPAN)


class Tracing:
    """Makes spans; without a tracer it makes none, and every method is a no-op."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        self._tracer = tracer

    def begin(self, name: str, kind: SpanKind, attributes: Attributes) -> Span:
        """Open a span for the rest of this task; `Span.end` ends it."""
        if self._tracer is None:
            return INVALID_SPAN
        parent = TraceContextTextMapPropagator().extract({"traceparent": IDS.get().traceparent})
        span = self._tracer.start_span(name, parent, kind, attributes)
        context = span.get_span_context()
        flags = int(context.trace_flags)
        about(traceparent=f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}")
        return span

    def span(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> AbstractContextManager[Span]:
        """A span while the block runs; what is called from inside is its child."""
        return _OFF if self._tracer is None else self._open(name, kind, attributes or {})

    @contextmanager
    def _open(self, name: str, kind: SpanKind, attributes: Attributes) -> Iterator[Span]:
        before = IDS.get().traceparent
        span = self.begin(name, kind, attributes)
        try:
            yield span
        except BaseException as error:
            fail(span, error.reason if isinstance(error, WhippletreeError) else type(error).__name__)
            raise
        finally:
            span.end()
            about(traceparent=before)


def fail(span: Span, error_type: str) -> None:
    """Mark a span as failed; never with an exception's text, which may hold what a harness sent."""
    span.set_attribute("error.type", error_type)
    span.set_status(Status(StatusCode.ERROR))


def outgoing() -> tuple[tuple[str, str], ...]:
    """Headers, or gRPC metadata, that name the open span and the HTTP request to whoever is called."""
    ids = IDS.get()
    pairs = (("traceparent", ids.traceparent), ("x-request-id", ids.request))
    return tuple((name, value) for name, value in pairs if value)


@asynccontextmanager
async def exporting(service: str, settings: TracingSettings) -> AsyncIterator[Tracing]:
    """Tracing while the block runs; at its end what waits is sent, for at most FLUSH_DEADLINE seconds."""
    if not settings.otlp:
        yield Tracing()
        return
    provider = _provider(service, settings)
    try:
        yield Tracing(provider.get_tracer("whippletree"))
    finally:
        flush = threading.Thread(target=provider.shutdown, name="flush-of-traces", daemon=True)
        flush.start()
        await asyncio.to_thread(flush.join, FLUSH_DEADLINE)


def _provider(service: str, settings: TracingSettings) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # a third of a second
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    secure = settings.otlp.startswith("https://")
    exporter = OTLPSpanExporter(endpoint=settings.otlp, insecure=not secure, timeout=EXPORT_DEADLINE)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.ratio)),
        resource=Resource.create({"service.name": f"whippletree-{service}"}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE, schedule_delay_millis=1000))
    return provider
