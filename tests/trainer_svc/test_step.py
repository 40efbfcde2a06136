"""A batch of finished rollouts -> rows of optimizer steps."""

import pytest

from tests.trainer_svc.builders import call
from trainer_svc.collect import assemble
from trainer_svc.config import RlSection
from trainer_svc.plan import CostModel
from trainer_svc.rewards import Missing
from trainer_svc.step import Finished, figures, keep, updates
from trainer_svc.types import Call, GroupId, Record, Reward, RolloutId, RolloutSpec, Split, State, Status
from trainer_svc.weights import Normalisation

COST = CostModel(linear=1.0, quadratic=0.0)


def finished(
    name: str, group: str, reward: float | None, calls: list[Call], state: State = State.SUCCEEDED
) -> Finished:
    """A rollout as the collector gives it."""
    rollout = RolloutId(name)
    spec = RolloutSpec(rollout_id=rollout, group_id=GroupId(group), split=Split.TRAIN, input={})
    status = Status(rollout_id=rollout, state=state, attempt=1, message="")
    rewards = () if reward is None else (Reward(value=reward, source="agent", call_id=""),)
    return assemble(spec, status, Record(rollout_id=rollout, calls=tuple(calls), rewards=rewards))


# two groups: in `a` one rollout of three samples wins against one of a single sample; `b` has no variance
THREE = [call(1, [1], [2, 3]), call(2, [5], [6]), call(3, [7], [8])]
ONE = [call(4, [1], [2, 3, 4, 5])]
BATCH = [
    finished("r1", "a", 1.0, THREE),
    finished("r2", "a", 0.0, ONE),
    finished("r3", "b", 1.0, ONE),
    finished("r4", "b", 1.0, THREE),
]


def test_rows_inherit_their_rollouts_advantage_and_flat_groups_need_no_forward() -> None:
    rl = RlSection.model_validate({"advantage": "grpo-without-std"})
    (rows,) = updates(keep(BATCH, rl), rl, COST)
    assert [(row.name, row.advantage) for row in rows] == [("r1/0", 0.5), ("r1/1", 0.5), ("r1/2", 0.5), ("r2/0", -0.5)]


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        (Normalisation.ROLLOUT_MEAN, [1 / 16, 1 / 16, 1 / 16, 1 / 16]),
        (Normalisation.TOKEN_MEAN, [1 / 16] * 4),
        (Normalisation.SEQ_MEAN, [1 / 16, 1 / 8, 1 / 8, 1 / 32]),
    ],
)
def test_rows_without_advantage_stay_in_every_denominator(kind: Normalisation, weights: list[float]) -> None:
    rl = RlSection(normalisation=kind)
    (rows,) = updates(keep(BATCH, rl), rl, COST)
    assert [row.weight for row in rows] == pytest.approx(weights)


def test_a_batch_without_variance_gives_a_step_without_rows() -> None:
    rl = RlSection()
    assert updates(keep(BATCH[2:], rl), rl, COST) == [[]]


def test_whole_rollouts_are_shared_out_among_optimizer_steps() -> None:
    rl = RlSection(updates=2)
    parts = [{row.name.split("/")[0] for row in rows} for rows in updates(keep(BATCH, rl), rl, COST)]
    assert sorted(name for part in parts for name in part) == ["r1", "r2"]


def test_dropped_rollouts_leave_the_baseline_too() -> None:
    batch = [*BATCH[:2], finished("r5", "a", 0.0, ONE, State.FAILED), finished("r6", "a", None, ONE)]
    dropped = RlSection.model_validate({"advantage": "grpo-without-std"})
    assert [item.advantage for item in keep(batch, dropped)] == [0.5, -0.5]
    valued = dropped.model_copy(update={"missing": Missing.VALUE, "missing_value": 0.0})
    assert [item.advantage for item in keep(batch, valued)] == [0.75, -0.25, -0.25, -0.25]
    assert figures(batch, keep(batch, dropped)).values()["dropped_rollouts"] == 2


def test_figures_count_what_is_trained_and_what_is_left_out() -> None:
    values = figures(BATCH, keep(BATCH, RlSection())).values()
    assert values["rollouts"] == 4
    assert values["samples"] == 8
    assert values["samples_per_rollout"] == 2
    assert values["reward"] == 0.75
    assert values["trained_tokens"] == values["recorded_tokens"] == 16
    assert values["zero_advantage_samples"] == 4
    assert values["flat_groups"] == 1
    assert values["break_prompt"] == 4


def test_a_batch_of_nothing_but_failures_still_has_figures() -> None:
    lost = [finished("r1", "a", None, [], State.FAILED)]
    rl = RlSection()
    assert updates(keep(lost, rl), rl, COST) == []
    assert figures(lost, []).values()["rollouts"] == 0
