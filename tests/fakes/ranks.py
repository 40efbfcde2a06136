"""Stands in for the interpreter of the ranks' environment: takes torchrun's command line and runs ranks without torch.

In: `-m torch.distributed.run --nproc-per-node=N ... -m trainer_svc.megatron --driver ADDRESS ...`; the session in the
environment. Each rank is a thread that speaks the real TrainerBackendService over real gRPC through the ranks' own
client. The model is one number, `updates`, kept in weights and checkpoints as real ranks do. `FAKE_RANKS_LOG` names a
file that gets one JSON line per optimizer step; `FAKE_RANKS_DIE_AT` is a step of reinforcement learning that ends it
with exit code 7.
"""

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from whippletree.v1 import backend_pb2

from trainer_svc import commands as c
from trainer_svc.files import replace_directory, replace_text
from trainer_svc.megatron.driver import Driver, DriverLostError
from trainer_svc.microbatch import MicroBatch

LENGTH = 2048
"""Positions of the pretended model."""


def interpreter(folder: Path) -> Path:
    """An executable that behaves as the environment's `python` towards the driver."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.fakes.ranks "$@"\n')
    path.chmod(0o755)
    return path


@dataclass(slots=True)
class World:
    """What the ranks share."""

    size: int
    barrier: threading.Barrier
    batches: dict[int, list[MicroBatch]] = field(default_factory=dict)
    updates: int = 0


def main(arguments: Sequence[str]) -> int:
    """The exit code of torchrun."""
    options = dict(itertools.pairwise(arguments))
    size = int(next(item.partition("=")[2] for item in arguments if item.startswith("--nproc-per-node=")))
    assert arguments[:2] == ["-m", "torch.distributed.run"]
    assert "trainer_svc.megatron" in arguments
    world = World(size=size, barrier=threading.Barrier(size))
    codes = [0] * size

    def run(rank: int) -> None:
        try:
            serve(rank, world, options["--driver"], os.environ[c.SESSION])
        except (DriverLostError, threading.BrokenBarrierError) as error:
            print(f"rank {rank}: {error}", file=sys.stderr)
            world.barrier.abort()
            codes[rank] = 3

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(codes)


def serve(rank: int, world: World, address: str, session: str) -> None:
    """One rank, to Stop."""
    introduction = backend_pb2.StreamCommandsRequest(
        rank=rank, world_size=world.size, data_parallel_rank=rank, data_parallel_size=world.size, session=session
    )
    driver = Driver(address, introduction)
    try:
        stream = driver.commands()
        for command in stream:
            if isinstance(command, c.Stop):
                return
            driver.report(execute(rank, world, command, stream))
    finally:
        driver.close()


def execute(rank: int, world: World, command: c.Command, stream: Iterator[c.Command]) -> c.Result:
    """One command; all ranks meet before and after what they share."""
    match command:
        case c.LoadModel():
            world.updates = 0
            return c.ModelLoaded(parameter_count=1, vocabulary_size=100, maximum_length=LENGTH)
        case c.TrainStep():
            return train(rank, world, command, stream)
        case c.SaveWeights():
            if rank == 0:
                with replace_directory(command.path) as folder:
                    (folder / "config.json").write_text("{}")
                    (folder / "updates").write_text(str(world.updates))
            world.barrier.wait()
            return c.WeightsSaved(path=command.path)
        case c.SaveCheckpoint():
            if rank == 0:
                with replace_directory(command.path) as folder:
                    (folder / "extra").write_bytes(command.extra)
                    (folder / "updates").write_text(str(world.updates))
                replace_text(command.path.parent / "latest", command.path.name)
            world.barrier.wait()
            return c.CheckpointSaved(path=command.path)
        case c.LoadCheckpoint():
            folder = command.path / (command.path / "latest").read_text()
            world.updates = int((folder / "updates").read_text())
            world.barrier.wait()
            return c.CheckpointLoaded(step=world.updates, extra=(folder / "extra").read_bytes())
        case _:
            return c.Failed(message=f"{type(command).__name__} out of turn")


def train(rank: int, world: World, command: c.TrainStep, stream: Iterator[c.Command]) -> c.StepDone:
    """Take the micro-batches, sum over ranks."""
    own: list[MicroBatch] = []
    for item in stream:
        if isinstance(item, c.EndOfBatches):
            assert item.micro_batch_count == len(own)
            break
        assert isinstance(item, MicroBatch)
        own.append(item)
    world.batches[rank] = own
    world.barrier.wait()
    if str(command.step) == os.environ.get("FAKE_RANKS_DIE_AT") and command.loss is c.LossKind.POLICY:
        if rank == 0:
            print("out of memory, says the fake rank", file=sys.stderr, flush=True)
            os._exit(7)
        time.sleep(60)
    batches = [batch for one in range(world.size) for batch in world.batches[one]]
    trained = sum(int(np.count_nonzero(batch.loss_weights)) for batch in batches)
    if rank == 0:
        world.updates += 1
        note(command, batches, {one: len(each) for one, each in world.batches.items()})
    world.barrier.wait()
    return c.StepDone(
        step=command.step,
        loss=float(sum(float(batch.loss_weights.sum()) for batch in batches)),
        gradient_norm=1.0,
        applied=True,
        trained_tokens=trained,
        forward_tokens=sum(batch.token_count for batch in batches),
        ratio_deviation=0.0,
        kl=0.0,
        clip_fraction=0.0,
        entropy=0.0,
        learning_rate=command.learning_rate,
        seconds=0.0,
        tokens_per_second=0.0,
    )


def note(command: c.TrainStep, batches: Sequence[MicroBatch], counts: dict[int, int]) -> None:
    """One line of the log: what this step was given."""
    if (path := os.environ.get("FAKE_RANKS_LOG")) is None:
        return
    line = {
        "step": command.step,
        "loss": command.loss.value,
        "learning_rate": command.learning_rate,
        "rows": sorted(row for batch in batches for row in batch.rows),
        "weight": float(sum(batch.loss_weights.sum() for batch in batches)),
        "signed": float(sum((batch.loss_weights * batch.advantages).sum() for batch in batches)),
        "tokens": max((batch.token_count for batch in batches), default=0),
        "micro_batches": counts,
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
