"""Messages of the gateway -> the driver's types, and rollouts to ask for -> messages.

Calls come packed: a prompt is sent as what it adds to its parent's prompt + response, and is put together again here.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from whippletree.v1 import event_pb2, model_call_pb2, model_pb2, rollout_pb2, run_pb2

from trainer_svc.config import AgentSection
from trainer_svc.types import (
    Call,
    CallId,
    Delivery,
    Finish,
    Record,
    Reward,
    RolloutId,
    RolloutSpec,
    RunId,
    Split,
    State,
    Status,
)
from whippletree.tokens import unpack_floats, unpack_ids

STATES: Mapping[int, State] = {
    rollout_pb2.ROLLOUT_STATE_QUEUED: State.QUEUED,
    rollout_pb2.ROLLOUT_STATE_RUNNING: State.RUNNING,
    rollout_pb2.ROLLOUT_STATE_SUCCEEDED: State.SUCCEEDED,
    rollout_pb2.ROLLOUT_STATE_FAILED: State.FAILED,
    rollout_pb2.ROLLOUT_STATE_CANCELLED: State.CANCELLED,
}
FINISHES: Mapping[int, Finish] = {
    model_call_pb2.FINISH_REASON_STOP: Finish.STOP,
    model_call_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    model_call_pb2.FINISH_REASON_ABORT: Finish.ABORT,
}
DELIVERIES: Mapping[int, Delivery] = {
    model_call_pb2.DELIVERY_DELIVERED: Delivery.DELIVERED,
    model_call_pb2.DELIVERY_LOST: Delivery.LOST,
}
SPLITS: Mapping[Split, rollout_pb2.Split.ValueType] = {
    Split.TRAIN: rollout_pb2.SPLIT_TRAIN,
    Split.EVAL: rollout_pb2.SPLIT_EVAL,
}


class BrokenRecordError(Exception):
    """The record contradicts itself; the message names rollout and call."""


def identifier(name: str) -> str:
    """`rollouts/r-1` -> `r-1`."""
    return name.rpartition("/")[2]


def status(message: rollout_pb2.Rollout) -> Status:
    """Where a rollout stands."""
    return Status(
        rollout_id=RolloutId(identifier(message.name)),
        state=STATES.get(message.state, State.UNKNOWN),
        attempt=message.attempt,
        message=message.state_message,
    )


def record(rollout_id: RolloutId, attempt: int, events: Iterable[event_pb2.Event], model: str) -> Record:
    """What the attempt that ended the rollout wrote, by sequence; only calls that `model` answered as a policy.

    Calls of other attempts and models are still read, because a prompt may be stored as an addition to them. Raises
    BrokenRecordError where a parent is missing or counts do not fit.
    """
    known: dict[str, Call] = {}
    calls: list[Call] = []
    rewards: list[Reward] = []
    for event in sorted(events, key=lambda item: item.sequence):
        kind = event.WhichOneof("payload")
        if kind == "model_call":
            call = expanded(event.model_call, event.sequence, known, rollout_id)
            known[call.call_id] = call
            helper = event.model_call.role == model_pb2.MODEL_ROLE_AUXILIARY
            if event.attempt == attempt and call.model == model and not helper:
                calls.append(call)
        elif kind == "reward" and event.attempt == attempt:
            rewards.append(
                Reward(value=event.reward.value, source=event.reward.source or "agent", call_id=event.reward.call_id)
            )
    return Record(rollout_id=rollout_id, calls=tuple(calls), rewards=tuple(rewards))


def expanded(
    message: model_call_pb2.ModelCall, sequence: int, known: Mapping[str, Call], rollout_id: RolloutId
) -> Call:
    """One packed call with its whole prompt. Raises BrokenRecordError."""
    suffix = unpack_ids(message.packed.prompt_suffix)
    if message.shared_token_count:
        parent = known.get(message.parent_call_id)
        if parent is None:
            raise BrokenRecordError(f"{rollout_id}: call {message.call_id} extends unknown {message.parent_call_id!r}")
        shared = np.concatenate([parent.prompt, parent.response])[: message.shared_token_count]
        suffix = np.concatenate([shared, suffix])
    response = unpack_ids(message.packed.response)
    if len(suffix) != message.prompt_token_count or len(response) != message.response_token_count:
        raise BrokenRecordError(f"{rollout_id}: call {message.call_id} holds other token counts than it says")
    return Call(
        call_id=CallId(message.call_id),
        model=identifier(message.model),
        sequence=sequence,
        prompt=suffix,
        response=response,
        logprobs=unpack_floats(message.packed.logprobs),
        finish=FINISHES.get(message.finish_reason, Finish.UNKNOWN),
        delivery=DELIVERIES.get(message.delivery, Delivery.UNKNOWN),
        weight_versions=tuple(span.weight_version for span in message.weight_versions),
    )


def create_request(run: RunId, spec: RolloutSpec, agent: AgentSection) -> rollout_pb2.CreateRolloutRequest:
    """Asks for one rollout."""
    message = rollout_pb2.Rollout(
        run=f"runs/{run}",
        group_id=spec.group_id,
        split=SPLITS[spec.split],
        input=ParseDict(dict(spec.input), Struct()),
        runner=runner(agent),
    )
    return rollout_pb2.CreateRolloutRequest(rollout_id=spec.rollout_id, rollout=message)


def runner(agent: AgentSection) -> rollout_pb2.Runner:
    """How the agent is executed."""
    message = rollout_pb2.Runner(max_attempts=agent.max_attempts)
    message.timeout.FromMilliseconds(round(agent.timeout * 1000))
    if agent.program is not None:
        message.python_program.CopyFrom(
            rollout_pb2.PythonProgram(
                path=str(agent.program),
                arguments=agent.arguments,
                preload=agent.preload,
                environment=agent.environment,
            )
        )
    else:
        message.local_command.CopyFrom(rollout_pb2.LocalCommand(command=agent.command, environment=agent.environment))
    return message


def run(policy: str) -> run_pb2.Run:
    """A run whose rollouts, trained or measured, are sampled at temperature 1 from the whole distribution."""
    sampling = model_call_pb2.SamplingParams(temperature=1.0, top_p=1.0, top_k=-1)
    return run_pb2.Run(policy=f"models/{policy}", train_sampling=sampling, eval_sampling=sampling)
