"""One optimizer step: micro-batches -> gradient summed over data-parallel ranks -> clip -> Adam -> figures."""

import math
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from trainer_svc.commands import StepDone, TrainStep
from trainer_svc.megatron import loss
from trainer_svc.megatron.batch import Batch
from trainer_svc.megatron.trainer import Trainer, run_passes, to_batches
from trainer_svc.microbatch import MicroBatch


def accumulate_gradients(
    trainer: Trainer, command: TrainStep, batches: list[Batch]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Leaves the summed gradient in the model; (sums, largest deviation) of each micro-batch on the last stage."""
    trainer.model.zero_grad_buffer()
    trainer.optimizer.zero_grad()

    def loss_function(batch: Batch, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
        total, sums, deviation = loss.compute(command.loss, command.config, logits[0], batch)
        return total, torch.zeros((), dtype=torch.int, device=logits.device), (sums, deviation)

    if not trainer.model.training:  # walks over all modules
        trainer.model.train()
    return run_passes(trainer, batches, loss_function, train=True)


def apply_gradients(trainer: Trainer, command: TrainStep) -> tuple[float, bool]:
    """(gradient norm before clipping, applied). A gradient that is not finite leaves every rank's weights alone."""
    optimizer = trainer.optimizer
    for group in optimizer.param_groups:
        group["lr"] = command.learning_rate * group["lr_mult"]
        group["weight_decay"] = optimizer.config.weight_decay * group["wd_mult"]
    overflow = optimizer.prepare_grads()
    norm = math.inf if overflow else float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return norm, False
    if command.clip_norm > 0:
        for part in optimizer.chained_optimizers:
            clip_grad_by_total_norm_fp32(part.get_parameters(), command.clip_norm, norm)
    return norm, bool(optimizer.step_with_ready_grads())


def train_step(trainer: Trainer, command: TrainStep, micro_batches: Iterable[MicroBatch]) -> StepDone:
    """One optimizer step over this data-parallel rank's micro-batches. A collective of all ranks."""
    begin = time.perf_counter()
    kept = accumulate_gradients(trainer, command, to_batches(trainer, micro_batches))
    norm, applied = apply_gradients(trainer, command)
    figures, deviation = reduce_figures(kept, trainer.device.torch_device)
    seconds = time.perf_counter() - begin
    trained = figures["trained_tokens"]
    mean = 1.0 / max(trained, 1.0)
    return StepDone(
        step=command.step,
        loss=figures["loss"],
        gradient_norm=norm,
        applied=applied,
        trained_tokens=round(trained),
        forward_tokens=round(figures["forward_tokens"]),
        ratio_deviation=deviation,
        kl=figures["kl"] * mean,
        clip_fraction=figures["clipped"] * mean,
        entropy=figures["entropy"] * mean,
        learning_rate=command.learning_rate,
        seconds=seconds,
        tokens_per_second=figures["forward_tokens"] / seconds,
    )


def reduce_figures(
    kept: list[tuple[torch.Tensor, torch.Tensor]], device: torch.device
) -> tuple[dict[str, float], float]:
    """Sums over micro-batches and ranks (in float64), and the largest deviation; the last stage tells the others."""
    sums = torch.zeros(len(loss.SUMS), dtype=torch.float64, device=device)
    deviation = torch.zeros(1, dtype=torch.float64, device=device)
    if kept:
        sums += torch.stack([part for part, _ in kept]).double().sum(0)
        deviation += torch.stack([part for _, part in kept]).double().max()
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    stages = parallel_state.get_pipeline_model_parallel_group()
    dist.all_reduce(sums, group=group)
    dist.all_reduce(deviation, op=dist.ReduceOp.MAX, group=group)
    if stages.size() > 1:  # only the last stage has figures: a sum over stages is a broadcast
        dist.all_reduce(sums, group=stages)
        dist.all_reduce(deviation, op=dist.ReduceOp.MAX, group=stages)
    return dict(zip(loss.SUMS, sums.tolist(), strict=True)), deviation.item()
