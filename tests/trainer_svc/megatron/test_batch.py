"""Micro-batches become tensors that predict each wanted token once."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer_svc.megatron import samples as s
from trainer_svc.megatron.batch import make_batch, target_aligned
from trainer_svc.microbatch import MicroBatch, empty_micro_batch

CPU = torch.device("cpu")
MICRO_BATCH = s.pack(s.make_samples(4))


@pytest.mark.parametrize("context_size", [1, 2, 3])
@pytest.mark.parametrize("every_token", [False, True])
def test_context_ranks_predict_each_wanted_token_once(context_size: int, every_token: bool) -> None:
    starts = set(MICRO_BATCH.cu_seqlens[:-1].tolist())
    wanted = [
        t for t in range(MICRO_BATCH.token_count) if t not in starts and (every_token or MICRO_BATCH.loss_weights[t])
    ]
    found: list[int] = []
    for rank in range(context_size):
        batch = make_batch(MICRO_BATCH, CPU, every_token=every_token, context_size=context_size, context_rank=rank)
        real = batch.targets >= 0
        targets = batch.targets[real]
        found += targets.tolist()
        inputs = batch.token_ids[0, batch.wanted].numpy()[real]
        assert np.array_equal(inputs, MICRO_BATCH.token_ids[targets - 1])
        assert np.array_equal(batch.labels.numpy()[real], MICRO_BATCH.token_ids[targets])
        assert np.array_equal(batch.loss_weights.numpy()[real], MICRO_BATCH.loss_weights[targets])
    assert sorted(found) == wanted


def test_tokens_of_all_context_ranks_are_counted_once() -> None:
    batches = [make_batch(MICRO_BATCH, CPU, context_size=2, context_rank=rank) for rank in range(2)]
    assert sum(batch.forward_tokens for batch in batches) == MICRO_BATCH.token_count


def test_an_empty_micro_batch_runs_one_token_of_weight_0() -> None:
    batch = make_batch(empty_micro_batch(), CPU)
    assert batch.token_ids.shape == (1, 1)
    assert batch.loss_weights.tolist() == [0.0]
    assert batch.forward_tokens == 0


def test_values_of_labels_come_back_at_their_targets() -> None:
    batch = make_batch(MICRO_BATCH, CPU, every_token=True)
    values = target_aligned(batch.labels.float(), batch, MICRO_BATCH.token_count)
    expected = MICRO_BATCH.token_ids.astype(np.float32)
    expected[MICRO_BATCH.cu_seqlens[:-1]] = 0
    assert np.array_equal(values, expected)


BROKEN: dict[str, dict[str, object]] = {
    "ends before the tokens do": {"cu_seqlens": np.array([0, 2], np.int32)},
    "a sequence without tokens": {"cu_seqlens": np.array([0, 0, 3], np.int32)},
    "a weight on a first token": {"loss_weights": np.ones(3, np.float32)},
    "arrays of two lengths": {"advantages": np.zeros(2, np.float32)},
    "more names than sequences": {"rows": ("a", "b")},
}


@pytest.mark.parametrize("case", BROKEN)
def test_arrays_that_do_not_fit_are_refused(case: str) -> None:
    whole: dict[str, Any] = {
        "token_ids": np.zeros(3, np.int32),
        "cu_seqlens": np.array([0, 3], np.int32),
        "loss_weights": np.array([0, 1, 1], np.float32),
        "advantages": np.zeros(3, np.float32),
        "rollout_logprobs": np.zeros(3, np.float32),
        "rows": ("a",),
    }
    MicroBatch(**whole)
    with pytest.raises(ValueError, match=r"."):
        MicroBatch(**(whole | BROKEN[case]))
