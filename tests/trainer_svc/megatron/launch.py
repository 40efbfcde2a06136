"""Starts torchrun and ends all of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer_svc.commands import SESSION

ROOT = Path(__file__).parents[3]
HANG_SECONDS = 900  # nothing here takes long; what takes this long hangs


@contextmanager
def torchrun(processes: int, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running torchrun of `processes` ranks, its output in `log`; whatever is left of it is killed at the end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    environment |= {SESSION: "test"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills torchrun and its ranks at once, as a lost machine would."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
