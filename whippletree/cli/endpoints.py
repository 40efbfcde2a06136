"""`endpoints.json`: where the running system is. Written by `up`, whole or not at all; read by every other command."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Addresses of all parts. `host:port` but for `api` and `engine`, which are URLs."""

    api: str
    """Base URL of everything, served by Envoy: harnesses, REST, gRPC."""
    envoy: str
    gateway: str
    bridge: str
    controller: str
    engine: str
    model: str
    """Id of the model."""
    model_path: str
    """Absolute; the weights the engine started with, tokenizer and chat template."""
    record: str
    """Absolute path of the gateway's store."""
    pid: int
    """The process that supervises."""
    pids: dict[str, int]
    """Process id of every part that this system started."""
    metrics: dict[str, str] = field(default_factory=dict)
    """URL of every part's metrics, for Prometheus."""


def path(run_dir: Path) -> Path:
    """Where the file lies."""
    return run_dir / "endpoints.json"


def write(run_dir: Path, endpoints: Endpoints) -> None:
    """Replace the file."""
    target = path(run_dir)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(endpoints), indent=2) + "\n")
    temporary.replace(target)


def read(run_dir: Path) -> Endpoints | None:
    """The file's content; None where there is none, or where the process that wrote it is gone."""
    try:
        found = Endpoints(**json.loads(path(run_dir).read_text()))
        os.kill(found.pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except (TypeError, ValueError):
        return None
    return found
