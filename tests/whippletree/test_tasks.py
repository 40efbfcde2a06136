"""Background tasks end, also where a cancellation got lost."""

import asyncio
import logging

import pytest

from whippletree import tasks


async def forever() -> None:
    await asyncio.Event().wait()


async def test_what_loses_a_cancellation_is_cancelled_again(caplog: pytest.LogCaptureFixture) -> None:
    lost = 0

    async def loses() -> None:
        nonlocal lost
        while lost < 2:
            try:
                await forever()
            except asyncio.CancelledError:
                lost += 1
        await forever()

    task = asyncio.create_task(loses())
    await asyncio.sleep(0)
    with caplog.at_level(logging.WARNING):
        await tasks.end(task, again=0.001)
    assert (task.cancelled(), lost) == (True, 2)
    assert "loses" in caplog.text


async def test_what_is_being_cancelled_gets_its_time() -> None:
    tidied = asyncio.Event()

    async def tidies() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)  # a second cancellation would end this
            tidied.set()

    task = asyncio.create_task(tidies())
    await asyncio.sleep(0)
    task.cancel()
    await tasks.end(task, again=60)
    assert tidied.is_set()


async def test_all_are_ended_whatever_they_raise() -> None:
    async def fails() -> None:
        try:
            await forever()
        finally:
            raise ValueError

    async def done() -> None: ...

    found = [asyncio.create_task(work) for work in (fails(), forever(), done())]
    await asyncio.sleep(0)
    await tasks.end(*found)
    assert [task.done() for task in found] == [True] * 3
    assert isinstance(found[0].exception(), ValueError)
    await tasks.end()
