"""Rewards of a step's rollouts -> one advantage per rollout, whatever number of samples it has. Pure."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt


class Advantage(StrEnum):
    """How a rollout is compared with its group."""

    GRPO = "grpo"  # (reward - mean) / (standard deviation + 1e-6)
    GRPO_WITHOUT_STD = "grpo-without-std"  # reward - mean


def advantages(rewards: Sequence[float], groups: Sequence[str], kind: Advantage) -> npt.NDArray[np.float64]:
    """[R] rewards and group ids -> [R] advantages, in the order given. Groups may differ in size.

    A group of one, or with equal rewards, gives exactly 0. The deviation is the sample's (n - 1). Raises ValueError
    where lengths differ, a rollout has no group, or a reward is not finite.
    """
    if len(rewards) != len(groups):
        raise ValueError(f"{len(rewards)} rewards for {len(groups)} group ids")
    if missing := [index for index, group in enumerate(groups) if not group]:
        raise ValueError(f"rollouts without a group: rows {missing}")
    values = np.asarray(rewards, np.float64)
    if not np.all(np.isfinite(values)):
        raise ValueError("a reward is not finite")
    result = np.zeros(len(values))
    names = np.asarray(groups, dtype=np.str_)
    for name in dict.fromkeys(groups):
        rows = np.flatnonzero(names == name)
        result[rows] = _within(values[rows], kind)
    return result


def flat_groups(rewards: Sequence[float], groups: Sequence[str]) -> int:
    """How many groups have no variance and so teach nothing."""
    by_group: dict[str, set[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        by_group.setdefault(group, set()).add(reward)
    return sum(len(values) == 1 for values in by_group.values())


def _within(rewards: npt.NDArray[np.float64], kind: Advantage) -> npt.NDArray[np.float64]:
    """One group. Equal rewards are told exactly, because their mean may differ from them in the last bit."""
    if rewards.min() == rewards.max():
        return np.zeros(len(rewards))
    centred: npt.NDArray[np.float64] = rewards - rewards.mean()
    scale = float(rewards.std(ddof=1)) + 1e-6 if kind is Advantage.GRPO else 1.0
    return centred / scale
