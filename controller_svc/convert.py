"""Protobuf <-> types of the controller."""

from google.protobuf import json_format
from whippletree.v1 import attempt_pb2, rollout_pb2

from controller_svc.types import Command, Outcome, Program, Rollout, RolloutId, State

_STATES = {
    rollout_pb2.ROLLOUT_STATE_QUEUED: State.QUEUED,
    rollout_pb2.ROLLOUT_STATE_RUNNING: State.RUNNING,
    rollout_pb2.ROLLOUT_STATE_SUCCEEDED: State.SUCCEEDED,
    rollout_pb2.ROLLOUT_STATE_FAILED: State.FAILED,
    rollout_pb2.ROLLOUT_STATE_CANCELLED: State.CANCELLED,
}
_OUTCOMES = {
    Outcome.SUCCEEDED: attempt_pb2.ATTEMPT_OUTCOME_SUCCEEDED,
    Outcome.FAILED: attempt_pb2.ATTEMPT_OUTCOME_FAILED,
    Outcome.INFRASTRUCTURE_FAILURE: attempt_pb2.ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE,
}


def rollout_name(rollout: RolloutId) -> str:
    """`rollouts/{rollout}`."""
    return f"rollouts/{rollout}"


def rollout_id(name: str) -> RolloutId:
    """`{rollout}` of `rollouts/{rollout}`."""
    return RolloutId(name.removeprefix("rollouts/"))


def rollout(message: rollout_pb2.Rollout) -> Rollout:
    """A rollout of the contract as the controller sees it."""
    return Rollout(
        id=rollout_id(message.name),
        state=_STATES.get(message.state, State.UNKNOWN),
        attempt=message.attempt,
        revision=message.revision,
        created=message.create_time.ToNanoseconds(),
        mode="eval" if message.split == rollout_pb2.SPLIT_EVAL else "train",
        task=_task(message.runner),
        timeout=message.runner.timeout.ToMilliseconds() / 1000,
        input=json_format.MessageToJson(message.input, indent=None, ensure_ascii=False),
    )


def outcome(value: Outcome) -> "attempt_pb2.AttemptOutcome.ValueType":
    """An outcome on the wire."""
    return _OUTCOMES[value]


def _task(runner: rollout_pb2.Runner) -> Command | Program | None:
    match runner.WhichOneof("backend"):
        case "local_command":
            command = runner.local_command
            return Command(arguments=tuple(command.command), environment=dict(command.environment))
        case "python_program":
            program = runner.python_program
            return Program(
                path=program.path,
                arguments=tuple(program.arguments),
                preload=tuple(program.preload),
                environment=dict(program.environment),
            )
        case _:
            return None
