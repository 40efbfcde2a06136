"""The optimizer steps of one batch of rollouts: rows, plan, micro-batches, ranks, figures."""

from collections.abc import Sequence

from trainer_svc import step
from trainer_svc.batching import Row, packed
from trainer_svc.commands import LossConfig, LossKind, StepDone, TrainStep
from trainer_svc.config import Config
from trainer_svc.metrics import Max, Mean, Metrics, Sum
from trainer_svc.plan import CostModel, Plan, plan
from trainer_svc.ranks import Ranks
from trainer_svc.step import Kept


async def optimise(
    kept: Sequence[Kept],
    config: Config,
    ranks: Ranks,
    metrics: Metrics,
    *,
    cost: CostModel,
    maximum_length: int,
    updates: int,
) -> int:
    """Train on `kept`, after `updates` earlier optimizer steps; how many there were. Figures are added to `metrics`.

    A step whose advantages are all 0 is left out: it has no gradient, and Adam would move the weights all the same.
    """
    applied = 0
    for rows in step.updates(kept, config.rl, cost):
        if not rows:
            continue
        applied += 1
        placed = place(rows, config, cost, maximum_length)
        done = await ranks.train(command(config, updates + applied), packed(rows, placed))
        metrics.add(**figures(done, placed))
    metrics.add(updates=Sum(applied))
    return applied


def place(rows: Sequence[Row], config: Config, cost: CostModel, maximum_length: int) -> Plan:
    """Rows to ranks and micro-batches. Raises SampleTooLongError."""
    return plan(
        [len(row.token_ids) for row in rows],
        ranks=config.backend.data_parallel,
        token_cap=config.backend.token_cap,
        cost=cost,
        maximum_length=maximum_length,
    )


def command(config: Config, number: int) -> TrainStep:
    """Optimizer step `number` of the run."""
    rl = config.rl
    return TrainStep(
        step=number,
        loss=LossKind.POLICY,
        config=LossConfig(clip_low=rl.clip_low, clip_high=rl.clip_high, dual_clip=rl.dual_clip),
        learning_rate=rl.learning_rate,
        clip_norm=rl.clip_norm,
    )


def figures(done: StepDone, placed: Plan) -> dict[str, Max | Mean | Sum]:
    """What one optimizer step reports."""
    return {
        "loss": Mean(done.loss),
        "gradient_norm": Max(done.gradient_norm),
        "refused_gradients": Sum(not done.applied),
        "ratio_deviation": Max(done.ratio_deviation),
        "kl": Mean(done.kl, done.trained_tokens),
        "entropy": Mean(done.entropy, done.trained_tokens),
        "clip_fraction": Mean(done.clip_fraction, done.trained_tokens),
        "forward_tokens": Sum(done.forward_tokens),
        "micro_batches": Sum(placed.micro_batch_count),
        "plan_excess": Max(placed.excess),
        "learning_rate": Max(done.learning_rate),
    }
