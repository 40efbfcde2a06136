"""The command line that serves a model with SGLang: with our launcher on a CPU, stock on a CUDA machine.

In: where the model is, where to listen, which device. Out: program, arguments and environment; nothing is started here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whippletree.cli.project import ROOT

Device = Literal["auto", "cpu", "cuda"]
CPU_FOLDER = ROOT / "deploy" / "engine" / "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """What to run; `environment` is added to the caller's own."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]


def cuda_device_present() -> bool:
    """Whether this machine shows a CUDA device; asks the driver's files, so that torch need not be imported."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def engine_command(
    model_dir: Path,
    *,
    port: int,
    python: Path,
    device: str = "auto",
    host: str = "127.0.0.1",
    max_total_tokens: int = 32_768,
    max_running_requests: int = 64,
    extra: tuple[str, ...] = (),
    cuda_present: Callable[[], bool] = cuda_device_present,
) -> EngineCommand:
    """Compose the launch of SGLang for a model on disk.

    `max_total_tokens` (tokens in the key-value cache; without it a CPU server takes 13 GB) and `max_running_requests`
    bound a CPU server; a CUDA server sizes itself. `extra` is appended and wins. Raises ValueError for
    an unknown device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is auto, cpu or cuda, not {device}")
    where = ("--model-path", str(model_dir), "--host", host, "--port", str(port))
    if device == "cuda" or (device == "auto" and cuda_present()):
        argv = (str(python), "-m", "sglang.launch_server", *where, "--skip-server-warmup", *extra)
        return EngineCommand(argv=argv, environment=ENVIRONMENT)
    limits = ("--max-total-tokens", str(max_total_tokens), "--max-running-requests", str(max_running_requests))
    argv = (str(python), str(CPU_FOLDER / "launch.py"), *where, *CPU_OPTIONS, *limits, *extra)
    return EngineCommand(argv=argv, environment=ENVIRONMENT | CPU_ENVIRONMENT)


CPU_OPTIONS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
    "--sleep-on-idle",  # else an idle scheduler keeps a core busy
    "--skip-server-warmup",  # nothing is compiled, so there is nothing to warm
    *("--log-level", "warning"),  # one line per batch and per request otherwise
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # the model is a folder: nothing is asked of a hub
    "PYTHONDONTWRITEBYTECODE": "",  # where it is set, every start compiles 8,000 modules anew: 20 CPU-seconds
}
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "CUDA_VISIBLE_DEVICES": "",  # `device = cpu` on a CUDA machine
    "OMP_NUM_THREADS": "1",  # twice as fast as one thread per core, and leaves the other cores to others
    "TOKENIZERS_PARALLELISM": "false",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "whippletree_engine_models",
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # else /health takes a second and a generated token
}
