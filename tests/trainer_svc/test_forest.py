"""Calls -> samples: the cases seen in public trackers, then invariants on random call trees."""

import random

import numpy as np
import pytest

from tests.trainer_svc.builders import ROLLOUT, call
from trainer_svc.forest import Break, Untrained, grow
from trainer_svc.types import Call, Delivery, Finish

A1, A2, A3 = call(1, [1, 2], [3]), call(3, [1, 2, 3, 4], [5]), call(5, [1, 2, 3, 4, 5, 6], [7])
LOST, UNKNOWN = Delivery.LOST, Delivery.UNKNOWN
B1, B2 = call(2, [1, 9], [8]), call(4, [1, 9, 8, 4], [5])

# name, calls, (tokens of each sample with trained ones negative), breaks
CASES: list[tuple[str, list[Call], list[list[int]], dict[Break, int]]] = [
    ("one call", [A1], [[1, 2, -3]], {}),
    ("turns that extend one another are one sample", [A1, A2, A3], [[1, 2, -3, 4, -5, 6, -7]], {}),
    (
        "interleaved subagents give one sample each",
        [A1, B1, A2, B2, A3],
        [[1, 9, -8, 4, -5], [1, 2, -3, 4, -5, 6, -7]],
        {Break.PROMPT: 1},
    ),
    ("calls are ordered by sequence, not as given", [A3, A1, A2], [[1, 2, -3, 4, -5, 6, -7]], {}),
    (
        "best of n: the continued one goes on, the other is a sample of its own",
        [call(1, [1, 2], [3]), call(2, [1, 2], [4]), call(3, [1, 2, 4, 5], [6])],
        [[1, 2, -3], [1, 2, -4, 5, -6]],
        {Break.RESAMPLED: 1},
    ),
    (
        "equal siblings both train once",
        [call(1, [1, 2], [3]), call(2, [1, 2], [3]), call(3, [1, 2, 3, 5], [6])],
        [[1, 2, -3], [1, 2, -3, 5, -6]],
        {Break.RESAMPLED: 1},
    ),
    (
        "a fork trains the shared response in the first sample alone",
        [A1, A2, call(4, [1, 2, 3, 9], [8])],
        [[1, 2, -3, 4, -5], [1, 2, 3, 9, -8]],
        {Break.FORK: 1},
    ),
    (
        "compaction: the summary's call ends the old sample, a new prompt opens the next",
        [A1, A2, call(4, [1, 2, 3, 4, 5, 70], [71]), call(5, [1, 71], [72])],
        [[1, 2, -3, 4, -5, 70, -71], [1, 71, -72]],
        {Break.PROMPT: 1},
    ),
    (
        "broken at step 4, extended at step 5",
        [A1, A2, A3, call(6, [1, 2, 3, 40], [41]), call(7, [1, 2, 3, 40, 41, 42], [43])],
        [[1, 2, -3, 4, -5, 6, -7], [1, 2, 3, 40, -41, 42, -43]],
        {Break.FORK: 1},
    ),
    (
        "a response that comes back as other tokens is not stitched",
        [call(1, [1, 2], [30, 31]), call(2, [1, 2, 32, 33, 4], [5])],
        [[1, 2, -30, -31], [1, 2, 32, 33, 4, -5]],
        {Break.RESPONSE: 1},
    ),
    (
        "a prompt that lost its end is not a continuation",
        [call(1, [1, 2], [3, 4]), call(2, [1, 2, 3], [5])],
        [[1, 2, -3, -4], [1, 2, 3, -5]],
        {Break.RESPONSE: 1},
    ),
    (
        "a truncated response that is continued stays one sample",
        [call(1, [1], [2, 3], finish=Finish.LENGTH), call(2, [1, 2, 3], [4])],
        [[1, -2, -3, -4]],
        {},
    ),
    (
        "a call of another lineage in between does not break the first",
        [A1, call(2, [50], [51]), A2],
        [[50, -51], [1, 2, -3, 4, -5]],
        {Break.PROMPT: 1},
    ),
]


