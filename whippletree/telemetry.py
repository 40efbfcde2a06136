"""What a service is seen by: one value that its composition root makes and hands down.

In: settings. Out: a registry for the service's recorder, tracing, and the layer around its server's methods. While the
block runs, metrics are served where `metrics.listen` says and spans are sent where `telemetry.otlp` says; both are off
by default.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from whippletree import observe
from whippletree.metrics import Refresh, exposing, new_registry
from whippletree.settings import MetricsSettings, TracingSettings
from whippletree.tracing import Tracing, exporting

log = logging.getLogger(__name__)


class Telemetry:
    """Of one process."""

    def __init__(self, service: str, tracing: Tracing) -> None:
        self.registry: CollectorRegistry = new_registry(service)
        self.tracing = tracing
        self.layer = observe.observing(observe.Rpcs(self.registry), tracing)
        self._refreshes: list[Refresh] = []

    def before_scrape(self, refresh: Refresh) -> None:
        """Await `refresh()` before every scrape; it bounds its own cost."""
        self._refreshes.append(refresh)

    async def refresh(self) -> None:
        """Bring everything up to date that is not counted as it happens."""
        for refresh in self._refreshes:
            await refresh()


@asynccontextmanager
async def observing(service: str, metrics: MetricsSettings, tracing: TracingSettings) -> AsyncIterator[Telemetry]:
    """Telemetry of `service` while the block runs. OSError where the metrics' port is taken."""
    async with AsyncExitStack() as stack:
        telemetry = Telemetry(service, await stack.enter_async_context(exporting(service, tracing)))
        if metrics.listen:
            port = await stack.enter_async_context(exposing(telemetry.registry, metrics.listen, telemetry.refresh))
            log.info("metrics on port %d", port)
        yield telemetry
