"""The micro-batch: what the driver sends to a rank for one forward and backward pass.

Comes from the planner, goes to `trainer_svc.megatron.batch`; both sides of the wire use this one type. No torch here.
Shape suffixes: T tokens of all sequences together, S sequences.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """Packed sequences; every per-token array is aligned with the TARGET token.

    `loss_weights[i]` weighs the loss of predicting token i from the tokens before it in its sequence, so it is 0 for
    observation tokens and for the first token of each sequence. Weights already hold the global normalisation:
    the loss of a step is the plain sum over all tokens of all micro-batches of all ranks.

    Raises ValueError when the arrays do not fit together.
    """

    token_ids: Int32Array  # [T]
    cu_seqlens: Int32Array  # [S+1], from 0 to T, strictly increasing (just [0] when there is no sequence)
    loss_weights: Float32Array  # [T]
    advantages: Float32Array  # [T], ignored by supervised losses
    rollout_logprobs: Float32Array  # [T], natural, under the policy that sampled the token; 0 where not sampled
    rows: tuple[str, ...] = ()  # [S] sample ids, for messages and logs

    def __post_init__(self) -> None:
        """Refuses arrays that do not fit together."""
        token_count = self.token_ids.shape[0]
        for name in ("token_ids", "loss_weights", "advantages", "rollout_logprobs"):
            if getattr(self, name).shape != (token_count,):
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, expected ({token_count},)")
        ends = self.cu_seqlens
        if ends.ndim != 1 or len(ends) == 0 or ends[0] != 0 or ends[-1] != token_count or np.any(np.diff(ends) <= 0):
            raise ValueError(f"cu_seqlens must increase from 0 to {token_count}, not {ends.tolist()}")
        if self.rows and len(self.rows) != len(ends) - 1:
            raise ValueError(f"{len(self.rows)} row ids for {len(ends) - 1} sequences")
        if np.any(self.loss_weights[ends[:-1]] != 0):
            raise ValueError("a sequence's first token has no prediction, so its loss weight must be 0")

    @property
    def sequence_count(self) -> int:
        """S."""
        return len(self.cu_seqlens) - 1

    @property
    def token_count(self) -> int:
        """T."""
        return int(self.token_ids.shape[0])


def empty_micro_batch() -> MicroBatch:
    """A micro-batch without tokens: it fills in where a collective needs equal counts, and adds nothing."""
    return MicroBatch(
        token_ids=np.zeros(0, np.int32),
        cu_seqlens=np.zeros(1, np.int32),
        loss_weights=np.zeros(0, np.float32),
        advantages=np.zeros(0, np.float32),
        rollout_logprobs=np.zeros(0, np.float32),
    )
