"""The state machine: every verb in every state."""

import pytest

from gateway_svc import rollout_state
from gateway_svc.types import Micros, Outcome, RolloutState, RolloutStatus
from whippletree.errors import InvalidFieldError, RolloutEndedError, StaleAttemptError, WrongStateError

NOW = Micros(7)
QUEUED = RolloutStatus()
RUNNING = rollout_state.start(QUEUED, now=Micros(5)).status


def finished(outcome: Outcome, status: RolloutStatus = RUNNING, max_attempts: int = 2) -> rollout_state.Step:
    return rollout_state.finish(
        status, attempt=status.attempt, outcome=outcome, message="why", max_attempts=max_attempts, now=NOW
    )


SUCCEEDED = finished(Outcome.SUCCEEDED).status
FAILED = finished(Outcome.FAILED).status
REQUEUED = finished(Outcome.INFRASTRUCTURE_FAILURE).status
CANCELLED = rollout_state.cancel(RUNNING, message="", now=NOW).status


def test_start_opens_the_first_attempt() -> None:
    assert RolloutStatus(state=RolloutState.RUNNING, attempt=1, start_time=Micros(5), revision=2) == RUNNING


def test_a_second_attempt_keeps_the_first_start_time() -> None:
    again = rollout_state.start(REQUEUED, now=NOW).status
    assert (again.attempt, again.start_time, again.outcome, again.state) == (2, 5, None, RolloutState.RUNNING)


@pytest.mark.parametrize("status", [RUNNING, SUCCEEDED, FAILED, CANCELLED])
def test_only_a_queued_rollout_starts(status: RolloutStatus) -> None:
    with pytest.raises(WrongStateError) as caught:
        rollout_state.start(status, now=NOW)
    assert caught.value.metadata == {"from": str(status.state), "to": "running"}


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.SUCCEEDED, RolloutState.SUCCEEDED),
        (Outcome.FAILED, RolloutState.FAILED),
        (Outcome.CANCELLED, RolloutState.CANCELLED),
    ],
)
def test_finish_ends_the_rollout(outcome: Outcome, state: RolloutState) -> None:
    step = finished(outcome)
    assert step.closes == outcome
    assert (step.status.state, step.status.finish_time, step.status.message) == (state, NOW, "why")


def test_infrastructure_failure_queues_again_while_attempts_remain() -> None:
    step = finished(Outcome.INFRASTRUCTURE_FAILURE)
    assert (step.status.state, step.status.attempt, step.closes) == (RolloutState.QUEUED, 1, step.status.outcome)
    assert step.status.finish_time is None


def test_infrastructure_failure_of_the_last_attempt_fails_the_rollout() -> None:
    step = finished(Outcome.INFRASTRUCTURE_FAILURE, rollout_state.start(REQUEUED, now=NOW).status)
    assert (step.status.state, step.status.outcome) == (RolloutState.FAILED, Outcome.INFRASTRUCTURE_FAILURE)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (SUCCEEDED, Outcome.SUCCEEDED),
        (FAILED, Outcome.FAILED),
        (REQUEUED, Outcome.INFRASTRUCTURE_FAILURE),
        (CANCELLED, Outcome.CANCELLED),
    ],
)
def test_finishing_the_same_way_again_changes_nothing(status: RolloutStatus, outcome: Outcome) -> None:
    assert finished(outcome, status) == rollout_state.Step(status=status)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (SUCCEEDED, Outcome.FAILED),
        (FAILED, Outcome.SUCCEEDED),
        (CANCELLED, Outcome.SUCCEEDED),
        (REQUEUED, Outcome.SUCCEEDED),
    ],
)
def test_finishing_another_way_is_refused(status: RolloutStatus, outcome: Outcome) -> None:
    with pytest.raises(WrongStateError):
        finished(outcome, status)


def test_only_the_current_attempt_can_be_finished() -> None:
    second = rollout_state.start(REQUEUED, now=NOW).status
    with pytest.raises(StaleAttemptError) as caught:
        rollout_state.finish(second, attempt=1, outcome=Outcome.SUCCEEDED, message="", max_attempts=3, now=NOW)
    assert caught.value.metadata == {"attempt": "1", "current": "2"}


def test_cancel_ends_what_has_not_ended() -> None:
    queued = rollout_state.cancel(QUEUED, message="enough", now=NOW)
    assert (queued.status.state, queued.closes) == (RolloutState.CANCELLED, None)
    assert rollout_state.cancel(RUNNING, message="", now=NOW).closes == Outcome.CANCELLED
    assert rollout_state.cancel(CANCELLED, message="", now=NOW) == rollout_state.Step(status=CANCELLED)
    with pytest.raises(WrongStateError):
        rollout_state.cancel(SUCCEEDED, message="", now=NOW)


@pytest.mark.parametrize(
    ("status", "to", "state"),
    [
        (QUEUED, RolloutState.RUNNING, RolloutState.RUNNING),
        (RUNNING, RolloutState.RUNNING, RolloutState.RUNNING),
        (RUNNING, RolloutState.SUCCEEDED, RolloutState.SUCCEEDED),
        (SUCCEEDED, RolloutState.SUCCEEDED, RolloutState.SUCCEEDED),
        (RUNNING, RolloutState.FAILED, RolloutState.FAILED),
        (RUNNING, RolloutState.CANCELLED, RolloutState.CANCELLED),
        (QUEUED, RolloutState.CANCELLED, RolloutState.CANCELLED),
    ],
)
def test_transition_is_all_verbs_in_one(status: RolloutStatus, to: RolloutState, state: RolloutState) -> None:
    step = rollout_state.transition(status, to=to, attempt=0, message="", max_attempts=3, now=NOW)
    assert step.status.state == state


@pytest.mark.parametrize(
    ("status", "to", "attempt", "error"),
    [
        (QUEUED, RolloutState.SUCCEEDED, 0, WrongStateError),
        (SUCCEEDED, RolloutState.FAILED, 0, WrongStateError),
        (SUCCEEDED, RolloutState.RUNNING, 0, WrongStateError),
        (RUNNING, RolloutState.QUEUED, 0, InvalidFieldError),
        (RUNNING, RolloutState.SUCCEEDED, 2, StaleAttemptError),
    ],
)
def test_transition_refuses(status: RolloutStatus, to: RolloutState, attempt: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        rollout_state.transition(status, to=to, attempt=attempt, message="", max_attempts=3, now=NOW)


@pytest.mark.parametrize(
    ("status", "attempt", "error"),
    [
        (SUCCEEDED, 1, RolloutEndedError),
        (RUNNING, 2, StaleAttemptError),
        (REQUEUED, 1, StaleAttemptError),
        (QUEUED, 0, StaleAttemptError),
    ],
)
def test_only_the_running_attempt_writes(status: RolloutStatus, attempt: int, error: type[Exception]) -> None:
    rollout_state.check_writable(RUNNING, 1, "rollouts/a")
    with pytest.raises(error):
        rollout_state.check_writable(status, attempt, "rollouts/a")


def test_a_message_is_cut_to_its_limit() -> None:
    step = rollout_state.cancel(RUNNING, message="x" * 5000, now=NOW)
    assert len(step.status.message) == rollout_state.MESSAGE_LIMIT
