import asyncio
from dataclasses import dataclass, field

import pytest

from openai_bridge.delivery import GROUP, Deliveries, grouped
from whippletree.errors import ServiceUnavailableError


@dataclass
class Gateway:
    told: list[list[str]] = field(default_factory=list)
    lost: list[tuple[str, list[str]]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False

    async def mark_delivered(self, call_ids: list[str], *, patience: float) -> None:
        await self.open.wait()
        if self.fails:
            raise ServiceUnavailableError("gone")
        self.told.append(call_ids)

    async def mark_undelivered(self, rollout: str, request_ids: list[str], *, patience: float) -> None:
        await self.open.wait()
        self.lost.append((rollout, request_ids))


async def test_leaving_reports_everything_of_all_rollouts() -> None:
    gateway = Gateway()
    async with Deliveries(gateway, queue=1000, patience=1, flush=30) as deliveries:
        for name in "ab":
            deliveries.add([name])
            deliveries.add_lost(f"r{name}", [name])
        gateway.open.set()
    assert [call for calls in gateway.told for call in calls] == ["a", "b"]
    assert sorted(gateway.lost) == [("ra", ["a"]), ("rb", ["b"])]


async def test_one_report_speaks_for_all_that_was_delivered_during_the_one_before() -> None:
    gateway = Gateway()
    async with Deliveries(gateway, queue=1000, patience=1, flush=30) as deliveries:
        deliveries.add(["first"])
        await asyncio.sleep(0)
        for name in "abc":
            deliveries.add([name])
            await asyncio.sleep(0)
        gateway.open.set()
    assert gateway.told == [["first"], ["a", "b", "c"]]


async def test_a_gateway_that_never_answers_holds_the_end_only_for_the_flush() -> None:
    async with asyncio.timeout(30):
        async with Deliveries(Gateway(), queue=10, patience=1, flush=0.01) as deliveries:
            deliveries.add(["a"])


async def test_failed_report_does_not_end_the_others() -> None:
    gateway = Gateway(fails=True)
    gateway.open.set()
    async with Deliveries(gateway, queue=10, patience=1, flush=30) as deliveries:
        deliveries.add(["a"])
        await asyncio.sleep(0)
    gateway.fails = False
    async with Deliveries(gateway, queue=10, patience=1, flush=30) as deliveries:
        deliveries.add(["b"])
    assert gateway.told == [["b"]]


async def test_full_queue_drops_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    async with Deliveries(gateway, queue=2, patience=1, flush=30) as deliveries:
        deliveries.add(["a", "b", "c"])
        gateway.open.set()
    assert [call for calls in gateway.told for call in calls] == ["a", "b"]
    assert "call c stays unreported" in caplog.text


async def test_the_first_end_of_an_answer_counts_and_one_that_asked_nothing_loses_nothing() -> None:
    gateway = Gateway()
    gateway.open.set()
    async with Deliveries(gateway, queue=10, patience=1, flush=30) as deliveries:
        written, lost, early = (deliveries.begin("r1", [name]) for name in ("w", "l", "e"))
        written.asked = lost.asked = True
        written.written(["c1"])
        for delivery in (written, lost, lost, early):
            delivery.lose()
        lost.written(["c2"])
    assert (gateway.told, gateway.lost) == ([["c1"]], [("r1", ["l"])])


def test_groups_hold_at_most_a_hundred() -> None:
    made = grouped([("r", str(number)) for number in range(GROUP + 1)])
    assert [len(ids) for _, ids in made] == [GROUP, 1]
