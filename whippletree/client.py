"""The typed client of the gateway's record: rollouts, attempts, events, models, for people and scripts.

In: the address of the gateway, or of Envoy. Out: frozen values; no generated class leaves this file. Every call has a
deadline and is repeated while the gateway is away (`patience`). Raises WhippletreeError.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from whippletree.v1 import (
    attempt_pb2,
    attempt_pb2_grpc,
    event_pb2,
    event_pb2_grpc,
    model_call_pb2,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
)

from whippletree.channel import call, connect
from whippletree.errors import OverloadedError, ResumeTokenExpiredError, from_rpc_error
from whippletree.settings import AccessSettings
from whippletree.tokens import TokenIds, unpack_floats, unpack_ids

DEADLINE = 30.0
"""Seconds for one call."""
PAGE = 500
PAUSE = 0.2
"""Seconds before a watch that was cut is begun again."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One agent execution as the gateway has it."""

    rollout_id: str
    run_id: str
    group_id: str
    split: str
    """`train` or `eval`."""
    state: str
    """`queued`, `running`, `succeeded`, `failed` or `cancelled`."""
    attempt: int
    message: str
    input: Mapping[str, Any]
    created: datetime | None
    finished: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A rollout that is gone, as a watch tells it."""

    rollout_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A watch has told everything up to now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try."""

    number: int
    outcome: str
    """`unspecified` while it runs."""
    worker: str
    message: str
    started: datetime | None
    finished: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A model call. P = prompt tokens, R = response tokens."""

    call_id: str
    model: str
    role: str
    """`policy`, or `auxiliary`: a helper's call, never trained."""
    mode: str
    prompt_token_count: int
    response_token_count: int
    prompt_token_ids: tuple[int, ...]
    """[P]; empty unless asked for."""
    response_token_ids: tuple[int, ...]
    """[R]; empty unless asked for."""
    response_logprobs: tuple[float, ...]
    """[R]; empty unless asked for."""
    weight_versions: tuple[str, ...]
    """In order of use."""
    finish_reason: str
    delivery: str
    """`delivered`, `lost`, or `unknown`: nothing was reported (yet)."""
    parent_call_id: str
    shared_token_count: int
    engine_seconds: float
    hold_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the record; exactly one of the payloads is set, none where this client does not know it."""

    sequence: int
    attempt: int
    time: datetime | None
    call: Call | None = None
    reward: float | None = None
    reward_source: str = ""
    note: tuple[str, Mapping[str, Any]] | None = None
    """(type, data)."""
    log: tuple[str, str] | None = None
    """(stream, text)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An inference endpoint by name."""

    model_id: str
    engine: str
    """Base URL."""
    tokenizer_path: str
    context_length: int
    vocabulary_size: int
    weight_version: str = ""
    weights_path: str = ""
    engine_versions: tuple[str, ...] = field(default=())
    """Output only: what each engine has."""


class Client:
    """Calls of one channel; make it with `open_client`."""

    def __init__(self, channel: Any, *, patience: float) -> None:
        self._patience = patience
        self._rollouts = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._attempts = attempt_pb2_grpc.AttemptServiceStub(channel)
        self._events = event_pb2_grpc.EventServiceStub(channel)
        self._models = model_pb2_grpc.ModelServiceStub(channel)

    async def rollout(self, rollout_id: str) -> Rollout:
        """One rollout. NotFoundError."""
        request = rollout_pb2.GetRolloutRequest(name=f"rollouts/{rollout_id}")
        answer = await self._call(lambda: self._rollouts.GetRollout(request, timeout=DEADLINE))
        return _rollout(answer.rollout)

    async def rollouts(self, *, run_id: str = "", states: tuple[str, ...] = ()) -> AsyncIterator[Rollout]:
        """All that match, in order of creation."""
        wanted = [rollout_pb2.RolloutState.Value(f"ROLLOUT_STATE_{state.upper()}") for state in states]
        token = ""
        while True:
            request = rollout_pb2.ListRolloutsRequest(
                run=f"runs/{run_id}" if run_id else "", states=wanted, page_size=PAGE, page_token=token
            )
            answer = await self._call(partial(self._rollouts.ListRollouts, request, timeout=DEADLINE))
            for item in answer.rollouts:
                yield _rollout(item)
            if not (token := answer.next_page_token):
                return

    async def watch_rollouts(
        self, *, run_id: str = "", states: tuple[str, ...] = ()
    ) -> AsyncIterator[Rollout | Deleted | Complete]:
        """Every rollout as it is, then every change, without end; at least once each.

        Goes on from where it was when the gateway comes back within `patience`, from a new snapshot where it has to.
        """
        wanted = [rollout_pb2.RolloutState.Value(f"ROLLOUT_STATE_{state.upper()}") for state in states]
        now = asyncio.get_running_loop().time
        token, last = "", now()
        while True:
            request = rollout_pb2.WatchRolloutsRequest(
                run=f"runs/{run_id}" if run_id else "", states=wanted, resume_token=token
            )
            try:
                async for message in self._rollouts.WatchRollouts(request):
                    token, last = message.resume_token, now()
                    yield _watched(message)
            except grpc.aio.AioRpcError as error:
                found = from_rpc_error(error)
                if isinstance(found, ResumeTokenExpiredError):
                    token = ""
                elif not isinstance(found, OverloadedError) and (
                    error.code() != grpc.StatusCode.UNAVAILABLE or now() - last > self._patience
                ):
                    raise found from error
            await asyncio.sleep(PAUSE)

    async def cancel(self, rollout_id: str, *, reason: str) -> Rollout:
        """End a rollout that has not ended; as it is then. NotFoundError, WrongStateError."""
        request = rollout_pb2.CancelRolloutRequest(
            name=f"rollouts/{rollout_id}", message=reason, request_id=str(uuid.uuid4())
        )
        answer = await self._call(lambda: self._rollouts.CancelRollout(request, timeout=DEADLINE))
        return _rollout(answer.rollout)

    async def attempts(self, rollout_id: str) -> list[Attempt]:
        """The attempts of a rollout by number."""
        request = attempt_pb2.ListAttemptsRequest(parent=f"rollouts/{rollout_id}")
        answer = await self._call(lambda: self._attempts.ListAttempts(request, timeout=DEADLINE))
        return [_attempt(item) for item in answer.attempts]

    async def events(self, rollout_id: str, *, tokens: bool) -> AsyncIterator[Event]:
        """The events of a rollout by sequence; with `tokens` the exact ids and log-probabilities.

        They travel as they are stored, prompts as what they add to an earlier call, and are put together here.
        """
        view = event_pb2.EVENT_VIEW_PACKED if tokens else event_pb2.EVENT_VIEW_BASIC
        sequences: dict[str, TokenIds] = {}
        token = ""
        while True:
            request = event_pb2.ListEventsRequest(
                parent=f"rollouts/{rollout_id}", page_size=PAGE, page_token=token, view=view
            )
            answer = await self._call(partial(self._events.ListEvents, request, timeout=DEADLINE))
            for item in answer.events:
                yield _event(item, sequences)
            if not (token := answer.next_page_token):
                return

    async def register_model(self, model: Model) -> Model:
        """Register the policy, or move it to another engine; as stored."""
        message = model_pb2.Model(
            name=f"models/{model.model_id}",
            role=model_pb2.MODEL_ROLE_POLICY,
            engines=[model_pb2.Engine(address=model.engine, kind=model_pb2.ENGINE_KIND_SGLANG)],
            tokenizer_path=model.tokenizer_path,
            context_length=model.context_length,
            vocabulary_size=model.vocabulary_size,
            weight_version=model.weight_version,
            weights_path=model.weights_path,
        )
        request = model_pb2.RegisterModelRequest(model=message, request_id=str(uuid.uuid4()))
        answer = await self._call(lambda: self._models.RegisterModel(request, timeout=DEADLINE))
        return _model(answer.model)

    async def model(self, model_id: str) -> Model:
        """One model. NotFoundError."""
        request = model_pb2.GetModelRequest(name=f"models/{model_id}")
        answer = await self._call(lambda: self._models.GetModel(request, timeout=DEADLINE))
        return _model(answer.model)

    async def publish_weights(self, model_id: str, *, weight_version: str, weights_path: str) -> Model:
        """Have every engine of the model load a directory; ends when they have."""
        request = model_pb2.PublishWeightsRequest(
            name=f"models/{model_id}",
            weight_version=weight_version,
            weights_path=weights_path,
            request_id=str(uuid.uuid4()),
        )
        answer = await self._call(lambda: self._models.PublishWeights(request, timeout=600))
        return _model(answer.model)

    async def _call(self, attempt: Callable[[], Awaitable[T]]) -> T:
        return await call(attempt, patience=self._patience)


@asynccontextmanager
async def open_client(
    address: str, access: AccessSettings | None = None, *, patience: float = 10.0
) -> AsyncIterator[Client]:
    """A client of `host:port`; a gateway that is away is waited for up to `patience` seconds per call.

    `access` holds the key and the certificates; None = the key of WHIPPLETREE_API_KEY in the environment, if any.
    """
    async with connect(address, access or AccessSettings()) as channel:
        yield Client(channel, patience=patience)


def _plain(value: Any) -> Any:
    """A Struct's value as JSON wrote it: whole numbers without `.0`."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _id(name: str) -> str:
    return name.rpartition("/")[2]


