"""The decision, by tables: situations in, actions out."""

from dataclasses import replace

import pytest

from controller_svc.reconcile import Action, Ask, Begin, Drop, Kill, Report, Situation, Stop, decide, judge
from controller_svc.types import Attempt, Cause, Exit, Outcome, Phase, Rollout, RolloutId, State
from tests.fakes.processes import command, rollout

A = RolloutId("a")
TASK = command("true")
ME = "me"


def situation(*rollouts: Rollout, attempts: tuple[Attempt, ...] = (), **changes: object) -> Situation:
    base = Situation(
        rollouts={item.id: item for item in rollouts},
        queued=[item for item in rollouts if item.state is State.QUEUED],
        running=[item for item in rollouts if item.state is State.RUNNING],
        attempts={item.rollout: item for item in attempts},
        workers={},
        worker=ME,
        now=100.0,
        max_running=4,
        allowance=4,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def seen(state: State, attempt: int = 1, name: str = "a", **changes: object) -> Rollout:
    return rollout(name, TASK, state=state, attempt=attempt, **changes)


def running(**changes: object) -> Attempt:
    return replace(
        Attempt(rollout=A, number=1, phase=Phase.RUNNING, timeout=50.0, deadline=150.0),
        **changes,  # type: ignore[arg-type]
    )


def lost(name: str = "a", attempt: int = 1) -> Report:
    return Report(
        rollout=RolloutId(name),
        attempt=attempt,
        outcome=Outcome.INFRASTRUCTURE_FAILURE,
        message="the controller lost the process",
    )


def exited(**exit_: object) -> Attempt:
    return running(phase=Phase.EXITED, exit=Exit(**exit_))  # type: ignore[arg-type]


ON_OUR_ATTEMPT: dict[str, tuple[Rollout | None, Attempt, list[Action]]] = {
    "runs": (seen(State.RUNNING), running(), []),
    "view from before its start": (seen(State.QUEUED, attempt=0), running(), []),
    "state from a newer contract": (seen(State.UNKNOWN), running(), []),
    "cancelled": (seen(State.CANCELLED), running(), [Stop(rollout=A, cause=Cause.SUPERSEDED)]),
    "ended by somebody else": (seen(State.SUCCEEDED), running(), [Stop(rollout=A, cause=Cause.SUPERSEDED)]),
    "queued again by somebody else": (seen(State.QUEUED), running(), [Stop(rollout=A, cause=Cause.SUPERSEDED)]),
    "another attempt runs": (seen(State.RUNNING, attempt=2), running(), [Stop(rollout=A, cause=Cause.SUPERSEDED)]),
    "gone": (None, running(), [Stop(rollout=A, cause=Cause.SUPERSEDED)]),
    "past its deadline": (seen(State.RUNNING), running(deadline=100.0), [Stop(rollout=A, cause=Cause.DEADLINE)]),
    "asked to end, in its grace": (seen(State.RUNNING), running(cause=Cause.DEADLINE, kill_at=101.0), []),
    "asked to end, grace over": (seen(State.RUNNING), running(cause=Cause.DEADLINE, kill_at=100.0), [Kill(rollout=A)]),
    "killed already": (seen(State.CANCELLED), running(cause=Cause.SUPERSEDED), []),
    "starting": (seen(State.QUEUED, attempt=0), Attempt(rollout=A), []),
    "launching though cancelled": (seen(State.CANCELLED), running(phase=Phase.LAUNCHING), []),
    "being closed": (seen(State.RUNNING), running(phase=Phase.CLOSING), []),
    "exited": (
        seen(State.RUNNING),
        exited(),
        [Report(rollout=A, attempt=1, outcome=Outcome.SUCCEEDED, message="")],
    ),
    "exited after its cancellation": (seen(State.CANCELLED), exited(), [Drop(rollout=A)]),
    "exited, and another attempt runs": (seen(State.RUNNING, attempt=2), exited(code=1), [Drop(rollout=A)]),
}


@pytest.mark.parametrize(("view", "attempt", "expected"), ON_OUR_ATTEMPT.values(), ids=ON_OUR_ATTEMPT.keys())
def test_an_attempt_of_ours_needs(view: Rollout | None, attempt: Attempt, expected: list[Action]) -> None:
    given = situation(*([view] if view else []), attempts=(attempt,))
    assert list(decide(given).actions) == expected


ENDS: dict[str, tuple[Attempt, Outcome, str]] = {
    "code 0": (exited(), Outcome.SUCCEEDED, ""),
    "other code": (exited(code=3), Outcome.FAILED, "exit code 3"),
    "signal": (exited(code=-11), Outcome.FAILED, "killed by SIGSEGV"),
    "signal without a name": (exited(code=-60), Outcome.FAILED, "killed by signal 60"),
    "deadline": (replace(exited(code=-15), cause=Cause.DEADLINE), Outcome.FAILED, "deadline of 50 s passed"),
    "deadline, politely": (replace(exited(), cause=Cause.DEADLINE), Outcome.FAILED, "deadline of 50 s passed"),
    "program refused": (exited(refused="no such module"), Outcome.FAILED, "no such module"),
    "process lost": (exited(lost="fork server died"), Outcome.INFRASTRUCTURE_FAILURE, "fork server died"),
    "controller stopped": (
        replace(exited(), cause=Cause.SHUTDOWN),
        Outcome.INFRASTRUCTURE_FAILURE,
        "the controller was stopped",
    ),
}


@pytest.mark.parametrize(("attempt", "outcome", "message"), ENDS.values(), ids=ENDS.keys())
def test_an_end_is_judged(attempt: Attempt, outcome: Outcome, message: str) -> None:
    assert judge(attempt) == (outcome, message)


def test_queued_rollouts_begin_from_the_front() -> None:
    ours = Attempt(rollout=A)
    given = situation(*(seen(State.QUEUED, 0, name) for name in "abcd"), attempts=(ours,), max_running=3)
    assert decide(given).actions == (Begin(rollout=RolloutId("b")), Begin(rollout=RolloutId("c")))


@pytest.mark.parametrize(
    ("limits", "begins"),
    [({"max_running": 3}, 2), ({"allowance": 1}, 1), ({"allowance": 0}, 0), ({"max_running": 1}, 0)],
    ids=["room left by what runs", "creation rate", "no allowance", "full"],
)
def test_limits_hold(limits: dict[str, int], begins: int) -> None:
    rollouts = [seen(State.RUNNING), *(seen(State.QUEUED, 0, f"q{number}") for number in range(5))]
    actions = decide(situation(*rollouts, attempts=(running(),), **limits)).actions
    assert len(actions) == begins


def test_what_other_backends_run_is_left_alone() -> None:
    others = [rollout("a", None, state=State.QUEUED), rollout("b", None, state=State.RUNNING)]
    assert decide(situation(*others)).actions == ()


def test_a_running_rollout_that_is_not_ours_is_asked_about_once() -> None:
    given = situation(seen(State.RUNNING))
    assert decide(given).actions == (Ask(rollout=A, attempt=1),)
    assert decide(replace(given, workers={(A, 1): "another"})).actions == ()


def test_an_attempt_of_an_earlier_life_is_lost() -> None:
    given = situation(seen(State.RUNNING, attempt=2), workers={(A, 2): ME, (A, 1): "another"})
    assert decide(given).actions == (lost(attempt=2),)


def test_stopping_ends_what_runs_and_begins_nothing() -> None:
    given = situation(seen(State.RUNNING), seen(State.QUEUED, 0, "b"), attempts=(running(),), stopping=True)
    assert decide(given).actions == (Stop(rollout=A, cause=Cause.SHUTDOWN),)


def test_the_next_look_is_at_the_next_deadline() -> None:
    other = replace(running(cause=Cause.DEADLINE, kill_at=120.0), rollout=RolloutId("b"))
    views = (seen(State.RUNNING), seen(State.RUNNING, name="b"))
    assert decide(situation(*views, attempts=(running(), other))).wake_at == 120.0
    assert decide(situation(*views, attempts=(running(),), workers={(RolloutId("b"), 1): ""})).wake_at == 150.0
    assert decide(situation()).wake_at == float("inf")
