"""The gateway's nouns as plain values. Bytes that the gateway never looks into stay bytes: `input`, `runner`,
`metadata` and a note's `data` are protobuf messages, serialised deterministically, so equal content means equal
bytes.

Times are microseconds since 1970 UTC, spans microseconds. Token arrays are packed: int32 ids, float32
log-probabilities.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from gateway_svc.prefix import Hashed

RolloutId = NewType("RolloutId", str)
RunId = NewType("RunId", str)
ModelName = NewType("ModelName", str)
CallId = NewType("CallId", str)
Micros = NewType("Micros", int)


class RolloutState(StrEnum):
    """QUEUED -> RUNNING -> an ended state; RUNNING -> QUEUED when the infrastructure failed and attempts remain."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether it is final."""
        return self in (RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.CANCELLED)


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    CANCELLED = "cancelled"


class Split(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    EVAL = "eval"


class Mode(StrEnum):
    """Whose sampling a call follows."""

    TRAIN = "train"
    EVAL = "eval"


class Phase(StrEnum):
    """Whether a run's generations are admitted."""

    ROLLOUT = "rollout"
    DRAINING = "draining"
    UPDATING = "updating"


class Role(StrEnum):
    """What a model is for."""

    POLICY = "policy"
    AUXILIARY = "auxiliary"


class EngineKind(StrEnum):
    """What an engine speaks."""

    SGLANG = "sglang"
    VLLM = "vllm"


class Finish(StrEnum):
    """Why an engine stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Delivery(StrEnum):
    """What became of a reply: nothing was reported yet, it was written out in full, or its harness went away before."""

    UNKNOWN = "unknown"
    DELIVERED = "delivered"
    LOST = "lost"


class View(StrEnum):
    """How much of a model call is read: no tokens, expanded tokens, tokens as stored."""

    BASIC = "basic"
    FULL = "full"
    PACKED = "packed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are sampled; None and () mean unset."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. `ordinal` rises with creation."""

    run_id: RunId
    policy: ModelName
    train_sampling: Sampling
    eval_sampling: Sampling
    max_hold: Micros
    phase: Phase = Phase.ROLLOUT
    create_time: Micros = Micros(0)
    ordinal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where a model is served. `max_in_flight` 0 = the gateway's setting."""

    address: str
    kind: EngineKind = EngineKind.SGLANG
    max_in_flight: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedEngine:
    """An engine that stays as long as its heartbeats come. `heartbeat_time` differs after each."""

    model: ModelName
    engine_id: str
    engine: Engine
    lease: Micros
    heartbeat_time: Micros = Micros(0)

    @property
    def name(self) -> str:
        """`models/{model}/engines/{engine}`."""
        return f"models/{self.model}/engines/{self.engine_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model. An empty `weight_version` means that any weights of its engines will do; `engines` have no lease."""

    name: ModelName
    role: Role
    engines: tuple[Engine, ...]
    weight_version: str
    weights_path: str
    tokenizer_path: str
    context_length: int
    vocabulary_size: int
    create_time: Micros = Micros(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """What a caller asks for; fixed from creation on."""

    rollout_id: RolloutId
    run_id: RunId
    group_id: str
    split: Split
    input: bytes
    runner: bytes
    metadata: bytes
    max_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStatus:
    """Where a rollout stands. `attempt` 0 = none yet; `outcome` is that attempt's, None while it runs."""

    state: RolloutState = RolloutState.QUEUED
    attempt: int = 0
    outcome: Outcome | None = None
    message: str = ""
    start_time: Micros | None = None
    finish_time: Micros | None = None
    revision: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One agent execution. `ordinal` rises with creation, `change` is the gateway-wide number of its last change."""

    ordinal: int
    spec: RolloutSpec
    status: RolloutStatus
    create_time: Micros
    change: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try. `outcome` None = it runs."""

    rollout_id: RolloutId
    number: int
    worker: str
    start_time: Micros
    outcome: Outcome | None = None
    message: str = ""
    finish_time: Micros | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Response tokens [start, end) were sampled by one weight version."""

    weight_version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One response of an engine: packed ids and logprobs [R], spans that cover [0, R) in order."""

    response: bytes
    logprobs: bytes
    spans: tuple[Span, ...]
    finish: Finish
    matched_stop: str

    @property
    def count(self) -> int:
        """R."""
        return len(self.response) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What engines are asked: packed prompt ids [P], a sampling with all fields but the seed set, for whom, as what."""

    model: ModelName
    prompt: bytes
    sampling: Sampling
    rollout_id: RolloutId
    call_id: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class CallHead:
    """What is known of a call besides its tokens."""

    model: ModelName
    dialect: str
    mode: Mode
    sampling: Sampling
    asked_sampling: str
    finish: Finish
    matched_stop: str
    engine: str
    start_time: Micros
    hold: Micros
    engine_time: Micros
    spans: tuple[Span, ...]
    role: Role = Role.POLICY
    """What the model was for when it answered."""
    checksum: int | None = None
    """CRC-32 of the packed log-probabilities, by which they are verified; None = recorded before there was one."""
    ignored_fields: tuple[str, ...] = ()
    """What the harness asked for and the bridge did not use, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One recorded generation, tokens as stored: the prompt is the parent's first `shared` tokens + `suffix`.

    `prompt` is filled for view FULL alone; in view BASIC all token fields are empty.
    """

    call_id: CallId
    head: CallHead
    prompt_count: int
    response_count: int
    parent_call_id: str
    shared: int
    delivery: Delivery
    suffix: bytes = b""
    response: bytes = b""
    logprobs: bytes = b""
    prompt: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A finite number; `call_id` empty = the outcome of the rollout."""

    value: float
    source: str
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The user's own data: a serialised google.protobuf.Struct."""

    type: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A piece of output."""

    stream: str
    text: str


Payload = ModelCall | Reward | Note | Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the record; `sequence` rises over the whole gateway."""

    rollout_id: RolloutId
    sequence: int
    attempt: int
    create_time: Micros
    payload: Payload
    may_ignore: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """A request that is answered once: its id, its method and the digest of its body."""

    request_id: str
    method: str
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What a request says of itself: equal `turn`s are equal bodies; `key` = its Idempotency-Key, empty = none."""

    turn: bytes
    key: str
    is_retry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request for a response: packed prompt [P], and what the harness asked for."""

    rollout_id: RolloutId
    attempt: int
    mode: Mode
    model: str
    prompt: bytes
    sampling: Sampling
    asked_sampling: str
    dialect: str
    choice_index: int
    once: Once | None = field(default=None)
    repeat: Repeat | None = None
    """None = no retries are recognised."""
    hashed: Hashed | None = field(default=None, compare=False)
    """The prompt's hash, where it is known already."""
    ordinal: int = 0
    """Of the rollout that is meant; 0 = whichever has the id."""
    choice_count: int = 1
    """How many requests like this one, by their `choice_index`, ask for a response to the prompt."""
    ignored_fields: tuple[str, ...] = ()
    """See `CallHead.ignored_fields`."""
