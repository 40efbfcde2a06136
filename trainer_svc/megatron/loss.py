"""Losses: logits and a batch -> a plain sum and its figures.

No loss here divides by anything: the weights already hold the global normalisation (paper, Eq. 14 to 16).
Shape suffixes: N wanted positions of the batch, V vocabulary entries of this tensor rank.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel

from trainer_svc.commands import LossConfig, LossKind
from trainer_svc.megatron.batch import Batch

# A ratio beyond e^20 is a broken logprob, not information; unbounded, exp() gives inf, and inf * 0 is nan.
LOG_RATIO_BOUND = 20.0
ENTROPY_ROWS = 1024  # positions whose vocabulary is held in fp32 at once
SUMS = ("loss", "trained_tokens", "forward_tokens", "kl", "clipped", "entropy")  # order of `Figures.sums`


def token_logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[N, V] and [N] -> [N] natural log-probabilities in fp32; `logits` stay as they are."""
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        return -F.cross_entropy(logits.float(), labels, reduction="none")
    # Megatron's function turns fp32 logits into probabilities in place.
    own = logits.clone() if logits.dtype == torch.float32 else logits
    return -tensor_parallel.vocab_parallel_cross_entropy(own, labels)


@torch.no_grad()
def token_entropies(logits: torch.Tensor) -> torch.Tensor:
    """[N, V] -> [N] entropies in nats, over all tensor ranks' vocabulary; a piece at a time, to bound the memory."""
    pieces = [_entropies(piece.float()) for piece in logits.split(ENTROPY_ROWS)]
    return torch.cat(pieces)


def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """[n, V] -> [n]: log sum e^x - sum x e^x / sum e^x, shifted by the largest x."""
    group = parallel_state.get_tensor_model_parallel_group()
    peak = logits.amax(-1)
    if group.size() > 1:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - peak[:, None]
    exponentials = shifted.exp()
    sums = torch.stack([exponentials.sum(-1), torch.linalg.vecdot(exponentials, shifted)])
    if group.size() > 1:
        dist.all_reduce(sums, group=group)
    return sums[0].log() - sums[1] / sums[0]


def compute(
    kind: LossKind, config: LossConfig, logits: torch.Tensor, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(loss to differentiate, sums [len(SUMS)], largest ratio deviation) of one micro-batch; logits [N, V]."""
    logprobs = token_logprobs(logits, batch.labels)
    weights = batch.loss_weights
    trained = weights != 0
    log_ratio = torch.where(trained, logprobs - batch.rollout_logprobs, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if kind is LossKind.SFT:
        losses, clipped = -logprobs, torch.zeros_like(trained)
    else:
        losses, clipped = policy_losses(log_ratio, batch.advantages, config)
    loss = torch.where(trained, weights * losses, 0.0).sum()
    with torch.no_grad():
        figures = _figures(kind, loss, logits, log_ratio, trained, clipped, batch)
    return loss, *figures


def policy_losses(
    log_ratio: torch.Tensor, advantages: torch.Tensor, config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """(losses [N], clipped [N]) of the clipped policy gradient; clipped tokens have no gradient."""
    ratio = log_ratio.exp()
    plain = ratio * advantages
    bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantages
    objective = torch.minimum(plain, bounded)
    clipped = bounded < plain
    if config.dual_clip is not None:
        floor = config.dual_clip * advantages
        below = (advantages < 0) & (objective < floor)
        objective = torch.where(below, floor, objective)
        clipped = clipped | below
    return -objective, clipped


def _figures(
    kind: LossKind,
    loss: torch.Tensor,
    logits: torch.Tensor,
    log_ratio: torch.Tensor,
    trained: torch.Tensor,
    clipped: torch.Tensor,
    batch: Batch,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums in the order of SUMS, and the largest ratio deviation."""
    zero = loss.new_zeros(())
    counts = trained.sum().float(), loss.new_tensor(float(batch.forward_tokens))
    if kind is LossKind.SFT:  # demonstrations were not sampled: there is no ratio
        return torch.stack([loss.detach(), *counts, zero, zero, zero]), zero
    excess = log_ratio.expm1()
    kl = (excess - log_ratio).sum()  # k3 of the rollout policy against the trained one
    entropy = (token_entropies(logits) * trained).sum()
    sums = torch.stack([loss.detach(), *counts, kl, (clipped & trained).sum().float(), entropy])
    return sums, excess.abs().max()
