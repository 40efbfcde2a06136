"""Rows -> micro-batches: the gradient's weights do not depend on the placement."""

import random

import numpy as np
import pytest

from tests.trainer_svc.builders import sample
from trainer_svc.batching import Row, pack, packed
from trainer_svc.plan import CostModel, plan
from trainer_svc.weights import Normalisation, token_weights

COST = CostModel(linear=1.0, quadratic=0.01)


def random_rows(seed: int) -> list[Row]:
    """Samples of a few rollouts, each token id unique so that it can be found again."""
    rng, rows, token = random.Random(seed), list[Row](), 1
    samples = []
    for rollout in range(rng.randint(1, 8)):
        for index in range(rng.randint(1, 3)):
            samples.append(sample(f"r{rollout}", index, rng.randint(1, 20), rng.randint(1, 20), first_token=token))
            token += samples[-1].token_count
    weights = token_weights(
        [each.trained_count for each in samples], [each.rollout_id for each in samples], 8, Normalisation.ROLLOUT_MEAN
    )
    for each, weight in zip(samples, weights, strict=True):
        advantage = rng.choice([-1.0, 0.5])
        rows.append(
            Row(
                name=each.name,
                token_ids=each.token_ids,
                mask=each.mask,
                logprobs=each.logprobs,
                weight=float(weight),
                advantage=advantage,
            )
        )
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_every_token_has_the_same_weight_and_advantage_wherever_it_is_placed(seed: int) -> None:
    rows = random_rows(seed)
    reference = None
    for ranks, cap in ((1, 10_000), (1, 1), (2, 40), (5, 25)):
        placed = plan([len(row.token_ids) for row in rows], ranks=ranks, token_cap=cap, cost=COST, maximum_length=100)
        batches = [batch for rank in packed(rows, placed) for batch in rank]
        found = {
            token: (weight, advantage, logprob)
            for batch in batches
            for token, weight, advantage, logprob in zip(
                batch.token_ids.tolist(), batch.loss_weights, batch.advantages, batch.rollout_logprobs, strict=True
            )
        }
        assert len(found) == sum(len(row.token_ids) for row in rows)
        assert reference is None or found == reference
        reference = found


def test_packed_rows_stand_one_after_another() -> None:
    rows = random_rows(1)[:2]
    batch = pack(rows)
    assert batch.cu_seqlens.tolist() == np.cumsum([0, *(len(row.token_ids) for row in rows)]).tolist()
    assert batch.rows == tuple(row.name for row in rows)
    assert batch.loss_weights.dtype == np.float32


def test_no_rows_are_an_empty_micro_batch() -> None:
    assert pack([]).token_count == 0
