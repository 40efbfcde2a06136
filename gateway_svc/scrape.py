"""What the gateway looks up before a scrape: what is under way, what waits, what the record holds.

In: gates, store, watchers. Out: gauges of `docs/metrics.md`. The one costly look, at the record, is bounded to a share
of the time, however often a scraper comes.
"""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge
from sqlalchemy import Connection, func, select

from gateway_svc.pace import Watchers
from gateway_svc.phase import Gates
from gateway_svc.schema import rollouts
from gateway_svc.store import Store
from gateway_svc.types import RolloutState
from whippletree.metrics import Bound, Families

COUNT_PAUSE = 10.0
"""Seconds between two counts of the record at least."""
COUNT_SHARE = 0.02
"""Share of the time that counting may take."""


class Gauges:
    """The families that are looked up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = Families(registry, "gateway")
        self.in_flight = {
            "runs": make.gauge("run_generations_in_flight", "Generations admitted and not ended, by run.", "run"),
            "models": make.gauge("model_generations_in_flight", "The same, by model.", "model"),
        }
        self.held = {
            "runs": make.gauge("run_generations_held", "Generations held while weights change, by run.", "run"),
            "models": make.gauge("model_generations_held", "The same, by model.", "model"),
        }
        self.lag = make.gauge("watch_lag_seconds", "How long the slowest watcher has been at one message.").of()
        self.queue = make.gauge("store_queue", "Operations that wait for a commit.").of()
        self.writable = make.gauge("store_writable", "1; 0 while the record has no room and refuses writes.").of()
        self.rollouts = make.gauge("rollouts", "Rollouts in the record.", "state")


class Scrape:
    """Brings gauges up to date, by `refresh`."""

    def __init__(
        self, gauges: Gauges, store: Store, gates: Gates, watchers: Watchers, clock: Callable[[], float]
    ) -> None:
        self._gauges, self._store, self._gates, self._watchers, self._clock = gauges, store, gates, watchers, clock
        self._count_at = clock()

    async def refresh(self) -> None:
        """Look."""
        in_flight, held = self._gates.counts()
        _set(self._gauges.in_flight, in_flight)
        _set(self._gauges.held, held)
        self._gauges.lag.set(self._watchers.lag())
        self._gauges.queue.set(self._store.queued)
        self._gauges.writable.set(self._store.writable)
        begin = self._clock()
        if begin >= self._count_at:
            self._count_at = begin + COUNT_PAUSE
            counts = await self._store.read(_count)
            for state in RolloutState:
                self._gauges.rollouts.of(state).set(counts.get(state, 0))
            self._count_at = begin + max(COUNT_PAUSE, (self._clock() - begin) / COUNT_SHARE)


def _set(gauges: Mapping[str, Bound[Gauge]], counts: Mapping[str, int]) -> None:
    """Set those of runs and models; only what is under way has a label, so that runs of the past leave none."""
    for gauge in gauges.values():
        gauge.clear()
    for key, count in counts.items():
        kind, _, name = key.partition("/")
        if count:
            gauges[kind].of(name).set(count)


def _count(connection: Connection) -> dict[str, int]:
    """Rollouts by state, from an index."""
    query = select(rollouts.c.state, func.count().label("number")).group_by(rollouts.c.state)
    return {row.state: row.number for row in connection.execute(query)}
