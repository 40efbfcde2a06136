"""What the driver thinks in: rollouts as recorded, the samples made of them, and what it asks the gateway to run.

Shape suffixes: P prompt tokens, R response tokens, T tokens of one sample.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

import numpy as np
import numpy.typing as npt

from whippletree.tokens import Floats, TokenIds

RunId = NewType("RunId", str)
RolloutId = NewType("RolloutId", str)
GroupId = NewType("GroupId", str)
CallId = NewType("CallId", str)

Mask = npt.NDArray[np.bool_]
"""[T] True where a token is trained."""


class State(StrEnum):
    """Where a rollout stands; what this side does not know is UNKNOWN and never taken for success."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether it is final."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Split(StrEnum):
    """What a rollout is for."""

    TRAIN = "train"
    EVAL = "eval"


class Finish(StrEnum):
    """Why the engine stopped."""

    UNKNOWN = "unknown"
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Delivery(StrEnum):
    """What became of a reply, as the bridge reported."""

    UNKNOWN = "unknown"  # nothing was reported (yet)
    DELIVERED = "delivered"  # it reached the harness in full
    LOST = "lost"  # the harness went away before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One recorded model call, its prompt in full."""

    call_id: CallId
    model: str  # name without `models/`
    sequence: int  # gateway-wide order; an earlier call has the smaller one
    prompt: TokenIds  # [P]
    response: TokenIds  # [R]
    logprobs: Floats  # [R], natural logarithm, as sampled
    finish: Finish
    delivery: Delivery
    weight_versions: tuple[str, ...]  # of its spans, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One recorded reward."""

    value: float
    source: str
    call_id: str  # empty = the outcome of the whole rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A rollout's place in its life."""

    rollout_id: RolloutId
    state: State
    attempt: int  # current or last, from 1; 0 = none yet
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Record:
    """What one attempt wrote: calls and rewards by sequence."""

    rollout_id: RolloutId
    calls: tuple[Call, ...]
    rewards: tuple[Reward, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    """A rollout to ask for."""

    rollout_id: RolloutId
    group_id: GroupId
    split: Split
    input: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One training sequence. Where `mask` is False the token was observed: log-probability 0, never trained."""

    rollout_id: RolloutId
    index: int  # within its rollout, from 0
    token_ids: TokenIds  # [T]
    mask: Mask  # [T]; the first is False
    logprobs: Floats  # [T]

    @property
    def name(self) -> str:
        """Unique in a run, for messages and logs."""
        return f"{self.rollout_id}/{self.index}"

    @property
    def token_count(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def trained_count(self) -> int:
        """Tokens with mask True."""
        return int(np.count_nonzero(self.mask))
