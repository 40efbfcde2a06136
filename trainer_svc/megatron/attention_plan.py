"""How the attention of one micro-batch is computed: decided once on the host, followed by every layer.

Sequences of similar length are padded to one length and share one kernel call. Padding stands at the end, so the causal
mask alone keeps it from being seen. With context parallelism each rank holds a part of every sequence and attends to
all keys under an explicit mask.
Shape suffixes: T packed tokens, S sequences of a group, N padded length of a group.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
# A group may hold sequences down to this share of its longest: more kernel calls against more padding.
SHORTEST_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences of one padded length."""

    sequence_count: int  # S
    length: int  # N


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionPlan:
    """What every layer needs to know about a micro-batch."""

    positions: torch.Tensor  # [T] int64, of this rank's tokens within their sequences
    groups: tuple[Group, ...]  # without context parallelism
    slots: torch.Tensor | None  # [T] place of each token in the padded groups, one after another; None: the same place
    fill: torch.Tensor | None  # [all places] the token that each place reads: its own, or any where there is none
    mask: torch.Tensor | None  # [T, all keys] bool, with context parallelism: True where attention is allowed


def plan_attention(
    lengths: IntArray,
    every_rank: list[tuple[IntArray, IntArray]],
    context_rank: int,
    device: torch.device,
) -> AttentionPlan:
    """The plan for sequences of these lengths; `every_rank` holds (sequence, position) of each rank's tokens."""
    sequences, positions = every_rank[context_rank]
    on_device = torch.from_numpy(positions).to(device)
    if len(every_rank) > 1:
        key_sequences = np.concatenate([ids for ids, _ in every_rank])
        key_positions = np.concatenate([places for _, places in every_rank])
        allowed = (sequences[:, None] == key_sequences) & (key_positions <= positions[:, None])
        return AttentionPlan(
            positions=on_device, groups=(), slots=None, fill=None, mask=torch.from_numpy(allowed).to(device)
        )
    groups, slots = group_sequences(lengths)
    if slots is None:
        return AttentionPlan(positions=on_device, groups=groups, slots=None, fill=None, mask=None)
    fill = np.zeros(sum(group.sequence_count * group.length for group in groups), np.int64)
    fill[slots] = np.arange(len(slots))
    where, what = torch.from_numpy(slots).to(device), torch.from_numpy(fill).to(device)
    return AttentionPlan(positions=on_device, groups=groups, slots=where, fill=what, mask=None)


def group_sequences(lengths: IntArray) -> tuple[tuple[Group, ...], IntArray | None]:
    """Groups by length, longest first, and each token's slot; no slots when all sequences are of one length."""
    if np.all(lengths == lengths[0]):
        return (Group(sequence_count=len(lengths), length=int(lengths[0])),), None
    order = np.argsort(-lengths, kind="stable")
    groups: list[Group] = []
    bases = np.zeros(len(lengths), np.int64)
    begin = offset = 0
    while begin < len(order):
        longest = int(lengths[order[begin]])
        members = order[begin:][lengths[order[begin:]] >= SHORTEST_SHARE * longest]
        bases[members] = offset + longest * np.arange(len(members))
        groups.append(Group(sequence_count=len(members), length=longest))
        offset += longest * len(members)
        begin += len(members)
    starts = np.cumsum(lengths) - lengths
    return tuple(groups), np.arange(lengths.sum()) + np.repeat(bases - starts, lengths)
