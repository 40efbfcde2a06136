"""Samples and micro-batches for tests, and short ways to run commands and read gradients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_svc import commands as c
from trainer_svc.microbatch import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One sequence of length T with its target-aligned arrays."""

    name: str
    token_ids: NDArray[np.int32]
    loss_weights: NDArray[np.float32]
    advantages: NDArray[np.float32]
    rollout_logprobs: NDArray[np.float32]


def make_samples(count: int = 7, seed: int = 0, vocabulary: int = 128) -> list[Sample]:
    """Sequences of 3 to 40 tokens; about half of the tokens are trained."""
    generator = np.random.default_rng(seed)
    return [_make_sample(index, int(generator.integers(3, 40)), generator, vocabulary) for index in range(count)]


def _make_sample(index: int, length: int, generator: np.random.Generator, vocabulary: int) -> Sample:
    weights = (generator.random(length) < 0.5) / 50.0
    weights[0], weights[-1] = 0.0, 0.02
    return Sample(
        name=f"s{index}",
        token_ids=generator.integers(0, vocabulary - 2, length).astype(np.int32),
        loss_weights=weights.astype(np.float32),
        advantages=np.full(length, generator.normal(), np.float32),
        rollout_logprobs=np.where(weights != 0, -4.8 + 0.3 * generator.normal(size=length), 0).astype(np.float32),
    )


def pack(samples: Sequence[Sample]) -> MicroBatch:
    """One micro-batch of these samples."""
    ends = np.cumsum([0, *(len(sample.token_ids) for sample in samples)])
    arrays = {
        name: np.concatenate([getattr(sample, name) for sample in samples])
        for name in ("token_ids", "loss_weights", "advantages", "rollout_logprobs")
    }
    return MicroBatch(cu_seqlens=ends.astype(np.int32), rows=tuple(sample.name for sample in samples), **arrays)


def pack_under(samples: Iterable[Sample], cap: int) -> list[MicroBatch]:
    """Micro-batches of at most `cap` tokens, in order; a longer sample stands alone."""
    groups: list[list[Sample]] = [[]]
    for sample in samples:
        if groups[-1] and sum(len(other.token_ids) for other in groups[-1]) + len(sample.token_ids) > cap:
            groups.append([])
        groups[-1].append(sample)
    return [pack(group) for group in groups]


def step_command(loss: c.LossKind = c.LossKind.SFT, step: int = 1) -> c.TrainStep:
    """A step with a learning rate that moves the weights visibly."""
    return c.TrainStep(step=step, loss=loss, learning_rate=1e-2)


def train_commands(micro_batches: Sequence[MicroBatch], command: c.TrainStep) -> list[c.Command]:
    """The command, its micro-batches and their end."""
    return [command, *micro_batches, c.EndOfBatches(micro_batch_count=len(micro_batches))]


def execute(worker: Any, *commands: c.Command) -> list[c.Result]:
    """Runs the commands on a worker; the results."""
    results: list[c.Result] = []
    worker.run(iter(commands), results.append)
    return results


def load_worker(path: Path, layout: Any = None) -> Any:
    """A worker of this process that has loaded a model."""
    from trainer_svc.megatron.device import find_device
    from trainer_svc.megatron.settings import Layout, RankSettings
    from trainer_svc.megatron.worker import Worker

    worker = Worker(RankSettings(layout=layout or Layout()), find_device())
    execute(worker, c.LoadModel(path=path))
    return worker


def gradients(worker: Any, path: Path, micro_batches: Sequence[MicroBatch], loss: c.LossKind) -> dict[str, Any]:
    """The step's gradient before clipping, by Hugging Face names."""
    from trainer_svc.megatron.model import read_architecture
    from trainer_svc.megatron.step import accumulate_gradients
    from trainer_svc.megatron.trainer import to_batches
    from trainer_svc.megatron.weights import export_weights

    trainer = worker.trainer
    accumulate_gradients(trainer, step_command(loss), to_batches(trainer, micro_batches))
    tensors = export_weights(trainer.model, read_architecture(path), lambda parameter: parameter.main_grad)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def largest_difference(left: dict[str, Any], right: dict[str, Any]) -> float:
    """The largest relative difference (L2 norm) of any tensor."""
    assert left.keys() == right.keys()
    return max(float(np.linalg.norm(left[name] - right[name]) / np.linalg.norm(left[name])) for name in left)
