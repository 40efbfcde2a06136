"""MicroBatch -> the tensors of one forward pass, in megatron's packed (THD) format.

Order: pad each sequence for context parallelism, shift the target-aligned arrays so that position i predicts token i+1,
take this context rank's part, plan the attention. Everything here is NumPy on the host until the last step.
Shape suffixes: T tokens of the micro-batch, P padded tokens, L local tokens (P / context ranks), S sequences.
"""

from dataclasses import dataclass

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from numpy.typing import NDArray

from trainer_svc.megatron.attention_plan import AttentionPlan, plan_attention
from trainer_svc.microbatch import MicroBatch

IntArray = NDArray[np.int64]


@dataclass
class Packed(PackedSeqParams):  # type: ignore[misc]
    """Megatron's description of packed sequences, with the plan that our attention core follows in every layer."""

    plan: AttentionPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """The tensors of one micro-batch on one rank."""

    token_ids: torch.Tensor  # [1, L] int64
    position_ids: torch.Tensor  # [1, L] int64
    labels: torch.Tensor  # [1, L] int64: the next token, 0 where there is none
    loss_weights: torch.Tensor  # [1, L] of the label
    advantages: torch.Tensor  # [1, L] of the label
    rollout_logprobs: torch.Tensor  # [1, L] of the label
    packed: Packed
    source: IntArray  # [L] index into the micro-batch's T tokens, -1 for padding
    ends_sequence: NDArray[np.bool_]  # [L] True where there is no next token
    forward_tokens: int  # T, counted by the first context rank alone


def padded_lengths(lengths: IntArray, context_size: int) -> IntArray:
    """Lengths rounded up so that a sequence splits into 2 * context_size equal parts."""
    multiple = 2 * context_size if context_size > 1 else 1
    return -(-lengths // multiple) * multiple


def local_positions(lengths: IntArray, context_size: int, context_rank: int) -> tuple[IntArray, IntArray]:
    """(sequence [L], position [L]) of a context rank's tokens: part r and its mirror image, which balances causal work."""
    sequences, positions = [], []
    for index, length in enumerate(lengths.tolist()):
        if context_size == 1:
            own = np.arange(length)
        else:
            parts = np.arange(length).reshape(2 * context_size, -1)
            own = np.concatenate([parts[context_rank], parts[2 * context_size - 1 - context_rank]])
        positions.append(own)
        sequences.append(np.full(len(own), index))
    return np.concatenate(sequences), np.concatenate(positions)


def make_batch(
    micro_batch: MicroBatch, device: torch.device, context_size: int = 1, context_rank: int = 0
) -> Batch:
    """The rank's tensors. An empty micro-batch becomes one token of weight 0, because megatron must run something."""
    ends = micro_batch.cu_seqlens.astype(np.int64)
    starts, lengths = (ends[:-1], np.diff(ends)) if micro_batch.sequence_count else (np.zeros(1, np.int64), np.ones(1, np.int64))
    token_count = micro_batch.token_count
    sequences, positions = local_positions(padded_lengths(lengths, context_size), context_size, context_rank)
    is_token = positions < np.minimum(lengths, token_count)[sequences]
    has_next = positions + 1 < lengths[sequences]
    source = np.where(is_token, starts[sequences] + positions, -1)
    target = np.where(has_next, starts[sequences] + positions + 1, -1)

    def take(values: NDArray[np.generic], index: IntArray) -> torch.Tensor:
        padded = np.append(values, values.dtype.type(0))  # index -1 reads 0
        return torch.from_numpy(padded[index])[None].to(device, non_blocking=True)

    ids = micro_batch.token_ids.astype(np.int64)
    return Batch(
        token_ids=take(ids, source),
        position_ids=torch.from_numpy(positions)[None].to(device),
        labels=take(ids, target),
        loss_weights=take(micro_batch.loss_weights, target),
        advantages=take(micro_batch.advantages, target),
        rollout_logprobs=take(micro_batch.rollout_logprobs, target),
        packed=_packed(padded_lengths(lengths, context_size), device, context_size, context_rank),
        source=source,
        ends_sequence=~has_next,
        forward_tokens=token_count if context_rank == 0 else 0,
    )


def _packed(lengths: IntArray, device: torch.device, context_size: int, context_rank: int) -> Packed:
    """Megatron's parameters for sequences of these padded lengths."""
    ends = torch.from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32)).to(device)
    every_rank = [local_positions(lengths, context_size, rank) for rank in range(context_size)]
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
    """[1, L] values of labels -> [T] aligned with the target token; 0 where this rank has no value."""
    out = np.zeros(token_count, np.float32)
    own = (batch.source >= 0) & ~batch.ends_sequence
    out[batch.source[own] + 1] = values[0].float().cpu().numpy()[own]
    return out
