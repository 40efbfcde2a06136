"""MicroBatch -> the tensors of one forward pass, in megatron's packed (THD) format.

Order: pad each sequence for context parallelism, take this context rank's part, find the positions whose next token is
wanted, plan the attention. Everything here is NumPy on the host until the last step. Only wanted positions go through
the output layer: observation tokens need no logits.
Shape suffixes: T tokens of the micro-batch, L local tokens (padded T / context ranks), N wanted positions, S sequences.
"""

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from numpy.typing import NDArray

from trainer_svc.megatron.attention_plan import AttentionPlan, IntArray, plan_attention
from trainer_svc.microbatch import MicroBatch


@dataclass
class Packed(PackedSeqParams):
    """Megatron's description of packed sequences, with the plan that our attention core follows in every layer."""

    plan: AttentionPlan | None = None
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None  # filled by the first layer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The tensors of one micro-batch on one rank."""

    token_ids: torch.Tensor  # [1, L] int64
    position_ids: torch.Tensor  # [1, L] int64
    packed: Packed
    wanted: torch.Tensor  # [N] int64: local positions whose next token is predicted; never empty
    labels: torch.Tensor  # [N] int64: those next tokens
    loss_weights: torch.Tensor  # [N] of the label
    advantages: torch.Tensor  # [N] of the label
    rollout_logprobs: torch.Tensor  # [N] of the label
    targets: IntArray  # [N] index of the label among the micro-batch's T tokens; -1: nothing to predict, weight 0
    forward_tokens: int  # T, counted by the first context rank alone


def padded_lengths(lengths: IntArray, context_size: int) -> IntArray:
    """Lengths rounded up so that a sequence splits into 2 * context_size equal parts."""
    multiple = 2 * context_size if context_size > 1 else 1
    return -(-lengths // multiple) * multiple


def local_positions(lengths: IntArray, context_size: int, context_rank: int) -> tuple[IntArray, IntArray]:
    """(sequence [L], position [L]) of a context rank's tokens: part r and its mirror, which balances causal work."""
    if context_size == 1:
        sequences = np.repeat(np.arange(len(lengths)), lengths)
        return sequences, np.arange(len(sequences)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    parts = [np.arange(length).reshape(2 * context_size, -1) for length in lengths.tolist()]
    own = [np.concatenate([part[context_rank], part[-1 - context_rank]]) for part in parts]
    return np.repeat(np.arange(len(lengths)), [len(part) for part in own]), np.concatenate(own)


def make_batch(
    micro_batch: MicroBatch,
    device: torch.device,
    *,
    every_token: bool = False,
    context_size: int = 1,
    context_rank: int = 0,
) -> Batch:
    """The rank's tensors; wanted are the tokens with a loss weight, or every token that has one before it.

    An empty micro-batch becomes one token of weight 0, because megatron must run something.
    """
    lengths = np.diff(micro_batch.cu_seqlens).astype(np.int64)
    starts = micro_batch.cu_seqlens[:-1].astype(np.int64)
    if not len(lengths):
        lengths, starts = np.ones(1, np.int64), np.zeros(1, np.int64)
    padded = padded_lengths(lengths, context_size)
    every_rank = [local_positions(padded, context_size, rank) for rank in range(context_size)]
    sequences, positions = every_rank[context_rank]
    source = np.where(positions < lengths[sequences], starts[sequences] + positions, -1)
    target = np.where(positions + 1 < lengths[sequences], source + 1, -1)
    wanted = np.flatnonzero((target >= 0) & (every_token | (_read(micro_batch.loss_weights, target) != 0)))
    if not len(wanted):
        wanted, target = np.zeros(1, np.int64), np.full_like(target, -1)
    targets = target[wanted]

    def move(array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    token_ids = micro_batch.token_ids.astype(np.int64)
    return Batch(
        token_ids=move(_read(token_ids, source)[None]),
        position_ids=move(positions[None]),
        packed=_packed(padded, every_rank, context_rank, device),
        wanted=move(wanted),
        labels=move(_read(token_ids, targets)),
        loss_weights=move(_read(micro_batch.loss_weights, targets)),
        advantages=move(_read(micro_batch.advantages, targets)),
        rollout_logprobs=move(_read(micro_batch.rollout_logprobs, targets)),
        targets=targets,
        forward_tokens=micro_batch.token_count if context_rank == 0 else 0,
    )


def _read(values: NDArray[np.generic], index: IntArray) -> NDArray[np.generic]:
    """values[index], and 0 where the index is -1."""
    return np.append(values, values.dtype.type(0))[index]


def _packed(
    lengths: IntArray, every_rank: list[tuple[IntArray, IntArray]], context_rank: int, device: torch.device
) -> Packed:
    """Megatron's parameters for sequences of these padded lengths."""
    ends = torch.from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32)).to(device)
    longest = int(lengths.max())
    return Packed(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        plan=plan_attention(lengths, every_rank, context_rank, device),
    )


def target_aligned(values: torch.Tensor, batch: Batch, token_count: int) -> NDArray[np.float32]:
    """[N] values of labels -> [T] aligned with the target token; 0 where this rank has no value."""
    out = np.zeros(token_count, np.float32)
    given = batch.targets >= 0
    out[batch.targets[given]] = values.float().cpu().numpy()[given]
    return out
