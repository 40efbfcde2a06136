"""Where rollouts stand: statuses come twice, late and in any order."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.trainer_svc.builders import call
from trainer_svc.collect import AgentsFailedError, Board, alive, assemble
from trainer_svc.step import Finished
from trainer_svc.types import Call, GroupId, Record, RolloutId, RolloutSpec, Split, State, Status

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


def finished(rollout: RolloutId, state: State, calls: Sequence[Call]) -> Finished:
    """A rollout that ended."""
    spec = RolloutSpec(rollout_id=rollout, group_id=GroupId("g"), split=Split.TRAIN, input={})
    return assemble(spec, status(rollout, state), Record(rollout_id=rollout, calls=tuple(calls), rewards=()))


def test_a_batch_in_which_no_agent_came_to_its_first_call_stops_the_run() -> None:
    with pytest.raises(AgentsFailedError, match=r"all 2 rollouts failed without one call .* rollouts show a`"):
        alive([finished(A, State.FAILED, []), finished(B, State.FAILED, [])])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(finished(B, State.SUCCEEDED, []), id="one ended well"),
        pytest.param(finished(B, State.FAILED, [call(1, [1, 2], [3])]), id="one failed after a call"),
    ],
)
def test_a_batch_in_which_one_lived_goes_on(other: Finished) -> None:
    batch = [finished(A, State.FAILED, []), other]
    assert alive(batch) == batch
