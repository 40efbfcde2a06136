"""What Prometheus sees of a service: its listener, asked by HTTP and read by Prometheus's own parser."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from whippletree.cli.ports import free_ports
from whippletree.settings import MetricsSettings

PATIENCE = 60.0
"""Seconds for a count to come; only a fault ever takes that long."""


def listener() -> MetricsSettings:
    """Metrics on a free port."""
    return MetricsSettings(listen=f"127.0.0.1:{free_ports(1)[0]}")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape."""

    samples: tuple[Sample, ...]

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels; 0 where there is none."""
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    @property
    def names(self) -> set[str]:
        """Of all samples."""
        return {sample.name for sample in self.samples}


async def scrape(settings: MetricsSettings) -> Scrape:
    """What the listener says now."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{settings.listen}/metrics")).raise_for_status().text
    families = text_string_to_metric_families(text)
    return Scrape(tuple(sample for family in families for sample in family.samples))


async def scrape_until(settings: MetricsSettings, holds: Callable[[Scrape], bool]) -> Scrape:
    """The first scrape of which this holds: a server counts a call a moment after its client has the answer."""
    async with asyncio.timeout(PATIENCE):
        while not holds(found := await scrape(settings)):
            await asyncio.sleep(0.02)
    return found
