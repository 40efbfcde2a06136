"""The warm-up's schedule, batches and cache key."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from trainer_svc.config import Config, WarmupSection
from trainer_svc.data import Demonstration
from trainer_svc.warmup import batches, cache_key, learning_rate, rows

RECIPE = WarmupSection(steps=100, batch=4, learning_rate=1.0, ramp=10, floor=0.1)


def demonstration(length: int) -> Demonstration:
    """Of which the second half is learned."""
    return Demonstration(token_ids=np.full(length, length, np.int32), mask=np.arange(length) >= length // 2)


def test_the_rate_rises_along_a_ramp_and_falls_along_a_cosine_to_its_floor() -> None:
    rates = [learning_rate(RECIPE, step) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9]
    assert all(early > late for early, late in itertools.pairwise(rates[9:]))
    assert learning_rate(RECIPE, 101) == pytest.approx(0.1)
    assert rates[50] == pytest.approx(0.1 + 0.9 * 0.5)


def test_batches_hold_similar_lengths_in_an_order_that_does_not_follow_length() -> None:
    demonstrations = [demonstration(length) for length in range(2, 66)]
    made = list(batches(demonstrations, RECIPE, seed=1))
    assert [len(batch) for batch in made] == [4] * 100
    spreads = [max(len(d.token_ids) for d in batch) - min(len(d.token_ids) for d in batch) for batch in made]
    assert sum(spreads) / len(spreads) < 16
    means = [sum(len(d.token_ids) for d in batch) for batch in made[:8]]
    assert means != sorted(means)
    again = [[len(d.token_ids) for d in batch] for batch in batches(demonstrations, RECIPE, seed=1)]
    assert again == [[len(d.token_ids) for d in batch] for batch in made]


def test_the_loss_is_the_mean_over_learned_tokens() -> None:
    made = rows([demonstration(4), demonstration(8)])
    assert sum(row.weight * row.mask.sum() for row in made) == pytest.approx(1)
    assert len({row.weight for row in made}) == 1


def test_the_cache_key_follows_recipe_seed_data_and_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "demonstrations.jsonl").write_text("{}\n")

    def key(seed: int = 1, **changes: object) -> str:
        warmup = {"steps": 3, "demonstrations": tmp_path / "demonstrations.jsonl", **changes}
        config = {
            "run": {"name": "demo", "seed": seed},
            "model": {"path": tmp_path / "model"},
            "data": {"train": "/t"},
            "agent": {"command": ["true"]},
            "warmup": warmup,
        }
        return cache_key(Config.model_validate(config))

    keys = [key(), key(seed=2), key(steps=4)]
    assert key() == keys[0]
    (tmp_path / "demonstrations.jsonl").write_text("{} \n")
    keys.append(key())
    (tmp_path / "model" / "config.json").write_text("{} ")
    keys.append(key())
    assert len(set(keys)) == 5
