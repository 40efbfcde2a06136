"""Carries out the model's operations at a real gateway and reads back what it holds, both in the model's words."""

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message
from whippletree.v1 import (
    attempt_pb2,
    event_pb2,
    inference_pb2,
    model_call_pb2,
    model_pb2,
    phase_pb2,
    rollout_pb2,
    run_pb2,
)
from whippletree.v1.attempt_pb2_grpc import AttemptServiceStub

from tests.fakes.engine import Reply
from tests.fakes.gateway import RunningGateway, packed
from tests.gateway_svc import record_model as model
from tests.gateway_svc.record_model import Answer, Operation, State

METHODS: dict[type[Any], tuple[str, str]] = {
    model.Start: ("rollouts", "StartRollout"),
    model.Finish: ("rollouts", "FinishRollout"),
    model.Cancel: ("rollouts", "CancelRollout"),
    model.Move: ("rollouts", "TransitionRollout"),
    model.Append: ("events", "AppendEvent"),
    model.Generate: ("inference", "Generate"),
    model.Register: ("models", "RegisterModel"),
    model.Remove: ("models", "DeleteModel"),
    model.MakeRun: ("runs", "CreateRun"),
    model.SetPhase: ("phases", "SetPhase"),
}
"""Stub and method of each operation but Create."""


def response_to(ids: Sequence[int]) -> list[int]:
    """What the fake engine samples: a function of the prompt."""
    return [sum(ids) % 100 + 3, len(ids) % 50, 7]


def reply(ids: list[int]) -> Reply:
    """The fake engine's script."""
    return Reply(response_to(ids))


def method(gateway: RunningGateway, operation: Operation) -> Callable[[Any], Any]:
    """The stub's method for an operation."""
    if isinstance(operation, model.Create):
        stub, name = "rollouts", "BatchCreateRollouts" if operation.batch else "CreateRollout"
    else:
        stub, name = METHODS[type(operation)]
    found: Callable[[Any], Any] = getattr(getattr(gateway, stub), name)
    return found


def request(operation: Operation, engine: str, request_id: str) -> Message:
    """The message of an operation."""
    made = _request(operation, engine)
    made.request_id = request_id  # type: ignore[attr-defined]  # all of them have one
    return made


def _request(operation: Operation, engine: str) -> Message:
    match operation:
        case model.Create(wanted=wanted, batch=batch):
            requests = [_create(name, content) for name, content in wanted]
            return rollout_pb2.BatchCreateRolloutsRequest(requests=requests) if batch else requests[0]
        case model.Start(rollout=rollout):
            return rollout_pb2.StartRolloutRequest(name=f"rollouts/{rollout}", worker="w")
        case model.Finish(rollout=rollout, attempt=attempt, outcome=word):
            outcome = attempt_pb2.AttemptOutcome.Value(f"ATTEMPT_OUTCOME_{word.upper()}")
            return rollout_pb2.FinishRolloutRequest(name=f"rollouts/{rollout}", attempt=attempt, outcome=outcome)
        case model.Cancel(rollout=rollout):
            return rollout_pb2.CancelRolloutRequest(name=f"rollouts/{rollout}")
        case model.Move(rollout=rollout, to=to, attempt=attempt):
            state = rollout_pb2.RolloutState.Value(f"ROLLOUT_STATE_{to.upper()}")
            return rollout_pb2.TransitionRolloutRequest(name=f"rollouts/{rollout}", state=state, attempt=attempt)
        case model.Append(rollout=rollout, attempt=attempt, value=value):
            reward = event_pb2.Reward(value=value)
            return event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=attempt, reward=reward)
        case model.Generate(rollout=rollout, attempt=attempt, prompt=prompt):
            return inference_pb2.GenerateRequest(
                rollout=f"rollouts/{rollout}",
                attempt=attempt,
                prompt_token_ids=packed(prompt),
                sampling=model_call_pb2.SamplingParams(max_tokens=16),
            )
        case model.Register(model=name, length=length):
            made = model_pb2.Model(name=f"models/{name}", context_length=length, vocabulary_size=1024)
            made.engines.add(address=engine)
            return model_pb2.RegisterModelRequest(model=made)
        case model.Remove(model=name):
            return model_pb2.DeleteModelRequest(name=f"models/{name}")
        case model.MakeRun(run=run, policy=policy):
            return run_pb2.CreateRunRequest(run_id=run, run=run_pb2.Run(policy=f"models/{policy}"))
        case model.SetPhase(run=run, phase=phase):
            wanted_phase = phase_pb2.Phase.Value(f"PHASE_{phase.upper()}")
            return phase_pb2.SetPhaseRequest(run=f"runs/{run}", phase=wanted_phase)
        case _:
            raise AssertionError(operation)


