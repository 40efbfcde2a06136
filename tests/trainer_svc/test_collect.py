"""Where rollouts stand: statuses come twice, late and in any order."""

import asyncio

from trainer_svc.collect import Board
from trainer_svc.types import RolloutId, State, Status

A, B = RolloutId("a"), RolloutId("b")


def status(rollout: RolloutId, state: State, attempt: int = 1) -> Status:
    """One status."""
    return Status(rollout_id=rollout, state=state, attempt=attempt, message="")


async def test_each_rollout_is_given_once_as_it_ends() -> None:
    board, seen = Board(), list[list[str]]()

    async def follow() -> None:
        async for statuses in board.ended([A, B]):
            seen.append([f"{item.rollout_id}:{item.state}" for item in statuses])

    following = asyncio.ensure_future(follow())
    for item in (
        status(A, State.QUEUED),
        status(B, State.RUNNING),
        status(A, State.SUCCEEDED),
        status(A, State.SUCCEEDED),
        status(A, State.RUNNING),  # late
        status(RolloutId("c"), State.FAILED),  # of nobody's interest
        status(B, State.QUEUED, 1),  # a second attempt
        status(B, State.FAILED, 2),
    ):
        await board.put(item)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await following
    assert [entry for part in seen for entry in part] == ["a:succeeded", "b:failed"]


async def test_what_had_ended_before_is_given_at_once() -> None:
    board = Board()
    await board.put(status(A, State.CANCELLED))
    await board.put(status(B, State.RUNNING))
    assert [[item.rollout_id for item in part] async for part in board.ended([A])] == [[A]]
    assert board.running() == [B]
    assert [part async for part in board.ended([])] == []
