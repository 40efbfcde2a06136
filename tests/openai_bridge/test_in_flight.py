import asyncio

import pytest

from openai_bridge.in_flight import InFlight
from whippletree.errors import ShuttingDownError


async def forever() -> None:
    await asyncio.Event().wait()


async def test_leaving_a_scope_cancels_its_work() -> None:
    in_flight = InFlight()
    with in_flight.scope() as scope:
        task = scope.start(forever())
    await asyncio.wait({task})
    assert task.cancelled()


async def test_what_is_due_at_the_end_of_an_answer_happens_once() -> None:
    ended: list[str] = []
    with InFlight().scope() as scope:
        scope.at_end(lambda: ended.append("end"))
        scope.cancel()
        assert ended == ["end"]
    assert ended == ["end"]


async def test_a_cut_ends_what_runs_and_tells_why() -> None:
    in_flight = InFlight()

    async def answer() -> None:
        with in_flight.scope() as scope:
            await scope.result(scope.start(forever()))

    answering = asyncio.create_task(answer())
    await asyncio.sleep(0)
    in_flight.cut()
    with pytest.raises(ShuttingDownError):
        await answering


async def test_who_waits_for_work_can_be_cancelled_with_it() -> None:
    async def answer() -> None:
        with InFlight().scope() as scope:
            await scope.result(scope.start(forever()))

    answering = asyncio.create_task(answer())
    await asyncio.sleep(0)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering


async def test_nothing_begins_after_a_cut() -> None:
    in_flight = InFlight()
    in_flight.cut()
    with in_flight.scope() as scope, pytest.raises(ShuttingDownError):
        scope.start(forever())
