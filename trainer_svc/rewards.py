"""Recorded rewards -> the outcome reward of a rollout. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer_svc.types import Reward, State


class Missing(StrEnum):
    """What becomes of a rollout that failed or that nobody rewarded."""

    DROP = "drop"  # it takes part in nothing: no sample, no baseline, no denominator
    VALUE = "value"  # it counts with a fixed reward


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPolicy:
    """The run's rule."""

    missing: Missing = Missing.DROP
    value: float = 0.0  # under VALUE


def outcome(rewards: Sequence[Reward]) -> float | None:
    """The sum over sources of each source's last outcome reward; None where there is none.

    Rewards of single calls (`call_id` set) are not outcomes. Raises ValueError for a reward that is not finite.
    """
    last: dict[str, float] = {}
    for reward in rewards:
        if not reward.call_id:
            last[reward.source or "agent"] = reward.value
    if not last:
        return None
    total = math.fsum(last.values())
    if not math.isfinite(total):
        raise ValueError(f"reward is not finite: {last}")
    return total


def settled(state: State, rewards: Sequence[Reward], policy: RewardPolicy) -> float | None:
    """The reward that a rollout is trained with; None = drop it. A cancelled rollout is always dropped."""
    if state is State.CANCELLED:
        return None
    value = outcome(rewards) if state is State.SUCCEEDED else None
    if value is None and policy.missing is Missing.VALUE:
        return policy.value
    return value
