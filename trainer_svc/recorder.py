"""What the driver shows of a run while it trains: families of `docs/metrics.md`, set once a step, and spans.

`metrics.jsonl` has every figure of every step; these are for alarms, and for a dashboard beside serving.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from opentelemetry.trace import Span
from prometheus_client import CollectorRegistry

from whippletree.metrics import Families
from whippletree.tracing import Attributes, Tracing

STEP_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)


class Recorder:
    """One for a driver, which trains one run."""

    def __init__(self, registry: CollectorRegistry, tracing: Tracing) -> None:
        self._tracing = tracing
        make = Families(registry, "trainer")
        self._step = make.gauge("step", "The last step that has ended.").of()
        self._weight_step = make.gauge(
            "weight_step", "The step that made the weights that are published; below step = stale."
        ).of()
        self._seconds = make.histogram(
            "step_seconds", "One part of a step: rollouts, train, publish or evaluate.", "part", buckets=STEP_SECONDS
        )
        self._tokens = make.counter("tokens", "Tokens of the steps' rollouts: recorded, or trained on.", "kind")
        self._rollouts = make.counter("rollouts", "Rollouts of the steps: kept, or dropped without a reward.", "what")
        self._groups = make.counter(
            "groups", "Groups of the steps: all, or flat ones, whose rewards are equal.", "what"
        )
        self._updates = make.counter("updates", "Optimizer steps.").of()
        self._reward = make.gauge("reward", "Mean reward of the last step's rollouts.").of()
        self._accuracy = make.gauge("heldout_accuracy", "Held-out accuracy, when it was last measured.").of()
        self._plan = make.gauge(
            "plan_efficiency", "The last plan's lower bound over its makespan; 1 = no rank ever waits."
        ).of()

    def doing(self, what: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """A span for a step, or for a part of one, while the block runs."""
        return self._tracing.span(what, attributes=attributes)

    def stepped(
        self,
        number: int,
        weight_step: int,
        figures: Mapping[str, float],
        seconds: Mapping[str, float],
        accuracy: float | None,
    ) -> None:
        """A step has ended; `figures` as in metrics.jsonl."""
        self._step.set(number)
        self._weight_step.set(weight_step)
        for part, value in seconds.items():
            self._seconds.of(part).observe(value)
        for kind in ("recorded", "trained"):
            self._tokens.of(kind).inc(figures.get(f"{kind}_tokens", 0))
        self._rollouts.of("kept").inc(figures.get("rollouts", 0))
        self._rollouts.of("dropped").inc(figures.get("dropped_rollouts", 0))
        self._groups.of("all").inc(figures.get("groups", 0))
        self._groups.of("flat").inc(figures.get("flat_groups", 0))
        self._updates.inc(figures.get("updates", 0))
        if "reward" in figures:
            self._reward.set(figures["reward"])
        if accuracy is not None:
            self._accuracy.set(accuracy)
        if excess := figures.get("plan_excess"):
            self._plan.set(1 / excess)
