"""Group-relative advantages at rollout level."""

import numpy as np
import pytest

from trainer_svc.advantage import Advantage, advantages, flat_groups

BARE = Advantage.GRPO_WITHOUT_STD


def test_figure_4_of_the_paper_takes_one_reward_per_rollout_not_per_sample() -> None:
    # rollout 1 (reward 1) has three samples, rollout 2 (reward 0) one: the baseline is 1/2, not 3/4
    assert advantages([1.0, 0.0], ["q", "q"], BARE).tolist() == [0.5, -0.5]


def test_the_deviation_is_the_samples_own() -> None:
    rewards = [0.0, 1.0, 1.0, 0.0, 1.0]
    found = advantages(rewards, ["q"] * 5, Advantage.GRPO)
    values = np.asarray(rewards)
    np.testing.assert_allclose(found, (values - 0.6) / (values.std(ddof=1) + 1e-6))


def test_groups_of_unequal_size_in_mixed_order_keep_their_rows() -> None:
    rewards = [1.0, 5.0, 0.0, 3.0, 5.0, 5.0, 3.0]
    groups = ["a", "b", "a", "c", "b", "b", "c"]
    assert advantages(rewards, groups, BARE).tolist() == [0.5, 0, -0.5, 0, 0, 0, 0]
    assert flat_groups(rewards, groups) == 2


@pytest.mark.parametrize("kind", list(Advantage))
def test_constant_groups_of_two_five_and_three_teach_nothing(kind: Advantage) -> None:
    groups = ["x", "y", "z", "y", "x", "y", "z", "y", "z", "y"]
    rewards = [{"x": 0.1, "y": 0.7, "z": 1e9}[group] for group in groups]
    assert not advantages(rewards, groups, kind).any()


@pytest.mark.parametrize("kind", list(Advantage))
def test_a_group_of_one_gives_zero(kind: Advantage) -> None:
    assert advantages([3.0], ["q"], kind).tolist() == [0.0]


def test_nothing_gives_nothing() -> None:
    assert advantages([], [], Advantage.GRPO).shape == (0,)


def test_rows_without_a_group_are_an_error_that_names_them() -> None:
    with pytest.raises(ValueError, match=r"\[1\]"):
        advantages([1.0, 0.0], ["q", ""], Advantage.GRPO)


def test_rewards_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(ValueError, match="finite"):
        advantages([1.0, float("nan")], ["q", "q"], Advantage.GRPO)
