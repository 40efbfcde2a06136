"""The driver's end of the ranks, without wire or processes."""

import asyncio
from pathlib import Path

import pytest

from trainer_svc.backend import QUEUE, Backend, Numbered, Place, RanksError
from trainer_svc.commands import (
    EndOfBatches,
    Failed,
    LossKind,
    SaveWeights,
    Stop,
    TrainStep,
    WeightsSaved,
)
from trainer_svc.microbatch import MicroBatch, empty_micro_batch
from whippletree.errors import WrongStateError

SAVE = SaveWeights(path=Path("/w"))
SAVED = WeightsSaved(path=SAVE.path)
STEP = TrainStep(step=1, loss=LossKind.SFT, learning_rate=1.0)


def place(rank: int, world_size: int = 2, data_parallel_size: int = 2) -> Place:
    """A rank that shares its data-parallel position with rank + data_parallel_size."""
    return Place(
        rank=rank,
        world_size=world_size,
        data_parallel_rank=rank % data_parallel_size,
        data_parallel_size=data_parallel_size,
    )


async def follow(backend: Backend, where: Place, seen: list[Numbered]) -> None:
    """A rank that answers every command that asks for an answer."""
    async for number, command in backend.stream("s", where):
        seen.append((number, command))
        if not isinstance(command, MicroBatch | TrainStep | Stop):
            backend.report("s", number, where.rank, SAVED)


async def test_every_rank_gets_the_micro_batches_of_its_position_in_order() -> None:
    backend, seen = Backend("s", 4, 2), {rank: list[Numbered]() for rank in range(4)}
    async with asyncio.TaskGroup() as group:
        for rank in range(4):
            group.create_task(follow(backend, place(rank, 4), seen[rank]))
        await backend.connected(5)
        batches = [[empty_micro_batch() for _ in range(count)] for count in (3 * QUEUE, 0)]
        results = await backend.execute(STEP, batches, patience=5)
        await backend.execute(SAVE, patience=5)
        await backend.stop()
    assert sorted(results) == [0, 1, 2, 3]
    for rank in range(4):
        numbers, commands = [n for n, _ in seen[rank]], [type(c) for _, c in seen[rank]]
        own = 3 * QUEUE if rank % 2 == 0 else 0
        assert commands == [TrainStep, *[MicroBatch] * own, EndOfBatches, SaveWeights, Stop]
        assert numbers == [1] * (own + 2) + [2, 3]


async def test_a_rank_that_fails_ends_the_generation_for_good() -> None:
    backend = Backend("s", 2, 2)
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(follow(backend, place(0), []))]
        with pytest.raises(RanksError, match="did not all connect within 0 s"):
            await backend.connected(0.01)
        waiting = asyncio.ensure_future(backend.execute(SAVE, patience=5))
        await asyncio.sleep(0)
        backend.report("s", 1, 1, Failed(message="out of memory"))
        with pytest.raises(RanksError, match="rank 1: out of memory"):
            await waiting
        with pytest.raises(RanksError, match="out of memory"):
            await backend.execute(SAVE, patience=5)
        for task in streams:
            task.cancel()


async def test_a_rank_that_does_not_read_holds_back_the_sender_and_runs_into_the_deadline() -> None:
    backend = Backend("s", 1, 1)
    stream = backend.stream("s", place(0, 1, 1))
    first = asyncio.ensure_future(anext(stream))
    await backend.connected(5)
    with pytest.raises(RanksError, match="no answer to TrainStep"):
        await backend.execute(STEP, [[empty_micro_batch()] * (QUEUE * 4)], patience=0.05)
    assert (await first)[0] == 1


async def test_other_sessions_layouts_and_second_streams_are_refused() -> None:
    backend = Backend("s", 1, 1)
    with pytest.raises(WrongStateError, match="session"):
        await anext(backend.stream("old", place(0, 1, 1)))
    with pytest.raises(WrongStateError, match="one of 2"):
        await anext(backend.stream("s", place(0, 2, 2)))
    with pytest.raises(WrongStateError, match="session"):
        backend.report("old", 1, 0, SAVED)
    first = asyncio.ensure_future(anext(backend.stream("s", place(0, 1, 1))))
    await backend.connected(5)
    with pytest.raises(WrongStateError, match="has a stream already"):
        await anext(backend.stream("s", place(0, 1, 1)))
    with pytest.raises(RanksError, match="lost its stream"):
        await backend.execute(SAVE, patience=5)
    first.cancel()


async def test_late_and_repeated_results_change_nothing() -> None:
    backend = Backend("s", 1, 1)
    stream = backend.stream("s", place(0, 1, 1))
    first = asyncio.ensure_future(anext(stream))
    await backend.connected(5)
    waiting = asyncio.ensure_future(backend.execute(SAVE, patience=5))
    number, _ = await first
    backend.report("s", number + 1, 0, SAVED)
    backend.report("s", number, 0, SAVED)
    backend.report("s", number, 0, WeightsSaved(path=SAVE.path / "again"))
    assert (await waiting)[0] == SAVED
    backend.report("s", number, 0, SAVED)
