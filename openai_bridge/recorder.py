"""What the bridge counts of its work, and the span of a completion.

In: facts, told by the parts as they happen. Out: families of `docs/metrics.md`. Labels are bounded: dialects, models,
reasons; never a rollout.
"""

import time
from collections.abc import Awaitable, Callable

from opentelemetry.trace import Span
from prometheus_client import CollectorRegistry

from openai_bridge.types import Caller, Completion
from whippletree.metrics import Families
from whippletree.tracing import Tracing

Completed = tuple[Completion, list[str]]
"""A completion and the ids of its calls."""


class Recorder:
    """One for a bridge."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self._tracing, make = tracing, Families(registry, "bridge")
        self._completions = make.counter(
            "completions", "Replies made, one for each choice, by the engine's reason to end.", "dialect", "finish"
        )
        self._seconds = make.histogram(
            "completion_seconds", "From a request that was read to the reply that is to be written.", "dialect"
        )
        self._prompts = make.histogram(
            "prompt_seconds",
            "Rendering and tokenizing one request.",
            buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0),
        ).of()
        self._keep_alives = make.counter("keep_alives", "Keep-alives sent while harnesses wait.", "dialect")
        self._deliveries = make.counter(
            "deliveries",
            "What became of replies: written out in full, lost because the harness went away, or unreported because too"
            " many reports waited.",
            "outcome",
        )

    async def completing(
        self, dialect: str, model: str, caller: Caller, work: Callable[[], Awaitable[Completed]]
    ) -> Completed:
        """Do the work, seen. `model` as the harness calls it."""
        begin = time.perf_counter()
        about = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model, "whippletree.dialect": dialect}
        about |= {"whippletree.rollout": caller.rollout, "whippletree.mode": caller.mode}
        with self._tracing.span("chat", attributes={**about, "whippletree.attempt": caller.attempt}) as span:
            done = await work()
            told(span, done)
        self._seconds.of(dialect).observe(time.perf_counter() - begin)
        for choice in done[0].choices:
            self._completions.of(dialect, choice.finish).inc()
        return done

    def rendered(self, seconds: float) -> None:
        """A request has become a prompt."""
        self._prompts.observe(seconds)

    def kept_alive(self, dialect: str) -> None:
        """A keep-alive was sent."""
        self._keep_alives.of(dialect).inc()

    def delivered(self, outcome: str, count: int) -> None:
        """So many replies were `written`, `lost` or stay `unreported`."""
        self._deliveries.of(outcome).inc(count)


def told(span: Span, done: Completed) -> None:
    """Say in a completion's span what it came to."""
    if not span.is_recording():
        return
    completion, call_ids = done
    span.set_attributes(
        {
            "gen_ai.response.id": completion.id,
            "gen_ai.response.finish_reasons": tuple(choice.finish for choice in completion.choices),
            "gen_ai.request.choice.count": len(completion.choices),
            "gen_ai.usage.input_tokens": completion.prompt_count,
            "gen_ai.usage.output_tokens": sum(choice.response_count for choice in completion.choices),
            "whippletree.calls": tuple(call_ids),
            "whippletree.weight_version": completion.weight_version,
        }
    )
