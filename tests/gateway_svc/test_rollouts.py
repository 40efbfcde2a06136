"""RolloutService and AttemptService through a real server."""

import uuid
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from whippletree.v1 import attempt_pb2, rollout_pb2
from whippletree.v1.attempt_pb2_grpc import AttemptServiceStub

from tests.fakes.gateway import RunningGateway, refused
from whippletree.errors import (
    AlreadyExistsError,
    InvalidFieldError,
    NotFoundError,
    RequestIdReusedError,
    StaleAttemptError,
    WrongStateError,
)

RUNNING, SUCCEEDED = rollout_pb2.ROLLOUT_STATE_RUNNING, rollout_pb2.ROLLOUT_STATE_SUCCEEDED
QUEUED, FAILED = rollout_pb2.ROLLOUT_STATE_QUEUED, rollout_pb2.ROLLOUT_STATE_FAILED


def wanted(rollout_id: str, question: str = "1 + 1", **fields: str) -> rollout_pb2.CreateRolloutRequest:
    request = rollout_pb2.CreateRolloutRequest(rollout_id=rollout_id, rollout=rollout_pb2.Rollout(run="runs/r"))
    request.rollout.input.update({"question": question})
    request.rollout.group_id = fields.get("group", "")
    request.request_id = fields.get("request_id", "")
    return request


def ending(name: str, attempt: int = 1, **fields: Any) -> rollout_pb2.FinishRolloutRequest:
    asked: dict[str, Any] = {"outcome": attempt_pb2.ATTEMPT_OUTCOME_SUCCEEDED} | fields
    return rollout_pb2.FinishRolloutRequest(name=name, attempt=attempt, **asked)


async def test_a_rollout_is_stored_as_asked_and_queued(gateway: RunningGateway) -> None:
    made = (await gateway.rollouts.CreateRollout(wanted("a", group="g"))).rollout
    assert (made.name, made.state, made.attempt, made.revision) == ("rollouts/a", QUEUED, 0, 1)
    found = (await gateway.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/a"))).rollout
    assert found == made
    assert found.input["question"] == "1 + 1"
    assert (found.split, found.group_id) == (rollout_pb2.SPLIT_TRAIN, "g")


async def test_what_only_the_gateway_says_is_not_taken_from_a_create(gateway: RunningGateway) -> None:
    asked = wanted("a")
    asked.rollout.MergeFrom(
        rollout_pb2.Rollout(name="rollouts/z", state=FAILED, attempt=7, state_message="x", revision=9)
    )
    asked.rollout.finish_time.FromSeconds(1)
    asked.rollout.runner.SetInParent()
    made = (await gateway.rollouts.CreateRollout(asked)).rollout
    assert made == (await gateway.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/a"))).rollout
    assert (made.name, made.state, made.attempt, made.revision) == ("rollouts/a", QUEUED, 0, 1)


async def test_creating_the_same_again_gives_what_is_stored(gateway: RunningGateway) -> None:
    first = await gateway.rollouts.CreateRollout(wanted("a"))
    second = await gateway.rollouts.CreateRollout(wanted("a"))
    assert (first.existed, second.existed, first.rollout) == (False, True, second.rollout)
    async with refused(AlreadyExistsError):
        await gateway.rollouts.CreateRollout(wanted("a", "2 + 2"))


@pytest.mark.parametrize(
    ("runner", "field"),
    [
        (rollout_pb2.Runner(timeout=Duration(seconds=-5)), "timeout"),
        (rollout_pb2.Runner(timeout=Duration(nanos=-1)), "timeout"),
        (rollout_pb2.Runner(timeout=Duration(seconds=2**62)), "timeout"),
        (rollout_pb2.Runner(local_command=rollout_pb2.LocalCommand()), "local_command.command"),
        (rollout_pb2.Runner(python_program=rollout_pb2.PythonProgram(path="agent.py")), "python_program.path"),
    ],
)
async def test_what_no_controller_can_carry_out_is_refused_at_once(
    gateway: RunningGateway, runner: rollout_pb2.Runner, field: str
) -> None:
    asked = wanted("a")
    asked.rollout.runner.CopyFrom(runner)
    async with refused(InvalidFieldError) as errors:
        await gateway.rollouts.CreateRollout(asked)
    assert errors[0].metadata["field"] == f"rollout.runner.{field}"


async def test_a_batch_is_created_whole_or_not_at_all(gateway: RunningGateway) -> None:
    await gateway.create_rollout("b", start=False)
    bad = rollout_pb2.BatchCreateRolloutsRequest(requests=[wanted("a"), wanted("b", "other")])
    async with refused(AlreadyExistsError):
        await gateway.rollouts.BatchCreateRollouts(bad)
    async with refused(NotFoundError):
        await gateway.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/a"))
    good = rollout_pb2.BatchCreateRolloutsRequest(requests=[wanted("a"), wanted("b"), wanted("a")])
    found = (await gateway.rollouts.BatchCreateRollouts(good)).responses
    assert [one.existed for one in found] == [False, True, True]


async def test_a_repeated_create_gives_its_first_answer(gateway: RunningGateway) -> None:
    batch = rollout_pb2.BatchCreateRolloutsRequest(requests=[wanted("a"), wanted("b")], request_id=str(uuid.uuid4()))
    first = await gateway.rollouts.BatchCreateRollouts(batch)
    await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a"))
    assert await gateway.rollouts.BatchCreateRollouts(batch) == first
    batch.requests.add().CopyFrom(wanted("c"))
    async with refused(RequestIdReusedError):
        await gateway.rollouts.BatchCreateRollouts(batch)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (wanted("No"), InvalidFieldError),
        (rollout_pb2.CreateRolloutRequest(rollout_id="a"), InvalidFieldError),
        (rollout_pb2.CreateRolloutRequest(rollout_id="a", rollout=rollout_pb2.Rollout(run="runs/none")), NotFoundError),
        (
            rollout_pb2.CreateRolloutRequest(
                rollout_id="a", rollout=rollout_pb2.Rollout(run="runs/r", runner=rollout_pb2.Runner(max_attempts=21))
            ),
            InvalidFieldError,
        ),
    ],
    ids=["id", "no run", "unknown run", "attempts"],
)
async def test_a_wrong_create_is_refused(
    gateway: RunningGateway, request_: rollout_pb2.CreateRolloutRequest, error: type[InvalidFieldError]
) -> None:
    async with refused(error):
        await gateway.rollouts.CreateRollout(request_)


