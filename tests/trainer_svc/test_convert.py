"""Events of the gateway -> calls with whole prompts."""

from pathlib import Path

import pytest
from whippletree.v1 import event_pb2, model_call_pb2, rollout_pb2

from trainer_svc.config import AgentSection
from trainer_svc.convert import BrokenRecordError, create_request, record, status
from trainer_svc.types import Delivery, Finish, GroupId, RolloutId, RolloutSpec, RunId, Split, State
from whippletree.tokens import pack_floats, pack_ids

ROLLOUT = RolloutId("r-1")


def event(
    sequence: int,
    call_id: str,
    suffix: list[int],
    response: list[int],
    *,
    parent: str = "",
    shared: int = 0,
    attempt: int = 1,
    model: str = "policy",
    delivery: model_call_pb2.Delivery.ValueType = model_call_pb2.DELIVERY_DELIVERED,
) -> event_pb2.Event:
    """A packed call."""
    call = model_call_pb2.ModelCall(
        call_id=call_id,
        model=f"models/{model}",
        prompt_token_count=shared + len(suffix),
        response_token_count=len(response),
        parent_call_id=parent,
        shared_token_count=shared,
        finish_reason=model_call_pb2.FINISH_REASON_LENGTH,
        delivery=delivery,
        packed=model_call_pb2.PackedTokens(
            prompt_suffix=pack_ids(suffix), response=pack_ids(response), logprobs=pack_floats([-0.5] * len(response))
        ),
        weight_versions=[model_call_pb2.WeightVersionSpan(weight_version="v1", end=len(response))],
    )
    return event_pb2.Event(sequence=sequence, attempt=attempt, model_call=call)


def reward(sequence: int, value: float, attempt: int = 1) -> event_pb2.Event:
    """An outcome reward."""
    return event_pb2.Event(sequence=sequence, attempt=attempt, reward=event_pb2.Reward(value=value))


def test_prompts_that_extend_others_are_put_together_again() -> None:
    events = [
        event(1, "a", [1, 2], [3, 4]),
        event(2, "b", [5], [6], parent="a", shared=4),
        event(3, "c", [7], [8], parent="b", shared=6),
        event(4, "d", [9], [9], parent="c", shared=3),  # shares only the beginning
    ]
    calls = record(ROLLOUT, 1, events, "policy").calls
    assert [call.prompt.tolist() for call in calls] == [[1, 2], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9]]
    assert [call.response.tolist() for call in calls] == [[3, 4], [6], [8], [9]]
    assert (calls[0].finish, calls[0].delivery, calls[0].weight_versions) == (
        Finish.LENGTH,
        Delivery.DELIVERED,
        ("v1",),
    )


def test_only_the_attempt_that_ended_the_rollout_counts_and_only_the_policys_calls() -> None:
    events = [
        event(1, "a", [1, 2], [3]),
        reward(2, 0.25),
        event(4, "j", [8], [9], attempt=2, model="judge"),
        event(3, "b", [4], [5], parent="a", shared=3, attempt=2),
        reward(5, 1.0, attempt=2),
    ]
    found = record(ROLLOUT, 2, events, "policy")
    assert [call.prompt.tolist() for call in found.calls] == [[1, 2, 3, 4]]
    assert [(item.value, item.source) for item in found.rewards] == [(1.0, "agent")]


def test_a_record_that_contradicts_itself_names_rollout_and_call() -> None:
    with pytest.raises(BrokenRecordError, match="r-1: call b extends unknown 'a'"):
        record(ROLLOUT, 1, [event(1, "b", [4], [5], parent="a", shared=3)], "policy")
    broken = event(1, "a", [1], [2])
    broken.model_call.response_token_count = 2
    with pytest.raises(BrokenRecordError, match="r-1: call a holds other token counts"):
        record(ROLLOUT, 1, [broken], "policy")


def test_a_state_that_this_side_does_not_know_is_not_an_end() -> None:
    message = rollout_pb2.Rollout(name="rollouts/r-1", attempt=3)
    message.state = 99  # type: ignore[assignment]
    assert (status(message).state, status(message).state.ended) == (State.UNKNOWN, False)


def test_a_rollout_is_asked_for_with_its_runner() -> None:
    spec = RolloutSpec(rollout_id=ROLLOUT, group_id=GroupId("g"), split=Split.EVAL, input={"question": "1 + 1"})
    agent = AgentSection(program=Path("/a/agent.py"), preload=("openai",), environment={"A": "b"}, timeout=1.5)
    request = create_request(RunId("run"), spec, agent)
    assert request.rollout_id == "r-1"
    assert request.rollout.run == "runs/run"
    assert request.rollout.split == rollout_pb2.SPLIT_EVAL
    assert request.rollout.input["question"] == "1 + 1"
    runner = request.rollout.runner
    assert (runner.timeout.ToMilliseconds(), runner.max_attempts) == (1500, 3)
    assert runner.python_program.path == "/a/agent.py"
    assert dict(runner.python_program.environment) == {"A": "b"}
    command = create_request(RunId("run"), spec, AgentSection(command=("sh", "-c", "true"))).rollout.runner
    assert list(command.local_command.command) == ["sh", "-c", "true"]
