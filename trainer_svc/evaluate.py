"""Held-out accuracy: one rollout per question, sampled at temperature 1, never trained on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer_svc import ids
from trainer_svc.collect import Collector
from trainer_svc.data import Input
from trainer_svc.rewards import Missing, RewardPolicy, settled
from trainer_svc.step import Finished
from trainer_svc.types import RunId, State

POLICY = RewardPolicy(missing=Missing.VALUE, value=0.0)
"""An agent that failed or earned nothing got it wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One measurement."""

    accuracy: float  # mean reward; 0 where nothing was measured
    questions: int
    failed: int  # rollouts that did not succeed, counted as 0


async def evaluate(
    collector: Collector, run: RunId, step: int, questions: Sequence[Input], seen: Callable[[Finished], None]
) -> Evaluation:
    """Measure the weights that are published now."""
    return score(await collector.collect(ids.eval_specs(run, step, questions), seen))


def score(finished: Sequence[Finished]) -> Evaluation:
    """The mean reward over all that were not cancelled."""
    rewards = [settled(item.status.state, item.rewards, POLICY) for item in finished]
    counted = [reward for reward in rewards if reward is not None]
    return Evaluation(
        accuracy=sum(counted) / len(counted) if counted else 0.0,
        questions=len(counted),
        failed=sum(item.status.state is State.FAILED for item in finished),
    )
