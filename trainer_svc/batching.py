"""Samples with their weights and advantages -> the micro-batches that a plan asks for. Pure.

Shape suffixes: T tokens of one micro-batch, S sequences in it, N samples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainer_svc.microbatch import MicroBatch, empty_micro_batch
from trainer_svc.plan import Plan
from trainer_svc.types import Mask
from whippletree.tokens import Floats, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One sequence ready to train."""

    name: str
    token_ids: TokenIds  # [L]
    mask: Mask  # [L] True where trained; the first is False
    logprobs: Floats  # [L] as sampled; 0 where not sampled
    weight: float  # of each trained token
    advantage: float  # of the rollout; unused by a supervised loss


def pack(rows: Sequence[Row]) -> MicroBatch:
    """Rows one after another."""
    if not rows:
        return empty_micro_batch()
    lengths = [len(row.token_ids) for row in rows]
    return MicroBatch(
        token_ids=np.concatenate([row.token_ids for row in rows]).astype(np.int32),
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        loss_weights=_joined([row.mask * row.weight for row in rows]),
        advantages=_joined([row.mask * row.advantage for row in rows]),
        rollout_logprobs=_joined([row.logprobs for row in rows]),
        rows=tuple(row.name for row in rows),
    )


def packed(rows: Sequence[Row], plan: Plan) -> list[list[MicroBatch]]:
    """The micro-batches of each data-parallel rank."""
    return [[pack([rows[index] for index in batch]) for batch in rank] for rank in plan.ranks]


def _joined(parts: Sequence[npt.NDArray[np.generic]]) -> Floats:
    joined: Floats = np.concatenate(parts).astype(np.float32)
    return joined
