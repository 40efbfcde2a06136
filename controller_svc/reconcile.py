"""The decision: rollouts as observed + attempts as known -> what to do now, and when to look again.

Pure and level-triggered: it looks at what is, never at what happened: a lost message or a restart changes nothing.
Order of the actions: ends first (they give room), then begins, oldest rollout first.
"""

import itertools
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from controller_svc.types import Attempt, Cause, Outcome, Phase, Rollout, RolloutId, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Open the next attempt and start its process."""

    rollout: RolloutId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Find out who runs this attempt."""

    rollout: RolloutId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask the process to end (SIGTERM)."""

    rollout: RolloutId
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End the whole process group (SIGKILL)."""

    rollout: RolloutId


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tell the gateway how the attempt ended."""

    rollout: RolloutId
    attempt: int
    outcome: Outcome
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Forget an attempt that nobody waits for."""

    rollout: RolloutId


Action = Begin | Ask | Stop | Kill | Report | Drop


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """Everything that a decision depends on."""

    rollouts: Mapping[RolloutId, Rollout]
    """As the gateway shows them; a rollout that is not here has ended or was deleted."""
    queued: Iterable[Rollout]
    """Those that wait, in the order of creation; read from the front, as far as there is room."""
    running: Iterable[Rollout]
    """Those that run, here or elsewhere."""
    attempts: Mapping[RolloutId, Attempt]
    workers: Mapping[tuple[RolloutId, int], str]
    """Who runs attempts that are not ours by memory."""
    worker: str
    """Who we are."""
    now: float
    """Seconds."""
    max_running: int
    allowance: int
    """Attempts that the creation rate lets begin now."""
    stopping: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, and when the clock alone asks for the next decision."""

    actions: tuple[Action, ...]
    wake_at: float
    """Seconds, on the clock of `Situation.now`; inf = only when something changes."""


def decide(situation: Situation) -> Plan:
    """The plan for this situation. Carrying it out and deciding again gives an empty plan until something changes."""
    ends = [action for attempt in situation.attempts.values() for action in _tend(attempt, situation)]
    lost = list(_recover(situation))
    return Plan(actions=(*ends, *lost, *_begins(situation)), wake_at=_wake_at(situation))


def _tend(attempt: Attempt, situation: Situation) -> Iterator[Action]:
    """What one attempt of ours needs: at most one action."""
    superseded = _superseded(attempt, situation.rollouts.get(attempt.rollout))
    match attempt.phase:
        case Phase.RUNNING:
            if attempt.cause is None:
                if cause := _reason_to_stop(attempt, superseded, situation):
                    yield Stop(rollout=attempt.rollout, cause=cause)
            elif situation.now >= attempt.kill_at:
                yield Kill(rollout=attempt.rollout)
        case Phase.EXITED:
            if superseded:
                yield Drop(rollout=attempt.rollout)
            else:
                outcome, message = judge(attempt)
                yield Report(rollout=attempt.rollout, attempt=attempt.number, outcome=outcome, message=message)


def _superseded(attempt: Attempt, rollout: Rollout | None) -> bool:
    """Whether the gateway no longer waits for this attempt. A view from before the attempt's start says nothing."""
    if rollout is None:
        return True
    if rollout.attempt == attempt.number:
        return rollout.state not in (State.RUNNING, State.UNKNOWN)
    return rollout.attempt > attempt.number or rollout.state.final


def _reason_to_stop(attempt: Attempt, superseded: bool, situation: Situation) -> Cause | None:
    if superseded:
        return Cause.SUPERSEDED
    if situation.stopping:
        return Cause.SHUTDOWN
    return Cause.DEADLINE if situation.now >= attempt.deadline else None


def judge(attempt: Attempt) -> tuple[Outcome, str]:
    """Outcome and message of an attempt that EXITED: the agent's own doing or ours."""
    end = attempt.exit
    assert end is not None, "judged before its end"
    if end.refused:
        return Outcome.FAILED, end.refused
    if attempt.cause is Cause.SHUTDOWN:
        return Outcome.INFRASTRUCTURE_FAILURE, "the controller was stopped"
    if end.lost:
        return Outcome.INFRASTRUCTURE_FAILURE, end.lost
    if attempt.cause is Cause.DEADLINE:
        return Outcome.FAILED, f"deadline of {attempt.timeout:g} s passed"
    if end.code < 0:
        return Outcome.FAILED, f"killed by {signal_name(-end.code)}"
    return (Outcome.FAILED, f"exit code {end.code}") if end.code else (Outcome.SUCCEEDED, "")


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _recover(situation: Situation) -> Iterator[Action]:
    """Attempts that the gateway believes to be ours and that we do not have: their process is lost."""
    for rollout in situation.running:
        if rollout.id in situation.attempts or rollout.task is None:
            continue
        worker = situation.workers.get((rollout.id, rollout.attempt))
        if worker is None:
            yield Ask(rollout=rollout.id, attempt=rollout.attempt)
        elif worker == situation.worker:
            yield Report(
                rollout=rollout.id,
                attempt=rollout.attempt,
                outcome=Outcome.INFRASTRUCTURE_FAILURE,
                message="the controller lost the process",
            )


def _begins(situation: Situation) -> Iterator[Action]:
    room = min(situation.max_running - len(situation.attempts), situation.allowance)
    if situation.stopping or room <= 0:
        return
    waiting = (
        rollout for rollout in situation.queued if rollout.task is not None and rollout.id not in situation.attempts
    )
    for rollout in itertools.islice(waiting, room):
        yield Begin(rollout=rollout.id)


def _wake_at(situation: Situation) -> float:
    """The next deadline, of a process or of its grace, that lies ahead."""
    running = [attempt for attempt in situation.attempts.values() if attempt.phase is Phase.RUNNING]
    times = [attempt.deadline if attempt.cause is None else attempt.kill_at for attempt in running]
    return min((time for time in times if time > situation.now), default=float("inf"))
