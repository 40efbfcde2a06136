"""The listener of metrics, asked as Prometheus asks it."""

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

from whippletree.metrics import OTHER, Bound, exposing, new_registry


async def nothing() -> None:
    """No gauge to refresh."""


async def test_a_scrape_gets_what_was_counted_and_what_was_refreshed_for_it() -> None:
    registry = new_registry("gateway")
    scrapes = Counter("scrapes", "Of this test.", registry=registry)

    async def refresh() -> None:
        scrapes.inc()

    async with exposing(registry, "127.0.0.1:0", refresh) as port, httpx.AsyncClient() as client:
        for count in (1, 2):
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).raise_for_status().text
            samples = {
                sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples
            }
            assert samples["scrapes_total"].value == count
        assert samples["whippletree_build_info"].labels["service"] == "gateway"
        assert samples["process_cpu_seconds_total"].value > 0


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"GET /metrics2 HTTP/1.1\r\n\r\n"],
    ids=["path", "method", "longer path"],
)
async def test_anything_else_is_not_found(request_bytes: bytes) -> None:
    async with exposing(CollectorRegistry(), "127.0.0.1:0", nothing) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()


async def test_endless_headers_are_cut_off() -> None:
    async with exposing(CollectorRegistry(), "127.0.0.1:0", nothing) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
        assert await reader.read() == b""
        writer.close()


def test_labels_are_bounded() -> None:
    registry = CollectorRegistry()
    bound = Bound(Counter("calls", "Of this test.", ("dialect", "finish"), registry=registry), limit=2)
    for dialect in ("openai.chat", "made up 1", "made up 2", "made up 3", "openai.chat"):
        bound.of(dialect, "stop").inc()
    (family,) = registry.collect()
    counts = {s.labels["dialect"]: s.value for s in family.samples if s.name == "calls_total"}
    assert counts == {"openai.chat": 2, "made up 1": 1, OTHER: 2}
