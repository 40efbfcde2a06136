"""Ids are functions of what they stand for."""

import re

import pytest

from trainer_svc import ids
from trainer_svc.types import RolloutId, RunId, Split

RUN = RunId("warm-run-0007-a1b2")
ALLOWED = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")


def test_rollouts_of_one_input_are_a_group_and_ids_are_unique_and_allowed() -> None:
    specs = ids.train_specs(RunId("a" * 30 + "-0f0f"), 16, [{"q": 1}, {"q": 2}], 3)
    assert len({spec.rollout_id for spec in specs}) == 6
    assert [spec.input["q"] for spec in specs] == [1, 1, 1, 2, 2, 2]
    assert [len({s.group_id for s in specs[i : i + 3]}) for i in (0, 3)] == [1, 1]
    assert len({spec.group_id for spec in specs}) == 2
    assert all(ALLOWED.fullmatch(spec.rollout_id) for spec in specs)


def test_asking_again_gives_the_same_ids_and_evaluation_has_its_own() -> None:
    again = [[spec.rollout_id for spec in ids.train_specs(RUN, 3, [{}], 2)] for _ in range(2)]
    assert again[0] == again[1]
    evaluation = ids.eval_specs(RUN, 3, [{}, {}])
    assert not {spec.rollout_id for spec in evaluation} & set(again[0])
    assert {spec.split for spec in evaluation} == {Split.EVAL}


def test_a_cancelled_rollout_is_replaced_again_and_again() -> None:
    first = ids.rollout_id(RUN, Split.TRAIN, 2, 7)
    second = ids.replacement(first)
    assert (second, ids.replacement(second)) == (f"{first}r1", f"{first}r2")
    with pytest.raises(ValueError, match="not a rollout"):
        ids.replacement(RolloutId("someone-else"))


def test_weight_versions_of_two_runs_differ() -> None:
    assert ids.weight_version(RUN, 4) == "warm-run-0007-a1b2-0004"
