"""What the controller counts of its work: families of `docs/metrics.md`."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from controller_svc.types import Outcome
from whippletree.metrics import Families


class Recorder:
    """One for a controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
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

    def started(self) -> None:
        """An attempt was opened."""
        self._started.inc()

    def ended(self, outcome: Outcome) -> None:
        """The gateway took an attempt's end."""
        self._ended.of(outcome).inc()
