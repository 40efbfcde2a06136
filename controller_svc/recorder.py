"""What the controller shows of its work: families of `docs/metrics.md`, and one span for each attempt."""

from collections.abc import Callable

from opentelemetry.trace import Span, SpanKind
from prometheus_client import CollectorRegistry

from controller_svc.types import Command, Exit, Outcome, Rollout, RolloutId
from whippletree.metrics import Families
from whippletree.tracing import Tracing, fail

PROGRAM = 200
"""Characters of a program's path that a span has. Arguments and environment may hold secrets and are left out."""


class Recorder:
    """One for a controller."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self._tracing = tracing
        self._spans: dict[RolloutId, Span] = {}
        make = Families(registry, "controller")
        self._capacity = make.gauge("attempts_capacity", "Attempts that may be under way here at once.").of()
        self._running = make.gauge("attempts_under_way", "Attempts from their begin to their reported end.").of()
        self._waiting = make.gauge("rollouts_waiting", "Queued rollouts that this controller could begin.").of()
        self._started = make.counter("attempts_started", "Attempts opened here.").of()
        self._ended = make.counter(
            "attempts_ended",
            "Attempts reported as ended: succeeded, failed by the agent, or by a failure of the infrastructure.",
            "outcome",
        )
        for outcome in Outcome:
            self._ended.of(outcome)

    def looks(self, capacity: int, under_way: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Where to look before a scrape."""
        self._capacity.set(capacity)
        self._running.set_function(under_way)
        self._waiting.set_function(waiting)

    def started(self, opened: Rollout) -> None:
        """An attempt was opened."""
        self._started.inc()
        self._spans[opened.id] = self._tracing.begin(
            "attempt",
            SpanKind.INTERNAL,
            {
                "whippletree.rollout": opened.id,
                "whippletree.attempt": opened.attempt,
                "whippletree.mode": opened.mode,
                "process.executable.path": program(opened)[:PROGRAM],
            },
        )

    def ended(self, rollout: RolloutId, outcome: Outcome) -> None:
        """The gateway took an attempt's end."""
        self._ended.of(outcome).inc()
        if (span := self._spans.get(rollout)) is not None:
            span.set_attribute("whippletree.outcome", outcome)
            if outcome is not Outcome.SUCCEEDED:
                fail(span, outcome)

    def closed(self, rollout: RolloutId, end: Exit | None) -> None:
        """Nothing of an attempt is left, however it ended; `end` = of its process, None = there was none."""
        if (span := self._spans.pop(rollout, None)) is not None:
            if end is not None and not (end.lost or end.refused):
                span.set_attributes({"process.exit.code": end.code, "whippletree.cpu_seconds": end.cpu})
            span.end()


def program(rollout: Rollout) -> str:
    """What an attempt runs."""
    if isinstance(rollout.task, Command):
        return rollout.task.arguments[0] if rollout.task.arguments else ""
    return rollout.task.path if rollout.task else ""
