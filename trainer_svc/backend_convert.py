"""Backend messages <-> commands, micro-batches and results. Both ends of the wire use it; nothing is lost on the way.

Arrays travel as packed little-endian bytes; an array of zeros travels as no bytes.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from whippletree.v1 import backend_pb2 as pb

from trainer_svc import commands as c
from trainer_svc.microbatch import Float32Array, MicroBatch
from whippletree.tokens import pack_floats, pack_ids, unpack_floats, unpack_ids

STEP_FIELDS = {field.name: field.type for field in fields(c.StepDone)}
MODEL_FIELDS = {field.name: field.type for field in fields(c.ModelLoaded)}
R = TypeVar("R")


def command_to_message(command_id: int, command: c.Command) -> pb.StreamCommandsResponse:
    """One message of a rank's stream."""
    message = pb.StreamCommandsResponse(command_id=command_id)
    match command:
        case MicroBatch():
            message.micro_batch.CopyFrom(micro_batch_to_message(command))
        case c.TrainStep():
            message.train_step.CopyFrom(_train_step_to_message(command))
        case c.EndOfBatches():
            message.micro_batches_end.micro_batch_count = command.micro_batch_count or 0
        case c.LoadModel():
            adam = command.optimizer
            message.load_weights.path = str(command.path)
            message.load_weights.optimizer.CopyFrom(
                pb.OptimizerConfig(
                    beta1=adam.beta1, beta2=adam.beta2, epsilon=adam.epsilon, weight_decay=adam.weight_decay
                )
            )
        case c.SaveWeights():
            message.save_weights.path = str(command.path)
        case c.SaveCheckpoint():
            message.save_checkpoint.CopyFrom(pb.SaveCheckpoint(path=str(command.path), extra=command.extra))
        case c.LoadCheckpoint():
            message.load_checkpoint.path = str(command.path)
        case c.Logprobs():
            message.logprobs.SetInParent()
        case c.Stop():
            message.stop.SetInParent()
    return message


def command_from_message(message: pb.StreamCommandsResponse) -> c.Command:
    """The command. Raises ValueError for a kind that this version does not know."""
    kind = message.WhichOneof("command")
    match kind:
        case "micro_batch":
            return micro_batch_from_message(message.micro_batch)
        case "train_step":
            return _train_step_from_message(message.train_step)
        case "micro_batches_end":
            return c.EndOfBatches(micro_batch_count=message.micro_batches_end.micro_batch_count or None)
        case "load_weights":
            return _load_model(message.load_weights)
        case "save_weights":
            return c.SaveWeights(path=Path(message.save_weights.path))
        case "save_checkpoint":
            return c.SaveCheckpoint(path=Path(message.save_checkpoint.path), extra=message.save_checkpoint.extra)
        case "load_checkpoint":
            return c.LoadCheckpoint(path=Path(message.load_checkpoint.path))
        case "logprobs":
            return c.Logprobs()
        case "stop":
            return c.Stop()
        case _:
            raise ValueError(f"unknown command in message {message.command_id}")


def micro_batch_to_message(batch: MicroBatch) -> pb.MicroBatch:
    """A micro-batch as packed bytes."""
    return pb.MicroBatch(
        token_ids=pack_ids(batch.token_ids),
        cu_seqlens=pack_ids(batch.cu_seqlens),
        loss_weights=pack_floats(batch.loss_weights),
        advantages=_pack_sparse(batch.advantages),
        rollout_logprobs=_pack_sparse(batch.rollout_logprobs),
        rows=batch.rows,
    )


def micro_batch_from_message(message: pb.MicroBatch) -> MicroBatch:
    """A micro-batch. Raises ValueError when the arrays do not fit together."""
    token_ids = unpack_ids(message.token_ids)
    return MicroBatch(
        token_ids=token_ids,
        cu_seqlens=unpack_ids(message.cu_seqlens),
        loss_weights=unpack_floats(message.loss_weights),
        advantages=_unpack_sparse(message.advantages, len(token_ids)),
        rollout_logprobs=_unpack_sparse(message.rollout_logprobs, len(token_ids)),
        rows=tuple(message.rows),
    )


