"""Losses against their formulas."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron.core import tensor_parallel

from tests.trainer_svc.megatron import samples as s
from trainer_svc.commands import LossConfig, LossKind, StepDone
from trainer_svc.megatron import loss

CONFIG = LossConfig(clip_low=0.2, clip_high=0.28)
DUAL = LossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
# ratio, advantage, settings -> loss, whether the gradient is gone
POLICY = {
    "inside the range": (1.1, 2.0, CONFIG, -2.2, False),
    "too likely, wanted": (1.5, 2.0, CONFIG, -2.56, True),
    "too likely, unwanted": (1.5, -2.0, CONFIG, 3.0, False),
    "too unlikely, wanted": (0.5, 2.0, CONFIG, -1.0, False),
    "too unlikely, unwanted": (0.5, -2.0, CONFIG, 1.6, True),
    "far too likely, unwanted, dual clip": (5.0, -2.0, DUAL, 6.0, True),
    "far too likely, unwanted": (5.0, -2.0, CONFIG, 10.0, False),
    "no advantage": (1.5, 0.0, CONFIG, 0.0, False),
}


@pytest.mark.parametrize("case", POLICY)
def test_policy_loss_follows_its_formula(case: str) -> None:
    ratio, advantage, config, expected, clipped = POLICY[case]
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    losses, mask = loss.policy_losses(log_ratio, torch.tensor([advantage]), config)
    losses.sum().backward()
    assert losses.item() == pytest.approx(expected, rel=1e-5)
    assert mask.item() is clipped
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == pytest.approx(0.0 if clipped else -ratio * advantage, rel=1e-5)


def test_logprobs_leave_fp32_logits_as_they_are(world: None) -> None:
    logits = torch.randn(5, 16)
    before = logits.clone()
    values = loss.token_logprobs(logits, torch.arange(5))
    assert torch.equal(logits, before)
    torch.testing.assert_close(values, before.log_softmax(-1)[torch.arange(5), torch.arange(5)])


def test_megatrons_own_cross_entropy_overwrites_fp32_logits(world: None) -> None:
    logits = torch.randn(1, 5, 16)  # why `token_logprobs` clones for tensor-parallel ranks
    before = logits.clone()
    tensor_parallel.vocab_parallel_cross_entropy(logits, torch.arange(5)[None])
    assert not torch.equal(logits, before)


def test_entropy_follows_its_formula(world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(loss.ENTROPY_ROWS + 3, 16) * 4
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(loss.token_entropies(logits), expected)


def test_broken_rollout_logprobs_of_untrained_tokens_do_no_harm(world: None, model_path: Path) -> None:
    clean = s.pack(s.make_samples())
    broken = np.where(clean.loss_weights == 0, np.float32(np.nan), clean.rollout_logprobs)
    batch = type(clean)(**{name: getattr(clean, name) for name in clean.__slots__} | {"rollout_logprobs": broken})
    results = []
    for each in (clean, batch):
        results += s.execute(s.load_worker(model_path), *s.train_commands([each], s.step_command(LossKind.POLICY)))
    first, second = results
    assert isinstance(first, StepDone)
    assert isinstance(second, StepDone)
    assert first.loss == second.loss
    assert first.gradient_norm == second.gradient_norm


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(world: None, model_path: Path) -> None:
    sample = s.make_samples(1)[0]
    worker = s.load_worker(model_path)
    bad = s.pack([sample])
    bad.advantages[:] = np.inf
    (skipped,) = s.execute(worker, *s.train_commands([bad], s.step_command(LossKind.POLICY)))
    (good,) = s.execute(worker, *s.train_commands([s.pack([s.make_samples(1)[0]])], s.step_command()))
    (fresh,) = s.execute(s.load_worker(model_path), *s.train_commands([s.pack(s.make_samples(1))], s.step_command()))
    assert isinstance(skipped, StepDone)
    assert isinstance(good, StepDone)
    assert isinstance(fresh, StepDone)
    assert not skipped.applied
    assert good.loss == fresh.loss


def test_on_policy_ratio_is_one_and_its_gradient_is_the_plain_policy_gradient(world: None, model_path: Path) -> None:
    worker = s.load_worker(model_path)
    micro_batch = s.pack(s.make_samples())
    from trainer_svc import commands as c

    (answer,) = s.execute(worker, c.Logprobs(), micro_batch, c.EndOfBatches())
    assert isinstance(answer, c.LogprobsDone)
    micro_batch.rollout_logprobs[:] = np.concatenate([row.logprobs for row in answer.rows])
    (done,) = s.execute(worker, *s.train_commands([micro_batch], s.step_command(LossKind.POLICY)))
    assert isinstance(done, StepDone)
    assert done.ratio_deviation < 1e-5
    assert done.kl < 1e-9
    assert done.clip_fraction == 0
    expected = -(micro_batch.loss_weights * micro_batch.advantages).sum()
    assert done.loss == pytest.approx(expected, rel=1e-5)
    assert done.entropy == pytest.approx(4.8, abs=0.1)
