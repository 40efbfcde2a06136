"""Recorded rewards -> outcome."""

import math

import pytest

from trainer_svc.rewards import Missing, RewardPolicy, outcome, settled
from trainer_svc.types import Reward, State


def reward(value: float, source: str = "agent", call_id: str = "") -> Reward:
    """One reward."""
    return Reward(value=value, source=source, call_id=call_id)


@pytest.mark.parametrize(
    ("rewards", "value"),
    [
        ([], None),
        ([reward(1.0)], 1.0),
        ([reward(1.0), reward(0.25)], 0.25),
        ([reward(1.0), reward(1.0)], 1.0),
        ([reward(1.0, ""), reward(0.5, "agent")], 0.5),
        ([reward(1.0), reward(0.5, "tests")], 1.5),
        ([reward(9.0, call_id="c1")], None),
        ([reward(9.0, call_id="c1"), reward(0.5)], 0.5),
    ],
    ids=[
        "none",
        "one",
        "a second of one source replaces",
        "posted twice",
        "no source is the agent",
        "sources add up",
        "a step reward is no outcome",
        "step reward and outcome",
    ],
)
def test_outcome(rewards: list[Reward], value: float | None) -> None:
    assert outcome(rewards) == value


def test_a_reward_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        outcome([reward(math.inf)])


DROP, VALUE = RewardPolicy(), RewardPolicy(missing=Missing.VALUE, value=-1.0)


@pytest.mark.parametrize(
    ("state", "rewards", "policy", "value"),
    [
        (State.SUCCEEDED, [reward(1.0)], DROP, 1.0),
        (State.SUCCEEDED, [], DROP, None),
        (State.SUCCEEDED, [], VALUE, -1.0),
        (State.FAILED, [reward(1.0)], DROP, None),
        (State.FAILED, [reward(1.0)], VALUE, -1.0),
        (State.CANCELLED, [reward(1.0)], VALUE, None),
        (State.UNKNOWN, [reward(1.0)], DROP, None),
    ],
)
def test_failed_and_unrewarded_rollouts_follow_the_policy(
    state: State, rewards: list[Reward], policy: RewardPolicy, value: float | None
) -> None:
    assert settled(state, rewards, policy) == value
