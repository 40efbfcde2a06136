"""What the controller knows: rollouts as the gateway shows them, attempts as it carries them out, and how they end."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

RolloutId = NewType("RolloutId", str)
"""`{rollout}` of `rollouts/{rollout}`."""


class State(StrEnum):
    """State of a rollout; UNKNOWN is one that this version does not know and leaves alone."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def final(self) -> bool:
        """Whether the rollout never leaves this state."""
        return self in (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program and its arguments, executed directly."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A Python program, run as `__main__` in a fork of an interpreter that has imported `preload`."""

    path: str
    arguments: tuple[str, ...]
    preload: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout at one revision."""

    id: RolloutId
    state: State
    attempt: int
    """Current or last attempt, from 1; 0 = none yet."""
    revision: int
    created: int
    """Nanoseconds since 1970, for the order of creation."""
    mode: str
    """`train` or `eval`."""
    task: Command | Program | None
    """None = another controller's business, a Kubernetes Job for example."""
    timeout: float
    """Seconds of one attempt; 0 = the controller's default."""
    input: str
    """JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of an attempt's process."""

    code: int = 0
    """Exit code, or minus the signal that killed it."""
    lost: str = ""
    """Not empty: nobody knows how it ended, and why not."""
    refused: str = ""
    """Not empty: the program cannot be run as it is given, and why."""
    cpu: float = 0.0
    """Seconds of processor time, user and system, of the process and what it waited for."""


class Cause(StrEnum):
    """Why the controller ends a process."""

    SUPERSEDED = "superseded"
    """The rollout was cancelled or ended, or has another attempt."""
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class Phase(StrEnum):
    """Where an attempt of this controller stands."""

    STARTING = "starting"
    """StartRollout was sent; there is no process."""
    LAUNCHING = "launching"
    """The attempt is open; its process is on the way."""
    RUNNING = "running"
    EXITED = "exited"
    CLOSING = "closing"
    """Its end is being reported and its folder removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that this controller carries out. `number` is 0 while STARTING."""

    rollout: RolloutId
    number: int = 0
    phase: Phase = Phase.STARTING
    timeout: float = 0.0
    """Seconds."""
    deadline: float = float("inf")
    """On the controller's clock, seconds."""
    cause: Cause | None = None
    """Set once the process was asked to end."""
    kill_at: float = float("inf")
    """When a process that was asked to end is killed, on the controller's clock; inf = not asked, or killed already."""
    exit: Exit | None = None
