"""Ids of a run's groups, rollouts and weights, all functions of what they stand for: asked again, found again. Pure."""

import re
from collections.abc import Mapping, Sequence

from trainer_svc.types import GroupId, RolloutId, RolloutSpec, RunId, Split

KIND = {Split.TRAIN: "s", Split.EVAL: "e"}


def group_id(run: RunId, split: Split, step: int, group: int) -> GroupId:
    """Of the rollouts of one prompt in one step."""
    return GroupId(f"{run}-{KIND[split]}{step:04d}-g{group:04d}")


def rollout_id(run: RunId, split: Split, step: int, index: int) -> RolloutId:
    """Of one rollout of a step, or of the evaluation after it."""
    return RolloutId(f"{run}-{KIND[split]}{step:04d}-{index:04d}")


def replacement(rollout: RolloutId) -> RolloutId:
    """The id to ask for where this one was cancelled when the driver was stopped: `…-0007r1`, then `…-0007r2`."""
    found = re.fullmatch(r"(.*-\d+)(?:r(\d+))?", rollout)
    if found is None:
        raise ValueError(f"not a rollout of ours: {rollout}")
    return RolloutId(f"{found[1]}r{int(found[2] or 0) + 1}")


def weight_version(run: RunId, step: int) -> str:
    """Of the weights after a step; unique over runs, because the gateway knows versions by name alone."""
    return f"{run}-{step:04d}"


def replaced(spec: RolloutSpec) -> RolloutSpec:
    """The same rollout under its replacement's id."""
    return RolloutSpec(
        rollout_id=replacement(spec.rollout_id), group_id=spec.group_id, split=spec.split, input=spec.input
    )


def train_specs(run: RunId, step: int, inputs: Sequence[Mapping[str, object]], size: int) -> list[RolloutSpec]:
    """`size` rollouts of each input, which form a group."""
    return [
        RolloutSpec(
            rollout_id=rollout_id(run, Split.TRAIN, step, group * size + member),
            group_id=group_id(run, Split.TRAIN, step, group),
            split=Split.TRAIN,
            input=item,
        )
        for group, item in enumerate(inputs)
        for member in range(size)
    ]


def eval_specs(run: RunId, step: int, inputs: Sequence[Mapping[str, object]]) -> list[RolloutSpec]:
    """One held-out rollout of each input, after a step."""
    return [
        RolloutSpec(
            rollout_id=rollout_id(run, Split.EVAL, step, index),
            group_id=group_id(run, Split.EVAL, step, index),
            split=Split.EVAL,
            input=item,
        )
        for index, item in enumerate(inputs)
    ]
