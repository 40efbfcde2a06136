"""Where rollouts stand: statuses come twice, late and in any order; and reports of delivery after the end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from whippletree.v1 import attempt_pb2, inference_pb2, rollout_pb2

from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.trainer_svc.builders import call
from trainer_svc.collect import PAUSES, AgentsFailedError, Board, Collector, alive, assemble
from trainer_svc.config import AgentSection
from trainer_svc.forest import Untrained
from trainer_svc.gateway import connected
from trainer_svc.step import Finished
from trainer_svc.types import Call, GroupId, Record, RolloutId, RolloutSpec, RunId, Split, State, Status

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


@contextlib.asynccontextmanager
async def ended(folder: Path) -> AsyncIterator[tuple[RunningGateway, str]]:
    """A gateway on which the train rollout `a` has ended; the id of its one call, of which nothing was reported."""
    async with running_gateway(folder) as gateway, FakeEngine() as engine:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        async with connected(gateway.address, patience=60) as client:
            await client.create_rollouts(RunId("r"), [SPEC], AGENT)
        await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a"))
        call_id = (await gateway.generate("a", [1, 2])).call.call_id
        outcome = attempt_pb2.ATTEMPT_OUTCOME_SUCCEEDED
        await gateway.rollouts.FinishRollout(
            rollout_pb2.FinishRolloutRequest(name="rollouts/a", attempt=1, outcome=outcome)
        )
        yield gateway, call_id


AGENT = AgentSection(command=("unused",))
SPEC = RolloutSpec(rollout_id=A, group_id=GroupId("g"), split=Split.TRAIN, input={})


async def test_a_report_that_comes_after_the_end_is_waited_for(tmp_path: Path) -> None:
    async with ended(tmp_path) as (gateway, call_id), connected(gateway.address, patience=60) as client:

        async def report(seconds: float) -> None:
            mark = inference_pb2.MarkDeliveredRequest(rollout="rollouts/a", call_ids=[call_id])
            await gateway.inference.MarkDelivered(mark)

        collector = Collector(client, RunId("r"), "tiny", AGENT, Board(), pause=report)
        seen: list[Finished] = []
        (found,) = await collector.collect([SPEC], seen.append)
    assert found.forest.trained_tokens == found.forest.recorded_tokens > 0
    assert seen == [found]


async def test_a_call_that_is_never_reported_is_left_out_after_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        paused.append(seconds)

    async with ended(tmp_path) as (gateway, _), connected(gateway.address, patience=60) as client:
        (found,) = await Collector(client, RunId("r"), "tiny", AGENT, Board(), pause=pause).collect([SPEC], print)
    assert found.forest.untrained == {Untrained.UNREPORTED: 1}
    assert not found.forest.samples
    assert paused == [0.0, *PAUSES]
    assert "a: a reply was not reported as delivered" in caplog.text
