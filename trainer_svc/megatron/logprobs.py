"""Log-probabilities of given tokens under the present weights."""

from collections.abc import Iterable

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state

from trainer_svc.commands import RowLogprobs
from trainer_svc.megatron.batch import Batch, target_aligned
from trainer_svc.megatron.loss import token_logprobs
from trainer_svc.megatron.trainer import Trainer, run_passes, to_batches
from trainer_svc.microbatch import Float32Array, MicroBatch


@torch.no_grad()
def compute_logprobs(trainer: Trainer, micro_batches: Iterable[MicroBatch]) -> tuple[RowLogprobs, ...]:
    """Of every sequence, target-aligned; tensor, pipeline and context peers answer the same."""
    given = list(micro_batches)
    batches = to_batches(trainer, given, every_token=True)

    def loss_function(batch: Batch, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        values = token_logprobs(logits[0], batch.labels)
        return values.sum(), torch.zeros((), dtype=torch.int, device=logits.device), values

    trainer.model.eval()
    kept: list[torch.Tensor] = run_passes(trainer, batches, loss_function, train=False)
    values = _gather(kept, batches, [micro_batch.token_count for micro_batch in given], trainer.device.torch_device)
    return tuple(row for pair in zip(given, values, strict=True) for row in _rows(*pair))


def _rows(micro_batch: MicroBatch, logprobs: Float32Array) -> list[RowLogprobs]:
    """[T] -> one entry per sequence."""
    pieces = np.split(logprobs, micro_batch.cu_seqlens[1:-1]) if micro_batch.sequence_count else []
    names = micro_batch.rows or ("",) * len(pieces)
    return [RowLogprobs(row=name, logprobs=piece) for name, piece in zip(names, pieces, strict=True)]


def _gather(
    kept: list[torch.Tensor], batches: list[Batch], token_counts: list[int], device: torch.device
) -> tuple[Float32Array, ...]:
    """Adds up what context ranks and the last stage hold: every place has one rank with a value, the others 0."""
    own = np.zeros(sum(token_counts), np.float32)
    if kept and token_counts:
        parts = [target_aligned(*part) for part in zip(kept, batches, token_counts, strict=True)]
        own = np.concatenate(parts)
    values = torch.from_numpy(own).to(device)
    for group in (parallel_state.get_context_parallel_group(), parallel_state.get_pipeline_model_parallel_group()):
        if group.size() > 1:
            dist.all_reduce(values, group=group)
    return tuple(np.split(values.cpu().numpy(), np.cumsum(token_counts)[:-1])) if token_counts else ()
