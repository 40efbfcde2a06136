"""What measurements need of the machine: processes, their memory and processor time, percentiles."""

import asyncio
import contextlib
import os
import platform
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def program(module: str, *arguments: str) -> AsyncIterator[tuple[str, Process]]:
    """`python -m MODULE ARGUMENTS` while the block runs; yields the address that it prints, and the process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode().strip()
        if not line.startswith("listening on "):
            raise RuntimeError(f"{module} did not start: {line!r}")
        yield line.removeprefix("listening on "), process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int, what: str = "VmRSS") -> float:
    """Resident memory of a process, MB of 2^20 bytes; `VmHWM` = the most it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def used_bytes(database: Path) -> int:
    """Bytes of pages in use in a SQLite file that another process has open; its log is moved into it first."""
    with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        pages, free, page = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * page)


def loop_ms() -> float:
    """Processor time of a million turns of a loop: how much a second of it is worth now. Busy neighbours double it."""
    begin = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number * number
    return round(1000 * (time.process_time() - begin), 1)


def described() -> dict[str, object]:
    """The machine, for the reader of a figure."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "loop_ms": loop_ms(),
    }