@pytest.mark.parametrize(("calls", "rows", "breaks"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_calls_become_the_fewest_samples(calls: list[Call], rows: list[list[int]], breaks: dict[Break, int]) -> None:
    forest = grow(ROLLOUT, calls)
    shown = [[-token if on else token for token, on in zip(s.token_ids, s.mask, strict=True)] for s in forest.samples]
    assert shown == rows
    assert forest.breaks == breaks
    assert not forest.untrained
    assert forest.trained_tokens == forest.recorded_tokens


def test_log_probabilities_stand_at_their_tokens_and_are_zero_elsewhere() -> None:
    (only,) = grow(ROLLOUT, [A1, A2]).samples
    assert only.logprobs.tolist() == [0, 0, -1, 0, -3]


UNTRAINED = [
    (
        "a lost reply whose prompt was asked again",
        [call(1, [1, 2], [3], delivery=LOST), call(2, [1, 2], [4]), call(3, [1, 2, 4, 5], [6])],
        {Untrained.SUPERSEDED: 1},
        2,
    ),
    (
        "a lost last reply",
        [A1, call(2, [1, 2, 3, 4], [5, 6], delivery=LOST)],
        {Untrained.LOST: 1},
        1,
    ),
    (
        "a last reply of which nothing was reported",
        [A1, call(2, [1, 2, 3, 4], [5, 6], delivery=UNKNOWN)],
        {Untrained.UNREPORTED: 1},
        1,
    ),
    (
        "a reply of which nothing was reported, asked again",
        [call(1, [1, 2], [3], delivery=UNKNOWN), call(2, [1, 2], [4])],
        {Untrained.SUPERSEDED: 1},
        1,
    ),
    (
        "a reply of which nothing was reported, but that a lost call's prompt holds, was seen",
        [call(1, [1, 2], [3], delivery=UNKNOWN), call(2, [1, 2, 3, 4], [5], delivery=LOST)],
        {Untrained.LOST: 1},
        1,
    ),
    (
        "a lost reply that a later prompt holds was seen",
        [call(1, [1, 2], [3], delivery=LOST), call(2, [1, 2], [4]), call(3, [1, 2, 3, 5], [6])],
        {},
        3,
    ),
    (
        "of three lost tries the continued one remains",
        [
            call(1, [1, 2], [3], delivery=LOST),
            call(2, [1, 2], [4], delivery=LOST),
            call(3, [1, 2], [5], delivery=LOST),
            call(4, [1, 2, 5, 6], [7]),
        ],
        {Untrained.SUPERSEDED: 2},
        2,
    ),
    (
        "equal delivered prompts are siblings, not retries",
        [call(1, [1, 2], [3]), call(2, [1, 2], [4])],
        {},
        2,
    ),
    ("aborted before the first token", [call(1, [1, 2], [], finish=Finish.ABORT)], {Untrained.EMPTY: 1}, 0),
    (
        "aborted in the middle and never delivered",
        [call(1, [1, 2], [3], finish=Finish.ABORT, delivery=LOST)],
        {Untrained.LOST: 1},
        0,
    ),
    (
        "ids and log-probabilities of unequal length",
        [call(1, [1, 2], [3, 4], logprobs=[-1.0]), call(2, [5], [6])],
        {Untrained.LENGTHS: 1},
        1,
    ),
]


@pytest.mark.parametrize(
    ("calls", "untrained", "tokens"), [case[1:] for case in UNTRAINED], ids=[case[0] for case in UNTRAINED]
)
def test_replies_that_were_never_used_are_left_out(
    calls: list[Call], untrained: dict[Untrained, int], tokens: int
) -> None:
    forest = grow(ROLLOUT, calls)
    assert forest.untrained == untrained
    assert forest.trained_tokens == tokens


def test_calls_left_out_for_want_of_delivery_are_counted_and_those_that_may_still_be_reported() -> None:
    forest = grow(
        ROLLOUT,
        [
            call(1, [1, 2], [3], delivery=UNKNOWN),  # continued: trained
            call(2, [1, 2, 3, 4], [5], delivery=UNKNOWN),  # asked again
            call(3, [1, 2, 3, 4], [6], delivery=LOST),
            call(4, [7], [], delivery=UNKNOWN),  # empty
        ],
    )
    assert (forest.undelivered_calls, forest.undecided_calls, forest.trained_tokens) == (2, 1, 1)


def test_a_token_without_finite_log_probability_is_context_only() -> None:
    forest = grow(ROLLOUT, [call(1, [1], [2, 3, 4], logprobs=[-1.0, float("-inf"), float("nan")])])
    (only,) = forest.samples
    assert only.mask.tolist() == [False, True, False, False]
    assert np.isfinite(only.logprobs).all()
    assert forest.masked_tokens == 2


def test_truncated_calls_are_counted() -> None:
    assert grow(ROLLOUT, [call(1, [1], [2], finish=Finish.LENGTH), A1]).truncated_calls == 1


def random_calls(rng: random.Random) -> list[Call]:
    """A few lineages that extend, fork, resample and break at random, over a small alphabet so that they collide."""
    calls: list[Call] = []
    for sequence in range(1, rng.randint(2, 14)):
        base = rng.choice(calls) if calls and rng.random() < 0.8 else None
        added = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
        if base is None:
            prompt = [rng.randint(1, 2), *added]
        else:
            prompt = base.prompt.tolist() + (base.response.tolist() if rng.random() < 0.8 else []) + added
        calls.append(call(sequence, prompt, [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]))
    return calls


@pytest.mark.parametrize("seed", range(60))
def test_every_response_is_trained_once_under_its_own_prompt(seed: int) -> None:
    calls = random_calls(random.Random(seed))
    forest = grow(ROLLOUT, calls)
    assert forest.trained_tokens == sum(len(each.response) for each in calls)
    # each trained run of tokens, with everything before it, is one call's prompt and response: none invented, none lost
    wanted = sorted((*each.prompt.tolist(), *each.response.tolist(), each.logprobs[0]) for each in calls)
    found = []
    for row in forest.samples:
        for each in {float(value) for value in row.logprobs[row.mask]}:
            end = int(np.flatnonzero(row.logprobs == each)[-1]) + 1
            found.append((*row.token_ids[:end].tolist(), each))
    assert sorted(found) == wanted


@pytest.mark.parametrize("seed", range(20))
def test_the_number_of_samples_is_the_number_of_calls_that_nothing_extends(seed: int) -> None:
    calls = random_calls(random.Random(1000 + seed))
    sequences = [each.prompt.tolist() + each.response.tolist() for each in calls]
    parents = []
    for index, each in enumerate(calls):
        fitting = [e for e in range(index) if each.prompt.tolist()[: len(sequences[e])] == sequences[e]]
        parents.append(max(fitting, key=lambda e: (len(sequences[e]), e), default=None))
    assert len(grow(ROLLOUT, calls).samples) == len(calls) - len({p for p in parents if p is not None})
