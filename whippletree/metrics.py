"""Prometheus metrics of one process: a registry of its own, labels bound once and bounded, a small HTTP listener.

In: a name and a `host:port`. Out: a `CollectorRegistry` that each service's recorder adds its families to, served as
`GET /metrics`. There is no global registry: what a composition root makes, it hands down.
"""

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

log = logging.getLogger(__name__)
F = TypeVar("F", Counter, Gauge, Histogram)

LABEL_LIMIT = 200
"""Label sets of one family at most; what comes later counts as `other`."""
OTHER = "other"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Buckets of everything that is waited for, from one millisecond to the longest generation."""
REQUEST_LIMIT = 16 << 10
PATIENCE = 5.0
"""Seconds for a scraper to say what it wants."""


class Bound(Generic[F]):
    """A family whose label sets are looked up by value, made at their first use, and bounded in number."""

    def __init__(self, family: F, limit: int = LABEL_LIMIT) -> None:
        self._family: F = family
        self._limit = limit
        self._children: dict[tuple[str, ...], F] = {}

    def of(self, *values: str) -> F:
        """The child with these label values; the one of `other` where there are too many."""
        child = self._children.get(values)
        if child is None:
            if len(self._children) >= self._limit:
                values = (OTHER,) * len(values)
            child = self._children[values] = self._family.labels(*values) if values else self._family
        return child

    def clear(self) -> None:
        """Forget all label sets: for gauges whose labels come and go."""
        self._children.clear()
        self._family.clear()


class Families:
    """Makes the families of one service, `whippletree_{service}_{name}`, in a registry."""

    def __init__(self, registry: CollectorRegistry, service: str) -> None:
        self._registry, self._prefix = registry, f"whippletree_{service}_"

    def counter(self, name: str, text: str, *labels: str) -> Bound[Counter]:
        """What only grows; `_total` is added to its name."""
        return Bound(Counter(self._prefix + name, text, labels, registry=self._registry))

    def gauge(self, name: str, text: str, *labels: str) -> Bound[Gauge]:
        """What goes up and down."""
        return Bound(Gauge(self._prefix + name, text, labels, registry=self._registry))

    def histogram(self, name: str, text: str, *labels: str, buckets: Sequence[float] = SECONDS) -> Bound[Histogram]:
        """How values are spread."""
        return Bound(Histogram(self._prefix + name, text, labels, buckets=buckets, registry=self._registry))


def new_registry(service: str) -> CollectorRegistry:
    """A registry with what every process tells: build, processor time, memory, open files, garbage collections."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    build = Info("whippletree_build", "What runs here.", registry=registry)
    build.info({"version": importlib.metadata.version("whippletree"), "service": service})
    return registry


Refresh = Callable[[], Awaitable[None]]
"""Brings gauges up to date before a scrape that cannot be read at once, such as counts in the record."""


@asynccontextmanager
async def exposing(registry: CollectorRegistry, address: str, refresh: Refresh) -> AsyncIterator[int]:
    """Serve `GET /metrics` while the block runs; yields the port. OSError where it is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                status, body = await _answer(reader, registry, refresh)
                head = f"HTTP/1.1 {status}\r\ncontent-type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n"
                head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that went away, or is none
        except Exception:
            log.exception("the metrics could not be told")
        finally:
            writer.close()

    host, _, port = address.rpartition(":")
    server = await asyncio.start_server(answer, host.strip("[]"), int(port), limit=REQUEST_LIMIT)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _answer(reader: asyncio.StreamReader, registry: CollectorRegistry, refresh: Refresh) -> tuple[str, bytes]:
    method, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b" ")
    if method != b"GET" or rest.partition(b" ")[0].partition(b"?")[0] != b"/metrics":
        return "404 Not Found", b"GET /metrics\n"
    await refresh()
    return "200 OK", generate_latest(registry)
