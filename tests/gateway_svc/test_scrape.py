"""What is looked up before a scrape, on a real store and a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway_svc.pace import Watchers
from gateway_svc.phase import Gates
from gateway_svc.scrape import COUNT_PAUSE, Gauges, Scrape
from gateway_svc.store import Store, Transaction
from gateway_svc.types import Micros
from tests.fakes.gateway import record_of
from whippletree.errors import OverloadedError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(
        record_of(tmp_path), synchronous="NORMAL", capacity=10, readers=1, clock=lambda: Micros(0)
    )
    yield opened
    await opened.close()


async def test_the_record_is_counted_at_most_every_so_often_however_often_it_is_scraped(store: Store) -> None:
    registry, clock = CollectorRegistry(), Clock()
    scrape = Scrape(Gauges(registry), store, Gates(clock), Watchers(60, clock), clock)

    def counted() -> float | None:
        return registry.get_sample_value("whippletree_gateway_rollouts", {"state": "queued"})

    gauge = registry._names_to_collectors["whippletree_gateway_rollouts"]
    await scrape.refresh()
    assert counted() == 0
    for seconds, expected in ((1, -1), (COUNT_PAUSE, 0)):
        gauge.labels("queued").set(-1)  # type: ignore[attr-defined]  # a count would change it
        clock.now += seconds
        await scrape.refresh()
        assert counted() == expected


async def test_what_waits_for_a_commit_is_shown(store: Store) -> None:
    registry, clock = CollectorRegistry(), Clock()
    scrape = Scrape(Gauges(registry), store, Gates(clock), Watchers(60, clock), clock)
    batches: list[int] = []
    store.on_batch(lambda operations, seconds: batches.append(operations))

    def nothing(tx: Transaction) -> None:
        """An operation."""

    await asyncio.gather(*(store.write(nothing) for _ in range(3)))
    await scrape.refresh()
    assert sum(batches) == 3
    assert registry.get_sample_value("whippletree_gateway_store_queue") == 0
    assert registry.get_sample_value("whippletree_gateway_store_writable") == 1


async def test_the_slowest_watcher_shows_how_long_it_has_been_at_its_message() -> None:
    clock = Clock()
    watchers = Watchers(60, clock)

    async def messages() -> AsyncIterator[int]:
        for number in range(3):
            yield number

    slow, quick = watchers.paced(messages()), watchers.paced(messages())
    await anext(slow)
    clock.now += 5
    await anext(quick)
    clock.now += 2
    assert watchers.lag() == 7
    await anext(slow)
    assert watchers.lag() == 2
    assert [number async for number in slow] == [2]
    assert [number async for number in quick] == [1, 2]
    assert watchers.lag() == 0


async def test_a_watcher_that_takes_too_long_is_ended_and_no_longer_the_slowest() -> None:
    clock = Clock()
    watchers = Watchers(0.01, clock)
    closed = asyncio.Event()

    async def messages() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.set()

    watch = watchers.paced(messages())
    await anext(watch)
    await closed.wait()
    with pytest.raises(OverloadedError):
        await anext(watch)
    assert watchers.lag() == 0
