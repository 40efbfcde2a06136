"""The rank's command loop: typed commands in, typed results out, whatever carries them."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch.distributed as dist
from megatron.core import parallel_state

from trainer_svc import commands
from trainer_svc.megatron import checkpoint, device, model, weights
from trainer_svc.megatron.logprobs import compute_logprobs
from trainer_svc.megatron.settings import RankSettings
from trainer_svc.megatron.step import train_step
from trainer_svc.megatron.trainer import Trainer, make_trainer
from trainer_svc.microbatch import MicroBatch

logger = logging.getLogger(__name__)


class Worker:
    """Holds what one rank has loaded. All ranks execute the same commands in the same order."""

    def __init__(self, settings: RankSettings, hardware: device.Device) -> None:
        self._settings = settings
        self._device = hardware
        self._source: Path | None = None  # Hugging Face directory of the loaded model
        self._architecture: model.Architecture | None = None
        self._trainer: Trainer | None = None
        self._step = 0

    def run(self, stream: Iterator[commands.Command], report: Callable[[commands.Result], None]) -> None:
        """Executes commands until Stop or the stream's end. A command that fails is reported, then raised."""
        for command in stream:
            if isinstance(command, commands.Stop):
                return
            try:
                result = self._execute(command, stream)
            except Exception as error:
                report(commands.Failed(message=f"{type(command).__name__}: {type(error).__name__}: {error}"))
                raise
            report(result)

    def _execute(self, command: commands.Command, stream: Iterator[commands.Command]) -> commands.Result:
        """One command; takes its micro-batches from the stream."""
        match command:
            case commands.LoadModel():
                return self._load_model(command)
            case commands.TrainStep():
                done = train_step(self.trainer, command, micro_batches(stream))
                self._step = command.step
                return done
            case commands.Logprobs():
                return commands.LogprobsDone(rows=compute_logprobs(self.trainer, micro_batches(stream)))
            case commands.SaveWeights():
                return self._save_weights(command)
            case commands.SaveCheckpoint():
                checkpoint.save_checkpoint(self.trainer, command.path, self._step, command.extra)
                return commands.CheckpointSaved(path=command.path)
            case commands.LoadCheckpoint():
                self._step, extra = checkpoint.load_checkpoint(self.trainer, command.path)
                return commands.CheckpointLoaded(step=self._step, extra=extra)
            case _:
                raise ValueError("micro-batches must follow TrainStep or Logprobs")

    @property
    def trainer(self) -> Trainer:
        """The loaded model. Raises ValueError before LoadModel."""
        if self._trainer is None:
            raise ValueError("no model is loaded: LoadModel comes first")
        return self._trainer

    def _load_model(self, command: commands.LoadModel) -> commands.ModelLoaded:
        """Builds and fills the model; Adam starts anew."""
        self._trainer = None  # frees the old one first
        architecture = model.read_architecture(command.path)
        gpt = model.build(architecture, self._settings.layout, self._device, self._settings.layer_spec)
        weights.import_weights(gpt, architecture, weights.Reader(command.path))
        self._trainer = make_trainer(gpt, self._device, command.optimizer)
        self._source, self._architecture, self._step = command.path, architecture, 0
        return commands.ModelLoaded(
            parameter_count=architecture.parameter_count,
            vocabulary_size=architecture.vocabulary_size,
            maximum_length=architecture.maximum_length,
        )

    def _save_weights(self, command: commands.SaveWeights) -> commands.WeightsSaved:
        """The first data-parallel replica gathers and writes; all ranks return when the directory is there."""
        trainer = self.trainer
        assert self._architecture is not None
        assert self._source is not None
        if parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0:
            tensors = weights.export_weights(trainer.model, self._architecture)
            if dist.get_rank() == 0:
                weights.write_directory(tensors, self._source, command.path)
        dist.barrier()
        return commands.WeightsSaved(path=command.path)


def micro_batches(stream: Iterator[commands.Command]) -> Iterator[MicroBatch]:
    """The micro-batches up to EndOfBatches. Raises ValueError when something else comes, or the stream ends early."""
    for count, command in enumerate(stream):
        match command:
            case MicroBatch():
                yield command
            case commands.EndOfBatches(micro_batch_count=expected) if expected in (None, count):
                return
            case commands.EndOfBatches(micro_batch_count=expected):
                raise ValueError(f"{count} of {expected} micro-batches arrived")
            case _:
                raise ValueError(f"expected micro-batches, not {type(command).__name__}")
    raise ValueError("the stream ended among micro-batches")