def _time(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(UTC) if stamp.seconds else None


def _word(enum: Any, value: int) -> str:
    """`ROLLOUT_STATE_QUEUED` -> `queued`; a number this client does not know as `7`."""
    values: Mapping[int, Any] = enum.DESCRIPTOR.values_by_number
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return str(values[value].name.removeprefix(prefix).lower()) if value in values else str(value)


def _rollout(item: rollout_pb2.Rollout) -> Rollout:
    return Rollout(
        rollout_id=_id(item.name),
        run_id=_id(item.run),
        group_id=item.group_id,
        split=_word(rollout_pb2.Split, item.split),
        state=_word(rollout_pb2.RolloutState, item.state),
        attempt=item.attempt,
        message=item.state_message,
        input=_plain(MessageToDict(item.input)),
        created=_time(item.create_time),
        finished=_time(item.finish_time),
    )


def _watched(message: rollout_pb2.WatchRolloutsResponse) -> Rollout | Deleted | Complete:
    match message.WhichOneof("record"):
        case "rollout":
            return _rollout(message.rollout)
        case "deleted":
            return Deleted(rollout_id=_id(message.deleted))
        case _:
            return Complete()


def _attempt(item: attempt_pb2.Attempt) -> Attempt:
    return Attempt(
        number=item.number,
        outcome=_word(attempt_pb2.AttemptOutcome, item.outcome),
        worker=item.worker,
        message=item.message,
        started=_time(item.start_time),
        finished=_time(item.finish_time),
    )


def _event(item: event_pb2.Event, sequences: dict[str, TokenIds]) -> Event:
    kind = item.WhichOneof("payload")
    return Event(
        sequence=item.sequence,
        attempt=item.attempt,
        time=_time(item.create_time),
        call=_model_call(item.model_call, sequences) if kind == "model_call" else None,
        reward=item.reward.value if kind == "reward" else None,
        reward_source=(item.reward.source or "agent") if kind == "reward" else "",
        note=(item.note.type, _plain(MessageToDict(item.note.data))) if kind == "note" else None,
        log=(item.log.stream, item.log.text) if kind == "log" else None,
    )


def _model_call(item: model_call_pb2.ModelCall, sequences: dict[str, TokenIds]) -> Call:
    """Put a packed call together; `sequences` = prompt + response of the calls before it, by id, and then of it too."""
    suffix, response = unpack_ids(item.packed.prompt_suffix), unpack_ids(item.packed.response)
    shared = item.shared_token_count if item.HasField("packed") else 0
    prompt = np.concatenate((sequences[item.parent_call_id][:shared], suffix)) if shared else suffix
    if item.HasField("packed"):
        sequences[item.call_id] = np.concatenate((prompt, response))
    return Call(
        call_id=item.call_id,
        model=_id(item.model),
        role="auxiliary" if item.role == model_pb2.MODEL_ROLE_AUXILIARY else "policy",
        mode=_word(model_call_pb2.CallMode, item.mode),
        prompt_token_count=item.prompt_token_count,
        response_token_count=item.response_token_count,
        prompt_token_ids=tuple(prompt.tolist()),
        response_token_ids=tuple(response.tolist()),
        response_logprobs=tuple(unpack_floats(item.packed.logprobs).tolist()),
        weight_versions=tuple(span.weight_version for span in item.weight_versions),
        finish_reason=_word(model_call_pb2.FinishReason, item.finish_reason),
        delivery=_word(model_call_pb2.Delivery, item.delivery),
        parent_call_id=item.parent_call_id,
        shared_token_count=item.shared_token_count,
        engine_seconds=item.engine_duration.ToNanoseconds() / 1e9,
        hold_seconds=item.hold_duration.ToNanoseconds() / 1e9,
    )


def _model(item: model_pb2.Model) -> Model:
    return Model(
        model_id=_id(item.name),
        engine=item.engines[0].address if item.engines else "",
        tokenizer_path=item.tokenizer_path,
        context_length=item.context_length,
        vocabulary_size=item.vocabulary_size,
        weight_version=item.weight_version,
        weights_path=item.weights_path,
        engine_versions=tuple(engine.weight_version for engine in item.engines),
    )
