"""What the gateway counts of its work as it happens, and the spans of generations.

In: facts, told by the parts. Out: families of `docs/metrics.md`. Labels are bounded: models, dialects, engines,
reasons; never a rollout.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind
from prometheus_client import CollectorRegistry

from gateway_svc.types import Ask, Event, ModelCall
from whippletree.errors import WhippletreeError
from whippletree.log import IDS
from whippletree.metrics import Families
from whippletree.tracing import Attributes, Tracing

COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
COMMIT_OPERATIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Recorder:
    """One for a gateway. Its methods may be called from the loop and from the store's writer."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self.tracing, make = tracing, Families(registry, "gateway")
        self._calls = make.counter(
            "calls", "Model calls recorded, by the engine's reason to end.", "model", "dialect", "mode", "finish"
        )
        self._tokens = make.counter("tokens", "Tokens of recorded calls: prompt or response.", "model", "part")
        self._held = make.histogram(
            "hold_seconds",
            "Waited while weights changed, or for a lease of them, by recorded calls that were held.",
            "model",
        )
        self._engine = make.histogram(
            "engine_seconds", "From the first question to an engine to the answer, by recorded calls.", "model"
        )
        self._repeats = make.counter(
            "repeats", "Requests answered without sampling: joined a running generation, or replayed a record.", "how"
        )
        self._failures = make.counter(
            "generation_failures", "Generations that ended without a record, by the reason callers were told.", "reason"
        )
        self._requests = make.histogram(
            "engine_request_seconds", "One question to an engine, whatever the answer.", "engine"
        )
        self._engine_failures = make.counter(
            "engine_failures", "Questions to an engine without an answer that could be used.", "engine", "cause"
        )
        self._commit_seconds = make.histogram(
            "commit_seconds", "One commit of the record, with its operations.", buckets=COMMIT_SECONDS
        ).of()
        self._commit_operations = make.histogram(
            "commit_operations", "Operations of one commit.", buckets=COMMIT_OPERATIONS
        ).of()

    @contextmanager
    def generation(self, ask: Ask) -> Iterator[Span]:
        """One generation from its first request to its record, whoever waits for it."""
        about: Attributes = {
            "whippletree.rollout": ask.rollout_id,
            "whippletree.attempt": ask.attempt,
            "whippletree.mode": ask.mode,
        }
        try:
            with self.tracing.span("generate", attributes=about) as span:
                yield span
        except WhippletreeError as error:
            self._failures.of(error.reason).inc()
            raise

    def generated(self, event: Event) -> None:
        """A new call was recorded."""
        call = event.payload
        assert isinstance(call, ModelCall)
        head, model = call.head, call.head.model
        self._calls.of(model, head.dialect, head.mode, head.finish).inc()
        self._tokens.of(model, "prompt").inc(call.prompt_count)
        self._tokens.of(model, "response").inc(call.response_count)
        self._engine.of(model).observe(head.engine_time / 1e6)
        if head.hold:
            self._held.of(model).observe(head.hold / 1e6)

    def joined(self) -> None:
        """A request found its generation under way."""
        self._repeats.of("joined").inc()

    def replayed(self) -> None:
        """A request found its call recorded."""
        self._repeats.of("replayed").inc()

    @contextmanager
    def asking(self, engine: str) -> Iterator[None]:
        """One question to an engine, until it ends, however it ends."""
        ids = IDS.get()
        about: Attributes = {
            "server.address": engine,
            "whippletree.rollout": ids.rollout,
            "whippletree.attempt": ids.attempt,
            "whippletree.call": ids.call,
        }
        with self._requests.of(engine).time(), self.tracing.span("engine", SpanKind.CLIENT, about):
            yield

    def engine_failed(self, engine: str, cause: str) -> None:
        """Its answer could not be used: refused, unreachable or unusable."""
        self._engine_failures.of(engine, cause).inc()

    def committed(self, operations: int, seconds: float) -> None:
        """A batch was committed; told by the writer's thread."""
        self._commit_operations.observe(operations)
        self._commit_seconds.observe(seconds)


def told(span: Span, event: Event) -> None:
    """Say in a generation's span what it came to."""
    if not span.is_recording():
        return
    call = event.payload
    assert isinstance(call, ModelCall)
    head = call.head
    span.set_attributes(
        {
            "gen_ai.request.model": head.model,
            "gen_ai.usage.input_tokens": call.prompt_count,
            "gen_ai.usage.output_tokens": call.response_count,
            "gen_ai.response.finish_reasons": (head.finish,),
            "gen_ai.response.id": call.call_id,
            "whippletree.run": IDS.get().run,
            "whippletree.call": call.call_id,
            "whippletree.held_seconds": head.hold / 1e6,
            "whippletree.weight_version": head.spans[-1].weight_version if head.spans else "",
        }
    )
