"""Checkpoints: model, Adam and the driver's own bytes, in megatron's torch_dist format, which reshards.

A checkpoint is a directory that appears complete or not at all; `latest` beside it names the newest one.
Left to itself, megatron forks a process for each file, and starts a server process to carry their results. A process
forked beside the threads of gRPC may die before it has written, and the save then waits for it without end; the server
outlives a killed rank. `write_in_this_process` spares both.
"""

import queue
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

from trainer_svc.files import flush_directory, replace_text, swap_directory
from trainer_svc.megatron.trainer import Trainer
from trainer_svc.megatron.weights import unwrap

EXTRA = "extra.bin"
LATEST = "latest"


def write_in_this_process() -> None:
    """Lets megatron's writer write its files here, one after another, and answer through a plain queue."""
    filesystem_async._results_queue = queue.Queue()
    FileSystemWriterAsync.write_preloaded_data_multiproc = staticmethod(_write_buckets)


def _write_buckets(
    transforms: list[Any], use_msc: bool, rank: int, buckets: list[Any], results: "queue.Queue[Any]"
) -> None:
    """Stands for megatron's `write_preloaded_data_multiproc`: results by bucket, or the exception, into `results`."""
    written: dict[int, Any] = {}
    for index, bucket in enumerate(buckets):
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        open_tasks: queue.Queue[int] = queue.Queue()  # the writer takes its task off when it is done
        open_tasks.put(index)
        FileSystemWriterAsync.write_preloaded_data(
            transforms, index, bucket, answers, open_tasks, use_fsync=True, use_msc=use_msc
        )
        _, answer = answers.get_nowait()
        if isinstance(answer, Exception):
            results.put(answer)
            return
        written[index] = answer
    results.put(written)


def save_checkpoint(trainer: Trainer, path: Path, step: int, extra: bytes) -> None:
    """A collective of all ranks; returns when the checkpoint is on disk and is the latest."""
    temporary = _temporary_directory(path)
    write_in_this_process()
    try:
        dist_checkpointing.save({**_sharded_state(trainer, is_loading=False), "step": step}, str(temporary))
        dist.barrier()
        if dist.get_rank() == 0:
            (temporary / EXTRA).write_bytes(extra)
            flush_directory(temporary)
            swap_directory(temporary, path)
            replace_text(path.parent / LATEST, path.name)
    except BaseException:
        if dist.get_rank() == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    dist.barrier()


def load_checkpoint(trainer: Trainer, path: Path) -> tuple[int, bytes]:
    """(step, extra) of the checkpoint, with model and optimizer restored. A collective of all ranks."""
    directory = find_checkpoint(path)
    state: dict[str, Any] = dist_checkpointing.load(
        {**_sharded_state(trainer, is_loading=True), "step": 0}, str(directory)
    )
    unwrap(trainer.model).load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    return int(state["step"]), (directory / EXTRA).read_bytes()


def find_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or the one that `latest` in this folder names. Raises FileNotFoundError without one."""
    latest = path / LATEST
    directory = path / latest.read_text().strip() if latest.exists() else path
    if not (directory / EXTRA).exists():
        raise FileNotFoundError(f"no checkpoint in {path}")
    return directory


def _sharded_state(trainer: Trainer, *, is_loading: bool) -> dict[str, Any]:
    """Megatron's description of what this rank holds."""
    state = {"model": unwrap(trainer.model).sharded_state_dict()}
    state["optimizer"] = trainer.optimizer.sharded_state_dict(state, is_loading=is_loading)
    return state


def _temporary_directory(path: Path) -> Path:
    """A fresh directory beside `path` that every rank knows."""
    names: list[str | None] = [None]
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = [tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)]
    dist.broadcast_object_list(names)
    assert names[0] is not None
    return Path(names[0])
