"""What a part is: its command line, where it listens, how one sees that it is ready."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from whippletree.cli.health import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One program of the system. Started again with the same command, so it must find its state by itself."""

    name: str
    """Short, such as `gateway`; names the log file."""
    command: tuple[str, ...]
    """Program and arguments."""
    ready: Check
    """Asked until it says yes."""
    address: str
    """host:port where it listens."""
    port_setting: str
    """The option that moves it to another port, named where the port is taken."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to ours."""
    patience: float = 60.0
    """Seconds until it must be ready."""
    grace: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""

    @property
    def port(self) -> int:
        """The port of `address`."""
        return int(self.address.rpartition(":")[2])


def log_path(run_dir: Path, name: str) -> Path:
    """The log file of a part."""
    return run_dir / "logs" / f"{name}.log"


def keep_previous(path: Path) -> None:
    """Rename the log of the last time to NAME.log.1."""
    if path.is_file():
        path.replace(path.with_suffix(".log.1"))


def tail(path: Path, lines: int = 15, limit: int = 16_384) -> str:
    """The last `lines` lines of a log file, from at most its last `limit` bytes; empty where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - limit))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
