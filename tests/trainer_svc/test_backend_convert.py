"""Commands and results survive the wire."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from whippletree.v1 import backend_pb2

from trainer_svc import commands as c
from trainer_svc.backend_convert import (
    command_from_message,
    command_to_message,
    result_from_message,
    result_to_message,
)
from trainer_svc.microbatch import MicroBatch, empty_micro_batch

TRAIN = c.TrainStep(
    step=7,
    loss=c.LossKind.POLICY,
    config=c.LossConfig(clip_low=0.1, clip_high=0.3, dual_clip=3.0),
    learning_rate=7e-4,
    clip_norm=0.5,
)
SUPERVISED = c.TrainStep(step=1, loss=c.LossKind.SFT, learning_rate=3e-3)
LOAD = c.LoadModel(path=Path("/m"), optimizer=c.OptimizerSettings(beta2=0.99, weight_decay=0.01))
DONE = c.StepDone(
    step=7,
    loss=-0.25,
    gradient_norm=1.5,
    applied=True,
    trained_tokens=2**30,
    forward_tokens=5,
    ratio_deviation=1e-5,
    kl=1e-9,
    clip_fraction=0.25,
    entropy=1.25,
    learning_rate=7e-4,
    seconds=0.5,
    tokens_per_second=10.0,
)
COMMANDS: list[c.Command] = [
    LOAD,
    TRAIN,
    SUPERVISED,
    c.EndOfBatches(micro_batch_count=3),
    c.EndOfBatches(),
    c.SaveWeights(path=Path("/w")),
    c.SaveCheckpoint(path=Path("/c"), extra=b"\x00\xff"),
    c.LoadCheckpoint(path=Path("/c")),
    c.Logprobs(),
    c.Stop(),
]
RESULTS: list[tuple[c.Command, c.Result]] = [
    (TRAIN, DONE),
    (TRAIN, c.Failed(message="out of memory")),
    (LOAD, c.ModelLoaded(parameter_count=7_615_616_512, vocabulary_size=704, maximum_length=512)),
    (c.SaveWeights(path=Path("/w")), c.WeightsSaved(path=Path("/w"))),
    (c.SaveCheckpoint(path=Path("/c")), c.CheckpointSaved(path=Path("/c"))),
    (c.LoadCheckpoint(path=Path("/c")), c.CheckpointLoaded(step=3, extra=b"\x00\xff")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_survives_the_wire(command: c.Command) -> None:
    data = command_to_message(5, command).SerializeToString()
    message = backend_pb2.StreamCommandsResponse.FromString(data)
    assert message.command_id == 5
    assert command_from_message(message) == command


@pytest.mark.parametrize(("command", "result"), RESULTS, ids=lambda value: type(value).__name__)
def test_a_result_survives_the_wire(command: c.Command, result: c.Result) -> None:
    data = result_to_message(5, 1, "s", result).SerializeToString()
    message = backend_pb2.ReportResultRequest.FromString(data)
    assert (message.command_id, message.rank, message.session) == (5, 1, "s")
    assert result_from_message(message, command) == result


@pytest.mark.parametrize("supervised", [False, True])
def test_a_micro_batch_survives_the_wire(supervised: bool) -> None:
    zeros = np.zeros(3, np.float32)
    micro_batch = MicroBatch(
        token_ids=np.array([1, 2**31 - 1, 0], np.int32),
        cu_seqlens=np.array([0, 2, 3], np.int32),
        loss_weights=np.array([0, 1e-38, 0], np.float32),
        advantages=zeros if supervised else np.array([1, -1, 0.5], np.float32),
        rollout_logprobs=zeros if supervised else np.array([0, -3.25, 0], np.float32),
        rows=("r-1/0", "r-2/0"),
    )
    message = command_to_message(1, micro_batch)
    assert bool(message.micro_batch.advantages) is not supervised
    _assert_equal(command_from_message(message), micro_batch)


def test_an_empty_micro_batch_survives_the_wire() -> None:
    _assert_equal(command_from_message(command_to_message(1, empty_micro_batch())), empty_micro_batch())


def test_logprobs_survive_the_wire() -> None:
    rows = (c.RowLogprobs(row="a", logprobs=np.array([0, -1.5], np.float32)),)
    answer = result_from_message(result_to_message(1, 0, "s", c.LogprobsDone(rows=rows)), c.Logprobs())
    assert isinstance(answer, c.LogprobsDone)
    assert answer.rows[0].row == "a"
    assert answer.rows[0].logprobs.tolist() == [0, -1.5]


@pytest.mark.parametrize(
    "message",
    [
        backend_pb2.StreamCommandsResponse(),
        backend_pb2.StreamCommandsResponse(train_step=backend_pb2.TrainStep(step=1)),
    ],
    ids=["no command", "a step without a loss"],
)
def test_an_unknown_message_is_refused(message: backend_pb2.StreamCommandsResponse) -> None:
    with pytest.raises(ValueError, match=r"unknown command|names no loss"):
        command_from_message(message)


def _assert_equal(left: c.Command, right: MicroBatch) -> None:
    assert isinstance(left, MicroBatch)
    for field in fields(MicroBatch):
        ours, theirs = getattr(left, field.name), getattr(right, field.name)
        assert np.array_equal(ours, theirs), field.name
        assert type(ours) is type(theirs)
