"""The trainer of a rank: model, gradient buffers and optimizer, and how micro-batches run through them.

Megatron's schedule runs the passes; its DDP and `finalize_model_grads` sum the gradients. Nothing is averaged:
`calculate_per_token_loss` turns off the division by ranks, and no token count is handed on to divide by.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module

from trainer_svc.commands import OptimizerSettings
from trainer_svc.megatron.batch import Batch, make_batch
from trainer_svc.megatron.device import Device
from trainer_svc.microbatch import MicroBatch, empty_micro_batch

LossFunction = Callable[[torch.Tensor], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trainer:
    """A model ready to train on this rank."""

    model: Any  # DistributedDataParallel
    optimizer: MegatronOptimizer
    device: Device
    output: "OutputPositions"


class OutputPositions:
    """Sends only the wanted positions through the output layer; `wanted` is set before each forward pass."""

    def __init__(self, model: GPTModel) -> None:
        self.wanted: torch.Tensor | None = None  # [N]
        if model.post_process:
            model.output_layer.register_forward_pre_hook(self._select)

    def _select(self, _layer: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """[L, 1, hidden] -> [N, 1, hidden]."""
        assert self.wanted is not None
        return (args[0].index_select(0, self.wanted), *args[1:])


def make_trainer(model: GPTModel, device: Device, settings: OptimizerSettings) -> Trainer:
    """Wraps a model that holds its weights with gradient buffers and a fresh Adam."""
    config = model.config
    config.finalize_model_grads_func = sum_gradients
    output = OutputPositions(model)
    wrapped = Float16Module(config, model) if device.is_cuda else model
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=False)
    ddp = DistributedDataParallel(config, ddp_config, wrapped)
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=0.0,  # comes with each step
        weight_decay=settings.weight_decay,
        adam_beta1=settings.beta1,
        adam_beta2=settings.beta2,
        adam_eps=settings.epsilon,
        bf16=device.is_cuda,
        params_dtype=device.dtype,
    )
    optimizer = get_megatron_optimizer(optimizer_config, [ddp])
    for group in optimizer.param_groups:
        group["fused"] = True  # torch's one-pass Adam, on CPU and GPU
    return Trainer(model=ddp, optimizer=optimizer, device=device, output=output)


def sum_gradients(model: list[Any], _num_tokens: torch.Tensor | None = None, **kwargs: Any) -> None:
    """Sums gradients over the ranks that share parameters, without dividing by a number of tokens."""
    finalize_model_grads(model, None, **kwargs)


def context_rank() -> tuple[int, int]:
    """(size, rank) of context parallelism."""
    return parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()


def run_passes(
    trainer: Trainer, batches: list[Batch], loss_function: Callable[[Batch, torch.Tensor], Any], train: bool
) -> list[Any]:
    """Runs every micro-batch forward, and backward when training; what the loss function kept, on the last stage."""

    def forward_step(iterator: Iterator[Batch], model: Any) -> tuple[torch.Tensor, LossFunction]:
        batch = next(iterator)
        trainer.output.wanted = batch.wanted
        out = model(batch.token_ids, batch.position_ids, None, packed_seq_params=batch.packed)
        return out, partial(loss_function, batch)

    kept: list[Any] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(batches),
        model=[trainer.model],
        num_microbatches=len(batches),
        seq_length=1,  # read from the tensors, because variable_seq_lengths is set
        micro_batch_size=1,
        forward_only=not train,
    )
    return kept


def to_batches(trainer: Trainer, micro_batches: Iterable[MicroBatch], *, every_token: bool = False) -> list[Batch]:
    """The rank's tensors; a rank without any still runs one empty micro-batch, and so joins the gradient's sum."""
    size, rank = context_rank()
    given = list(micro_batches) or [empty_micro_batch()]
    return [
        make_batch(
            micro_batch, trainer.device.torch_device, every_token=every_token, context_size=size, context_rank=rank
        )
        for micro_batch in given
    ]
