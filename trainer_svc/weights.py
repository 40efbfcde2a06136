"""Loss weights: how much one token of each sample counts in an optimizer step. Pure.

Computed once per step over everything that is in it, before anything is placed on ranks or in micro-batches, and never
changed after: the loss is the plain sum of weight * token loss, so placement cannot change the gradient.
Equations are those of the paper (arXiv 2608.17528).
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt


class Normalisation(StrEnum):
    """What the sum of token losses is divided by."""

    ROLLOUT_MEAN = "rollout-mean"  # Eq. 16: mean over a rollout's tokens, then over rollouts
    TOKEN_MEAN = "token-mean"  # Eq. 14: mean over all tokens
    SEQ_MEAN = "seq-mean"  # Eq. 15: mean over a sample's tokens, then over samples; favours rollouts of many samples


def token_weights(
    lengths: Sequence[int], rollouts: Sequence[str], rollout_count: int, kind: Normalisation
) -> npt.NDArray[np.float64]:
    """Trained tokens [N] and rollout [N] of each sample -> the weight [N] of each trained token in it.

    `rollout_count` is R, all rollouts of the step, also those without samples. All samples of the step must be given,
    also those with advantage 0: their tokens stay in every denominator. Raises ValueError for a sample without trained
    tokens or fewer rollouts than the samples have.
    """
    if any(length <= 0 for length in lengths):
        raise ValueError("a sample has no trained token")
    if rollout_count < len(set(rollouts)):
        raise ValueError(f"samples of {len(set(rollouts))} rollouts in a step of {rollout_count}")
    own = np.asarray(lengths, np.float64)
    match kind:
        case Normalisation.ROLLOUT_MEAN:
            totals: Counter[str] = Counter()
            for length, rollout in zip(lengths, rollouts, strict=True):
                totals[rollout] += length
            return 1.0 / (rollout_count * np.asarray([totals[rollout] for rollout in rollouts], np.float64))
        case Normalisation.TOKEN_MEAN:
            return np.full(len(own), 1.0 / own.sum()) if len(own) else own
        case Normalisation.SEQ_MEAN:
            return 1.0 / (len(own) * own)
