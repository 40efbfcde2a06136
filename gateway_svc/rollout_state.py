"""The state machine of rollouts and attempts, as functions of values.

In: where a rollout stands and what is asked. Out: a `Step` (the new status and what happens to its attempts), or the
error that says why not. A verb whose effect already holds gives the same status and changes nothing.
"""

from dataclasses import dataclass, replace
from typing import Protocol, assert_never

from gateway_svc.types import Micros, Outcome, RolloutState, RolloutStatus
from whippletree.errors import InvalidFieldError, RolloutEndedError, StaleAttemptError, WrongStateError

MESSAGE_LIMIT = 4096
"""Characters of a message that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A decided verb: `opens` a new attempt, or `closes` the current one with this outcome, or neither."""

    status: RolloutStatus
    opens: bool = False
    closes: Outcome | None = None


def start(status: RolloutStatus, *, now: Micros) -> Step:
    """Open the next attempt of a queued rollout."""
    if status.state != RolloutState.QUEUED:
        raise _wrong(status, RolloutState.RUNNING)
    moved = replace(
        status,
        state=RolloutState.RUNNING,
        attempt=status.attempt + 1,
        outcome=None,
        message="",
        start_time=status.start_time or now,
        revision=status.revision + 1,
    )
    return Step(status=moved, opens=True)


def finish(
    status: RolloutStatus, *, attempt: int, outcome: Outcome, message: str, max_attempts: int, now: Micros
) -> Step:
    """End the current attempt, and the rollout unless the infrastructure failed and attempts remain."""
    if attempt != status.attempt:
        raise stale(attempt, status.attempt)
    if status.state != RolloutState.RUNNING:
        if status.outcome == outcome:
            return Step(status=status)
        raise _wrong(status, _target(outcome))
    if outcome == Outcome.INFRASTRUCTURE_FAILURE and attempt < max_attempts:
        queued = replace(status, state=RolloutState.QUEUED, outcome=outcome, message=message[:MESSAGE_LIMIT])
        return Step(status=replace(queued, revision=status.revision + 1), closes=outcome)
    return _end(status, _target(outcome), outcome, message, now)


def cancel(status: RolloutStatus, *, message: str, now: Micros) -> Step:
    """End a rollout that has not ended."""
    if status.state == RolloutState.CANCELLED:
        return Step(status=status)
    if status.state.ended:
        raise _wrong(status, RolloutState.CANCELLED)
    return _end(status, RolloutState.CANCELLED, Outcome.CANCELLED, message, now)


def transition(
    status: RolloutStatus, *, to: RolloutState, attempt: int, message: str, max_attempts: int, now: Micros
) -> Step:
    """One call for all verbs; `attempt` 0 means the current one. A rollout that is there already stays as it is."""
    if attempt and attempt != status.attempt:
        raise stale(attempt, status.attempt)
    if to == status.state:
        return Step(status=status)
    match to:
        case RolloutState.RUNNING:
            return start(status, now=now)
        case RolloutState.SUCCEEDED | RolloutState.FAILED:
            outcome = Outcome.SUCCEEDED if to == RolloutState.SUCCEEDED else Outcome.FAILED
            if status.state != RolloutState.RUNNING:
                raise _wrong(status, to)
            attempt = status.attempt
            return finish(status, attempt=attempt, outcome=outcome, message=message, max_attempts=max_attempts, now=now)
        case RolloutState.CANCELLED:
            return cancel(status, message=message, now=now)
        case RolloutState.QUEUED:
            raise InvalidFieldError("state QUEUED cannot be asked for", field="state")
        case _:
            assert_never(to)


class Current(Protocol):
    """A rollout's state, and the number of its current attempt."""

    @property
    def state(self) -> RolloutState: ...
    @property
    def attempt(self) -> int: ...


def check_writable(status: Current, attempt: int, name: str) -> None:
    """Raise unless this attempt may write events and make calls now."""
    if status.state.ended:
        raise RolloutEndedError(f"{name} has ended ({status.state}) and takes no more events or calls", name=name)
    if attempt != status.attempt or status.state != RolloutState.RUNNING:
        raise stale(attempt, status.attempt)


def stale(attempt: int, current: int) -> StaleAttemptError:
    """The error for an attempt that is not, or no longer, under way."""
    if attempt == current:
        text = f"attempt {attempt} has ended" if attempt else "no attempt was started"
    else:
        text = f"attempt {attempt} is not the current attempt {current}"
    return StaleAttemptError(text, attempt=attempt, current=current)


def _end(status: RolloutStatus, state: RolloutState, outcome: Outcome, message: str, now: Micros) -> Step:
    running = status.state == RolloutState.RUNNING
    ended = replace(
        status,
        state=state,
        outcome=outcome if running else status.outcome,
        message=message[:MESSAGE_LIMIT],
        finish_time=now,
        revision=status.revision + 1,
    )
    return Step(status=ended, closes=outcome if running else None)


def _target(outcome: Outcome) -> RolloutState:
    match outcome:
        case Outcome.SUCCEEDED:
            return RolloutState.SUCCEEDED
        case Outcome.FAILED | Outcome.INFRASTRUCTURE_FAILURE:
            return RolloutState.FAILED
        case Outcome.CANCELLED:
            return RolloutState.CANCELLED
        case _:
            assert_never(outcome)


def _wrong(status: RolloutStatus, to: RolloutState) -> WrongStateError:
    error = WrongStateError(f"a {status.state} rollout cannot become {to}")
    error.metadata = {"from": status.state, "to": to}
    return error
