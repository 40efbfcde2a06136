"""Finished rollouts of one batch -> rows for each optimizer step, with advantages and weights, and figures. Pure.

Order: settle rewards; advantages over all kept rollouts; whole rollouts to optimizer steps; weights over everything in
a step; only then are samples with advantage 0 left out, because they add nothing to the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer_svc.advantage import advantages, flat_groups
from trainer_svc.batching import Row
from trainer_svc.config import RlSection
from trainer_svc.forest import Forest
from trainer_svc.metrics import Mean, Metrics, Sum
from trainer_svc.plan import CostModel, optimizer_steps
from trainer_svc.rewards import RewardPolicy, settled
from trainer_svc.types import Reward, RolloutSpec, Status
from trainer_svc.weights import token_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finished:
    """A rollout that has ended, with its samples."""

    spec: RolloutSpec
    status: Status
    rewards: tuple[Reward, ...]
    forest: Forest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """A rollout that is trained on."""

    rollout: Finished
    reward: float
    advantage: float


def keep(finished: Sequence[Finished], rl: RlSection) -> list[Kept]:
    """The rollouts that have a reward under the run's policy, with their advantages."""
    policy = RewardPolicy(missing=rl.missing, value=rl.missing_value)
    rewarded = [
        (rollout, reward)
        for rollout in finished
        if (reward := settled(rollout.status.state, rollout.rewards, policy)) is not None
    ]
    values = advantages([reward for _, reward in rewarded], [r.spec.group_id for r, _ in rewarded], rl.advantage)
    return [
        Kept(rollout=rollout, reward=reward, advantage=float(value))
        for (rollout, reward), value in zip(rewarded, values, strict=True)
    ]


def updates(kept: Sequence[Kept], rl: RlSection, cost: CostModel) -> list[list[Row]]:
    """The rows of each optimizer step; an empty list where all its advantages are 0."""
    costs = [sum(cost(sample.token_count) for sample in item.rollout.forest.samples) for item in kept]
    return [rows([kept[index] for index in step], rl) for step in optimizer_steps(costs, rl.updates)]


def rows(kept: Sequence[Kept], rl: RlSection) -> list[Row]:
    """The rows of one optimizer step over these rollouts."""
    pairs = [(item, sample) for item in kept for sample in item.rollout.forest.samples]
    weights = token_weights(
        [sample.trained_count for _, sample in pairs],
        [sample.rollout_id for _, sample in pairs],
        len(kept),
        rl.normalisation,
    )
    return [
        Row(
            name=sample.name,
            token_ids=sample.token_ids,
            mask=sample.mask,
            logprobs=sample.logprobs,
            weight=float(weight),
            advantage=item.advantage,
        )
        for (item, sample), weight in zip(pairs, weights, strict=True)
        if item.advantage != 0
    ]


def figures(finished: Sequence[Finished], kept: Sequence[Kept]) -> Metrics:
    """What the batch was like."""
    metrics = Metrics()
    metrics.add(
        rollouts=Sum(len(kept)),
        dropped_rollouts=Sum(len(finished) - len(kept)),
        groups=Sum(len({item.rollout.spec.group_id for item in kept})),
        flat_groups=Sum(flat_groups([k.reward for k in kept], [k.rollout.spec.group_id for k in kept])),
        samples=Sum(0),
    )
    for item in kept:
        forest = item.rollout.forest
        metrics.add(
            reward=Mean(item.reward),
            samples=Sum(len(forest.samples)),
            samples_per_rollout=Mean(len(forest.samples)),
            calls=Sum(forest.call_count),
            recorded_tokens=Sum(forest.recorded_tokens),
            trained_tokens=Sum(forest.trained_tokens),
            masked_tokens=Sum(forest.masked_tokens),
            truncated_calls=Sum(forest.truncated_calls),
            undelivered_calls=Sum(forest.undelivered_calls),
            zero_advantage_samples=Sum(0 if item.advantage else len(forest.samples)),
        )
        metrics.add(**{f"break_{cause}": Sum(count) for cause, count in forest.breaks.items()})
        metrics.add(**{f"untrained_{cause}": Sum(count) for cause, count in forest.untrained.items()})
    return metrics