def _pack_sparse(values: Float32Array) -> bytes:
    return pack_floats(values) if values.any() else b""


def _unpack_sparse(data: bytes, length: int) -> Float32Array:
    return unpack_floats(data) if data else np.zeros(length, np.float32)


def _train_step_to_message(command: c.TrainStep) -> pb.TrainStep:
    message = pb.TrainStep(step=command.step, learning_rate=command.learning_rate, clip_grad_norm=command.clip_norm)
    if command.loss is c.LossKind.SFT:
        message.supervised.SetInParent()
        return message
    config = command.config
    message.policy.CopyFrom(
        pb.PolicyLoss(clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip or 0.0)
    )
    return message


def _train_step_from_message(message: pb.TrainStep) -> c.TrainStep:
    kind, config = c.LossKind.SFT, c.LossConfig()
    match message.WhichOneof("loss"):
        case "policy":
            policy = message.policy
            kind = c.LossKind.POLICY
            config = c.LossConfig(
                clip_low=policy.clip_low, clip_high=policy.clip_high, dual_clip=policy.dual_clip or None
            )
        case None:
            raise ValueError(f"step {message.step} names no loss that this version knows")
    return c.TrainStep(
        step=message.step,
        loss=kind,
        config=config,
        learning_rate=message.learning_rate,
        clip_norm=message.clip_grad_norm,
    )


def _load_model(message: pb.LoadWeights) -> c.LoadModel:
    """Without optimizer settings the defaults hold."""
    if not message.HasField("optimizer"):
        return c.LoadModel(path=Path(message.path))
    adam = message.optimizer
    settings = c.OptimizerSettings(
        beta1=adam.beta1, beta2=adam.beta2, epsilon=adam.epsilon, weight_decay=adam.weight_decay
    )
    return c.LoadModel(path=Path(message.path), optimizer=settings)


def result_to_message(command_id: int, rank: int, session: str, result: c.Result) -> pb.ReportResultRequest:
    """A rank's report."""
    message = pb.ReportResultRequest(command_id=command_id, rank=rank, session=session)
    match result:
        case c.Failed():
            message.error = result.message or "failed without a message"
        case c.StepDone():
            message.metrics.update({name: float(getattr(result, name)) for name in STEP_FIELDS})
        case c.ModelLoaded():
            message.metrics.update({name: getattr(result, name) for name in MODEL_FIELDS})
        case c.LogprobsDone():
            message.row_logprobs.extend(
                pb.RowLogprobs(row=row.row, logprobs=pack_floats(row.logprobs)) for row in result.rows
            )
        case c.CheckpointLoaded():
            message.extra = result.extra
            message.metrics["step"] = result.step
    return message


def _from_figures(kind: Callable[..., R], types: Mapping[str, Any], figures: Mapping[str, float]) -> R:
    """A result whose fields all are numbers. Raises KeyError when one is missing."""
    return kind(**{name: number(figures[name]) for name, number in types.items()})


def result_from_message(message: pb.ReportResultRequest, command: c.Command) -> c.Result:
    """The result of `command`. Raises ValueError for a command that has none, KeyError when a figure is missing."""
    if message.error:
        return c.Failed(message=message.error)
    figures = message.metrics
    match command:
        case c.TrainStep():
            return _from_figures(c.StepDone, STEP_FIELDS, figures)
        case c.LoadModel():
            return _from_figures(c.ModelLoaded, MODEL_FIELDS, figures)
        case c.Logprobs():
            rows = message.row_logprobs
            return c.LogprobsDone(
                rows=tuple(c.RowLogprobs(row=row.row, logprobs=unpack_floats(row.logprobs)) for row in rows)
            )
        case c.SaveWeights():
            return c.WeightsSaved(path=command.path)
        case c.SaveCheckpoint():
            return c.CheckpointSaved(path=command.path)
        case c.LoadCheckpoint():
            return c.CheckpointLoaded(step=round(figures["step"]), extra=message.extra)
        case _:
            raise ValueError(f"{type(command).__name__} has no result")
