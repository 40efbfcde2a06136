"""Supervised steps on demonstrations before reinforcement learning, kept for the next run of the same recipe."""

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from trainer_svc.batching import Row, packed
from trainer_svc.commands import LossKind, OptimizerSettings, TrainStep
from trainer_svc.config import Config, WarmupSection
from trainer_svc.data import Demonstration, read_demonstrations, take
from trainer_svc.plan import CostModel, plan
from trainer_svc.ranks import Ranks

POOL = 8
"""Batches that are drawn together, sorted by length and then shuffled."""


async def warm_up(
    config: Config, ranks: Ranks, cost: CostModel, cache: Path, seen: Callable[[int, float], None]
) -> Path:
    """The warmed-up weights: from the cache, else trained now, with `seen(step, loss)` after each step.

    The ranks hold whatever model they held last; load the weights that are returned.
    """
    target = cache_folder(config, cache)
    if is_complete(target):
        return target
    recipe = config.warmup
    assert recipe.demonstrations is not None
    demonstrations = read_demonstrations(recipe.demonstrations)
    loaded = await ranks.load(config.model.path, OptimizerSettings(weight_decay=recipe.weight_decay))
    for step, batch in enumerate(batches(demonstrations, recipe, config.run.seed), start=1):
        placed = plan(
            [len(item.token_ids) for item in batch],
            ranks=config.backend.data_parallel,
            token_cap=config.backend.token_cap,
            cost=cost,
            maximum_length=loaded.maximum_length,
        )
        command = TrainStep(
            step=step,
            loss=LossKind.SFT,
            learning_rate=learning_rate(recipe, step),
            clip_norm=recipe.clip_norm,
        )
        done = await ranks.train(command, packed(rows(batch), placed))
        seen(step, done.loss)
    await ranks.save_weights(target)
    return target


def learning_rate(recipe: WarmupSection, step: int) -> float:
    """Rate of `step`, from 1: a linear ramp times a cosine from 1 down to `floor`."""
    ramp = min(1.0, step / recipe.ramp) if recipe.ramp else 1.0
    cosine = 0.5 * (1 + math.cos(math.pi * (step - 1) / recipe.steps))
    return recipe.learning_rate * ramp * (recipe.floor + (1 - recipe.floor) * cosine)


def batches(demonstrations: Sequence[Demonstration], recipe: WarmupSection, seed: int) -> Iterator[list[Demonstration]]:
    """`steps` batches, each of sequences of similar length, in an order that does not follow the length."""
    for first in range(0, recipe.steps, POOL):
        count = recipe.batch * POOL
        drawn = [demonstrations[i] for i in take(len(demonstrations), seed, first * recipe.batch, count)]
        drawn.sort(key=lambda item: len(item.token_ids))
        pool = [drawn[start : start + recipe.batch] for start in range(0, count, recipe.batch)]
        random.Random(f"{seed}/warmup/{first}").shuffle(pool)
        yield from pool[: recipe.steps - first]


def rows(batch: Sequence[Demonstration]) -> list[Row]:
    """Rows whose loss is the mean over all learned tokens of the batch."""
    weight = 1.0 / sum(int(item.mask.sum()) for item in batch)
    return [
        Row(
            name=f"demonstration-{index}",
            token_ids=item.token_ids,
            mask=item.mask,
            logprobs=item.mask * np.float32(0),
            weight=weight,
            advantage=0.0,
        )
        for index, item in enumerate(batch)
    ]


def cache_folder(config: Config, cache: Path) -> Path:
    """Where the weights of this recipe are kept."""
    return cache.resolve() / "warmup" / cache_key(config)


def is_complete(folder: Path) -> bool:
    """Whether the weights are there; their directory appears whole or not at all."""
    return (folder / "config.json").exists()


def cache_key(config: Config) -> str:
    """Of everything that decides the result: recipe, seed, data, and the model that is started from."""
    digest = hashlib.sha256()
    digest.update(config.warmup.model_dump_json(exclude={"demonstrations"}).encode())
    digest.update(f"seed {config.run.seed}".encode())
    for path in _sources(config):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


def _sources(config: Config) -> Iterable[Path]:
    model = sorted(path for path in config.model.path.iterdir() if path.is_file())
    return [*model, *([config.warmup.demonstrations] if config.warmup.demonstrations else [])]
