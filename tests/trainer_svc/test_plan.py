"""Placement: examples, then invariants on random batches."""

import random

import pytest

from trainer_svc.plan import (
    CostModel,
    SampleTooLongError,
    balance,
    cost_model,
    lower_bound,
    optimizer_steps,
    plan,
)

LINEAR = CostModel(linear=1.0, quadratic=0.0)
MIXED = CostModel(linear=1.0, quadratic=0.01)


@pytest.mark.parametrize("seed", range(80))
def test_every_sample_is_placed_once_under_the_cap_and_near_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    cap, ranks = rng.randint(20, 200), rng.randint(1, 9)
    lengths = [rng.randint(1, rng.choice([10, 50, 250])) for _ in range(rng.randint(0, 60))]
    made = plan(lengths, ranks=ranks, token_cap=cap, cost=MIXED, maximum_length=250)
    batches = [batch for rank in made.ranks for batch in rank]
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
    assert len(made.ranks) == ranks
    for batch in batches:
        assert batch
        assert sum(lengths[item] for item in batch) <= cap or len(batch) == 1
    loads = [sum(MIXED(lengths[item]) for batch in rank for item in batch) for rank in made.ranks]
    assert made.makespan == pytest.approx(max(loads, default=0))
    assert made.excess < 4 / 3  # the worst that longest-processing-time-first can do


@pytest.mark.parametrize("seed", range(20))
def test_equal_counts_fill_up_with_empty_micro_batches_only_as_needed(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [rng.randint(1, 40) for _ in range(rng.randint(1, 40))]
    made = plan(lengths, ranks=4, token_cap=50, cost=LINEAR, maximum_length=50, equal_counts=True)
    (count,) = {len(rank) for rank in made.ranks}
    assert any(all(rank) for rank in made.ranks), "the busiest rank has no empty one"
    assert all(len(rank) == count for rank in made.ranks)


def test_a_sample_over_the_cap_sits_alone() -> None:
    made = plan([50, 10, 10], ranks=1, token_cap=32, cost=LINEAR, maximum_length=64)
    assert made.ranks == (((0,), (1, 2)),)


def test_a_sample_over_the_model_is_a_clear_error() -> None:
    with pytest.raises(SampleTooLongError, match="exceed 64 tokens"):
        plan([65], ranks=1, token_cap=32, cost=LINEAR, maximum_length=64)


def test_thirteen_samples_on_four_ranks_are_all_there() -> None:
    made = plan([5] * 13, ranks=4, token_cap=10, cost=LINEAR, maximum_length=10)
    assert sorted(sum(len(batch) for batch in rank) for rank in made.ranks) == [3, 3, 3, 4]


def test_more_ranks_than_samples_leave_ranks_without_micro_batches() -> None:
    made = plan([5, 5], ranks=4, token_cap=10, cost=LINEAR, maximum_length=10)
    assert sorted(len(rank) for rank in made.ranks) == [0, 0, 1, 1]


def test_no_sample_gives_no_micro_batch() -> None:
    made = plan([], ranks=2, token_cap=10, cost=LINEAR, maximum_length=10)
    assert made.ranks == ((), ())
    assert made.excess == 1.0


def test_refinement_beats_longest_first_where_that_is_known_to_fail() -> None:
    costs = [3.0, 3.0, 2.0, 2.0, 2.0]  # longest first alone gives 7
    assert max(sum(costs[item] for item in rank) for rank in balance(costs, 2)) == 6


def test_long_sequences_weigh_more_than_their_tokens() -> None:
    made = plan([100, *[10] * 10], ranks=2, token_cap=200, cost=CostModel(linear=1, quadratic=1), maximum_length=200)
    assert made.ranks[0] == ((0,),) or made.ranks[1] == ((0,),)


@pytest.mark.parametrize(("costs", "bins", "bound"), [([4, 4], 2, 4), ([9, 1], 2, 9), ([3, 3, 3], 2, 6), ([], 2, 0)])
def test_lower_bound(costs: list[float], bins: int, bound: float) -> None:
    assert lower_bound(costs, bins) == bound


def test_optimizer_steps_take_whole_rollouts_and_are_never_empty() -> None:
    steps = optimizer_steps([5.0, 1.0, 1.0, 3.0], 2)
    assert sorted(item for step in steps for item in step) == [0, 1, 2, 3]
    assert [sum([5.0, 1.0, 1.0, 3.0][item] for item in step) for step in steps] == [5.0, 5.0]
    assert optimizer_steps([1.0], 4) == [[0]]


def test_the_cost_model_follows_the_architecture() -> None:
    model = cost_model(
        {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "intermediate_size": 384,
            "vocab_size": 663,
        }
    )
    matrices = 128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 384
    assert model.linear == 2 * (4 * matrices + 128 * 663)
    assert model.quadratic == 2 * 4 * 128
