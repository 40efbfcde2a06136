"""Which processes belong to a system under test: by a mark in their environment, their folder or their command line."""

import contextlib
import os
import time
from pathlib import Path

MARK = "WHIPPLETREE_E2E"


def belonging(folder: Path, mark: str) -> dict[int, str]:
    """Process id -> command line of every process, ours excepted, that has the mark or works in or on `folder`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes()
            if not command:  # a zombie or a thread of the kernel
                continue
            where = (entry / "cwd").resolve()
            if f"{MARK}={mark}".encode() in environment or where.is_relative_to(folder) or str(folder) in command:
                found[int(entry.name)] = command
    return found


def none_left(folder: Path, mark: str, seconds: float) -> dict[int, str]:
    """Wait until nothing belongs to the system, at most `seconds`; what is left."""
    deadline = time.monotonic() + seconds
    while (left := belonging(folder, mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