async def test_lists_are_paged_in_the_order_of_creation(gateway: RunningGateway) -> None:
    names = [f"r{number}" for number in range(7)]
    batch = [wanted(name, group="even" if number % 2 == 0 else "odd") for number, name in enumerate(names)]
    await gateway.rollouts.BatchCreateRollouts(rollout_pb2.BatchCreateRolloutsRequest(requests=batch))
    found, token = [], ""
    while True:
        page = await gateway.rollouts.ListRollouts(
            rollout_pb2.ListRolloutsRequest(run="runs/r", page_size=3, page_token=token)
        )
        found += [rollout.name for rollout in page.rollouts]
        token = page.next_page_token
        if not token:
            break
    assert found == [f"rollouts/{name}" for name in names]


async def test_lists_are_filtered_by_state_group_and_run(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    await gateway.create_rollout("a", group_id="g")
    await gateway.create_rollout("b", group_id="g", start=False)
    await gateway.create_rollout("c", run_id="other", start=False)

    async def listed(**fields: Any) -> list[str]:
        asked = rollout_pb2.ListRolloutsRequest(**fields)
        return [rollout.name[-1] for rollout in (await gateway.rollouts.ListRollouts(asked)).rollouts]

    assert await listed() == ["a", "b", "c"]
    assert await listed(states=[QUEUED]) == ["b", "c"]
    assert await listed(states=[QUEUED, RUNNING], group_id="g") == ["a", "b"]
    assert await listed(run="runs/other") == ["c"]
    async with refused(InvalidFieldError):
        await listed(page_token="nonsense")


async def test_one_of_two_controllers_starts_a_rollout(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a", start=False)
    first = rollout_pb2.StartRolloutRequest(name="rollouts/a", worker="one", request_id=str(uuid.uuid4()))
    started = await gateway.rollouts.StartRollout(first)
    assert (started.rollout.state, started.attempt.name) == (RUNNING, "rollouts/a/attempts/1")
    assert (started.attempt.worker, started.attempt.outcome) == ("one", 0)
    async with refused(WrongStateError):
        await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a", worker="two"))
    await gateway.rollouts.FinishRollout(ending("rollouts/a"))
    assert await gateway.rollouts.StartRollout(first) == started, "a repeat gets the first answer, whatever came after"


async def test_infrastructure_failures_open_new_attempts_until_none_is_left(gateway: RunningGateway) -> None:
    lost: dict[str, Any] = {"outcome": attempt_pb2.ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE, "message": "evicted"}
    await gateway.create_rollout("a", runner=rollout_pb2.Runner(max_attempts=2))
    again = (await gateway.rollouts.FinishRollout(ending("rollouts/a", **lost))).rollout
    assert (again.state, again.attempt) == (QUEUED, 1)
    await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a"))
    async with refused(StaleAttemptError) as caught:
        await gateway.rollouts.FinishRollout(ending("rollouts/a", 1))
    assert caught[0].metadata == {"attempt": "1", "current": "2"}
    last = (await gateway.rollouts.FinishRollout(ending("rollouts/a", 2, **lost))).rollout
    assert (last.state, last.state_message) == (FAILED, "evicted")
    attempts = AttemptServiceStub(gateway.channel)
    found = (await attempts.ListAttempts(attempt_pb2.ListAttemptsRequest(parent="rollouts/a"))).attempts
    assert [(one.number, one.outcome) for one in found] == [(1, lost["outcome"]), (2, lost["outcome"])]
    one = await attempts.GetAttempt(attempt_pb2.GetAttemptRequest(name="rollouts/a/attempts/2"))
    assert one.attempt == found[1]
    async with refused(NotFoundError):
        await attempts.GetAttempt(attempt_pb2.GetAttemptRequest(name="rollouts/a/attempts/3"))


async def test_finishing_the_same_way_again_is_ok_and_changes_nothing(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a")
    first = await gateway.rollouts.FinishRollout(ending("rollouts/a", request_id="f1"))
    assert first.rollout.state == SUCCEEDED
    assert await gateway.rollouts.FinishRollout(ending("rollouts/a", request_id="f1")) == first
    assert await gateway.rollouts.FinishRollout(ending("rollouts/a")) == first
    async with refused(RequestIdReusedError):
        await gateway.rollouts.FinishRollout(ending("rollouts/a", request_id="f1", message="other"))
    async with refused(WrongStateError):
        await gateway.rollouts.FinishRollout(ending("rollouts/a", outcome=attempt_pb2.ATTEMPT_OUTCOME_FAILED))
    async with refused(InvalidFieldError):
        await gateway.rollouts.FinishRollout(ending("rollouts/a", outcome=0))


async def test_a_request_id_serves_one_method_alone(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a")
    await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/a", request_id="x"))
    async with refused(RequestIdReusedError):
        await gateway.rollouts.FinishRollout(ending("rollouts/a", request_id="x"))


async def test_cancel_is_idempotent_and_does_not_touch_what_has_ended(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a")
    await gateway.create_rollout("b")
    cancel = rollout_pb2.CancelRolloutRequest(name="rollouts/a", message="enough")
    first = (await gateway.rollouts.CancelRollout(cancel)).rollout
    assert (first.state, first.state_message) == (rollout_pb2.ROLLOUT_STATE_CANCELLED, "enough")
    assert (await gateway.rollouts.CancelRollout(cancel)).rollout == first
    await gateway.rollouts.FinishRollout(ending("rollouts/b"))
    async with refused(WrongStateError):
        await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/b"))


async def test_a_transition_needs_no_more_than_the_state(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a", start=False)

    async def move(state: rollout_pb2.RolloutState.ValueType) -> rollout_pb2.Rollout:
        asked = rollout_pb2.TransitionRolloutRequest(name="rollouts/a", state=state)
        return (await gateway.rollouts.TransitionRollout(asked)).rollout

    async with refused(WrongStateError):
        await move(SUCCEEDED)
    assert (await move(RUNNING)).attempt == 1
    assert (await move(RUNNING)).attempt == 1
    ended = await move(SUCCEEDED)
    assert ended.state == SUCCEEDED
    assert await move(SUCCEEDED) == ended
    async with refused(WrongStateError):
        await move(FAILED)
    async with refused(InvalidFieldError):
        await move(rollout_pb2.ROLLOUT_STATE_UNSPECIFIED)
