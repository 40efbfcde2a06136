"""Loss normalisation: the paper's example (its Figure 5) and what must hold for any batch."""

import numpy as np
import pytest

from trainer_svc.weights import Normalisation, token_weights

# rollout A: samples of 50 and 100 response tokens; B: three of 30; C: one of 40
LENGTHS, ROLLOUTS = [50, 100, 30, 30, 30, 40], ["A", "A", "B", "B", "B", "C"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Normalisation.TOKEN_MEAN, [1 / 280] * 6),
        (Normalisation.SEQ_MEAN, [1 / 300, 1 / 600, 1 / 180, 1 / 180, 1 / 180, 1 / 240]),
        (Normalisation.ROLLOUT_MEAN, [1 / 450, 1 / 450, 1 / 270, 1 / 270, 1 / 270, 1 / 120]),
    ],
)
def test_figure_5_of_the_paper(kind: Normalisation, expected: list[float]) -> None:
    np.testing.assert_allclose(token_weights(LENGTHS, ROLLOUTS, 3, kind), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", list(Normalisation))
def test_weights_of_all_tokens_sum_to_one(kind: Normalisation) -> None:
    assert token_weights(LENGTHS, ROLLOUTS, 3, kind) @ np.asarray(LENGTHS) == pytest.approx(1)


def test_a_split_rollout_weighs_the_same_in_rollout_mean_and_more_in_seq_mean() -> None:
    def weight_of_a(kind: Normalisation, lengths: list[int], rollouts: list[str]) -> float:
        weights = token_weights(lengths, rollouts, 2, kind)
        return float(sum(w * n for w, n, r in zip(weights, lengths, rollouts, strict=True) if r == "A"))

    whole, split = ([40, 60], ["A", "B"]), ([10, 30, 60], ["A", "A", "B"])
    assert weight_of_a(Normalisation.ROLLOUT_MEAN, *whole) == pytest.approx(0.5)
    assert weight_of_a(Normalisation.ROLLOUT_MEAN, *split) == pytest.approx(0.5)
    assert weight_of_a(Normalisation.SEQ_MEAN, *split) == pytest.approx(2 / 3)


def test_rollouts_without_samples_stay_in_the_denominator() -> None:
    assert token_weights([10], ["A"], 4, Normalisation.ROLLOUT_MEAN).tolist() == [1 / 40]


def test_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="no trained token"):
        token_weights([0], ["A"], 1, Normalisation.TOKEN_MEAN)
    with pytest.raises(ValueError, match="2 rollouts in a step of 1"):
        token_weights([1, 1], ["A", "B"], 1, Normalisation.TOKEN_MEAN)
