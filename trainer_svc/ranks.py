"""The ranks as the loop sees them: starts them under torchrun, speaks to them by type, ends them.

The driver serves TrainerBackendService on loopback; torchrun's workers call it. The whole tree of processes runs under
a keeper (`whippletree/keeper.py`) that ends it when the driver dies in whatever way.
"""

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from trainer_svc.backend import Backend, RanksError
from trainer_svc.commands import (
    SESSION,
    CheckpointLoaded,
    Command,
    LoadCheckpoint,
    LoadModel,
    ModelLoaded,
    OptimizerSettings,
    SaveCheckpoint,
    SaveWeights,
    StepDone,
    TrainStep,
)
from trainer_svc.config import BackendSection
from trainer_svc.microbatch import MicroBatch
from trainer_svc.servicers.backend import service
from whippletree import keeper
from whippletree.serve import listening

GRACE = 10.0
"""Seconds that ranks have to end by themselves, and again after SIGTERM."""
TAIL = 4000
"""Bytes of the log that an error shows at most."""

R = TypeVar("R")


class Ranks:
    """Commands to all ranks of one generation, one at a time. Every method raises RanksError where a rank fails."""

    def __init__(self, backend: Backend, section: BackendSection) -> None:
        self._backend = backend
        self._section = section

    async def load(self, path: Path, optimizer: OptimizerSettings) -> ModelLoaded:
        """Build the model of a Hugging Face directory, with a fresh optimizer."""
        await self._backend.connected(self._section.start_timeout)
        return await self._one(LoadModel(path=path, optimizer=optimizer), ModelLoaded)

    async def train(self, step: TrainStep, batches: Sequence[Sequence[MicroBatch]]) -> StepDone:
        """One optimizer step; `batches[d]` are the micro-batches of data-parallel position d."""
        return await self._one(step, StepDone, batches)

    async def save_weights(self, path: Path) -> None:
        """Write a Hugging Face directory, whole or not at all."""
        await self._execute(SaveWeights(path=path))

    async def save_checkpoint(self, path: Path, extra: bytes) -> None:
        """Write model, optimizer and the driver's state, whole or not at all."""
        await self._execute(SaveCheckpoint(path=path, extra=extra))

    async def load_checkpoint(self, path: Path) -> CheckpointLoaded:
        """Read a checkpoint, or the one that `latest` in this folder names."""
        return await self._one(LoadCheckpoint(path=path), CheckpointLoaded)

    async def _one(self, command: Command, kind: type[R], batches: Sequence[Sequence[MicroBatch]] | None = None) -> R:
        """The first rank's result."""
        results = await self._execute(command, batches)
        result = results[0]
        if not isinstance(result, kind):
            raise RanksError(f"rank 0 answered {type(command).__name__} with {type(result).__name__}")
        return result

    async def _execute(
        self, command: Command, batches: Sequence[Sequence[MicroBatch]] | None = None
    ) -> Mapping[int, object]:
        return await self._backend.execute(command, batches, patience=self._section.command_timeout)


@asynccontextmanager
async def started(section: BackendSection, *, python: Path, listen: str, seed: int, log: Path) -> AsyncIterator[Ranks]:
    """Ranks that start now and end with the block; they build their model while the caller goes on."""
    world_size = section.data_parallel * section.tensor * section.pipeline * section.context
    backend = Backend(secrets.token_hex(16), world_size, section.data_parallel)
    async with listening([service(backend)], listen, grace=1.0) as port:
        host = listen.rpartition(":")[0]
        command = rank_command(section, python, f"{host}:{port}", seed)
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(GRACE), "--"),
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=file,
                env={**environment(), SESSION: backend.session},
                start_new_session=True,  # a Ctrl-C in the terminal is the driver's to pass on
            )
        watcher = asyncio.create_task(_watch(process, backend, log))
        try:
            yield Ranks(backend, section)
        finally:
            await asyncio.shield(_end(process, backend, watcher))


def rank_command(section: BackendSection, python: Path, driver: str, seed: int) -> list[str]:
    """torchrun on this machine, one process per rank, no restarts: a rank that dies ends the run with a clear error."""
    ranks = section.data_parallel * section.tensor * section.pipeline * section.context
    return [
        *(str(python.absolute()), "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--max-restarts=0"),
        *("--master-addr=127.0.0.1", f"--master-port={_free_port()}", "-m", "trainer_svc.megatron"),
        *("--driver", driver, "--seed", str(seed)),
        *("--tensor", str(section.tensor), "--pipeline", str(section.pipeline), "--context", str(section.context)),
    ]


def environment() -> dict[str, str]:
    """Ours, with one thread per rank and compiled modules kept: compiling torch anew costs half a minute a start."""
    dropped = {"PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTHONHOME"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return {"OMP_NUM_THREADS": "1", **kept}


async def _watch(process: asyncio.subprocess.Process, backend: Backend, log: Path) -> None:
    """Fail the backend when the processes end."""
    code = await process.wait()
    await asyncio.sleep(0.2)  # a rank's own report, on its way, says more
    backend.fail(f"the ranks ended with exit code {code}; the end of {log}:\n{tail(log)}")


async def _end(process: asyncio.subprocess.Process, backend: Backend, watcher: asyncio.Task[None]) -> None:
    """Ask, then insist; the keeper leaves nothing behind."""
    watcher.cancel()
    if not backend.failure:
        await backend.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()
    if process.returncode is None:
        process.terminate()
        await process.wait()


def tail(path: Path, size: int = TAIL) -> str:
    """The last lines of a file, at most `size` bytes."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace").strip() or "(empty)"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