def _create(name: str, content: int) -> rollout_pb2.CreateRolloutRequest:
    runner = rollout_pb2.Runner(max_attempts=model.MOST_ATTEMPTS)
    made = rollout_pb2.CreateRolloutRequest(rollout_id=name, rollout=rollout_pb2.Rollout(run="runs/r", runner=runner))
    made.rollout.input.update({"content": content})
    return made


def answer(operation: Operation, response: Any) -> Answer:
    """A response in the model's words."""
    match operation:
        case model.Create(batch=batch):
            made = response.responses if batch else [response]
            return tuple((one.existed, _state(one.rollout.state), one.rollout.attempt) for one in made)
        case model.Start() | model.Finish() | model.Cancel() | model.Move():
            rollout = response.rollout
            return (_state(rollout.state), rollout.attempt, rollout.revision)
        case model.Append():
            return (response.event.attempt, "reward", int(response.event.reward.value))
        case model.Generate(attempt=attempt, prompt=prompt):
            assert response.response_token_ids == packed(response_to(prompt)), "another prompt's response"
            return (attempt, "call", prompt)
        case model.Register():
            return (response.existed, response.model.context_length)
        case model.MakeRun():
            return (response.existed, _phase(response.run.phase))
        case model.SetPhase():
            return (_phase(response.phase),)
        case _:
            return ()


async def deliver(gateway: RunningGateway, rollout: str, number: int) -> None:
    """Mark the rollout's call of this number, or one that does not exist."""
    events = await gateway.list_events(rollout) if number >= 0 else []
    calls = [event.model_call.call_id for event in events if event.HasField("model_call")]
    chosen = calls[number] if number < len(calls) else "none"
    await gateway.inference.MarkDelivered(
        inference_pb2.MarkDeliveredRequest(rollout=f"rollouts/{rollout}", call_ids=[chosen])
    )


async def observed(gateway: RunningGateway) -> State:
    """Everything that the gateway holds."""
    listed = await gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest(page_size=1000))
    models = await gateway.models.ListModels(model_pb2.ListModelsRequest())
    runs = await gateway.runs.ListRuns(run_pb2.ListRunsRequest())
    return State(
        rollouts={one.name[9:]: await _rollout(gateway, one) for one in listed.rollouts},
        models={one.name[7:]: one.context_length for one in models.models},
        runs={one.name[5:]: (one.policy[7:], _phase(one.phase)) for one in runs.runs},
    )


async def _rollout(gateway: RunningGateway, found: rollout_pb2.Rollout) -> model.Rollout:
    request_ = attempt_pb2.ListAttemptsRequest(parent=found.name)
    attempts = (await AttemptServiceStub(gateway.channel).ListAttempts(request_)).attempts
    events = await gateway.list_events(found.name[9:])
    assert [one.number for one in attempts] == list(range(1, found.attempt + 1))
    assert [one.sequence for one in events] == sorted({one.sequence for one in events})
    calls = [one.model_call for one in events if one.HasField("model_call")]
    for call in calls:
        assert list(call.response_token_ids) == response_to(call.prompt_token_ids)
    return model.Rollout(
        content=int(found.input.fields["content"].number_value),
        state=_state(found.state),
        outcomes=tuple(_outcome(one.outcome) for one in attempts),
        revision=found.revision,
        events=tuple(_event(one) for one in events),
        delivered=frozenset(number for number, call in enumerate(calls) if call.delivered),
    )


def _event(event: event_pb2.Event) -> tuple[int, str, object]:
    if event.HasField("model_call"):
        return event.attempt, "call", tuple(event.model_call.prompt_token_ids)
    return event.attempt, "reward", int(event.reward.value)


def _state(value: rollout_pb2.RolloutState.ValueType) -> str:
    return rollout_pb2.RolloutState.Name(value).removeprefix("ROLLOUT_STATE_").lower()


def _phase(value: phase_pb2.Phase.ValueType) -> str:
    return phase_pb2.Phase.Name(value).removeprefix("PHASE_").lower()


def _outcome(value: attempt_pb2.AttemptOutcome.ValueType) -> str:
    word = attempt_pb2.AttemptOutcome.Name(value).removeprefix("ATTEMPT_OUTCOME_").lower()
    return "" if word == "unspecified" else word
