"""Processes that an earlier life left behind: found by the marker in their environment, killed by pidfd.

The marker is set by us alone and is inherited; a process id is pinned by a pidfd before the environment is read, so a
number that was given to another process meanwhile is never signalled.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from controller_svc.local.environment import MARKER


def marked(root: Path) -> Iterator[int]:
    """Ids of this user's processes whose marker is `root` or lies under it, this process apart."""
    for entry in os.listdir("/proc"):  # noqa: PTH208  # thousands of names
        if entry.isdigit() and int(entry) != os.getpid() and _is_marked(int(entry), root):
            yield int(entry)


def kill_marked(root: Path, *, groups: frozenset[int] = frozenset()) -> int:
    """Kill every process that is marked with `root`; with `groups`, only those of these process groups. How many.

    Repeats until none is found, because a process that is being killed may fork.
    """
    killed: set[int] = set()
    for _ in range(100):
        found = [pid for pid in marked(root) if (not groups or _group(pid) in groups) and _kill(pid, root)]
        if not found:
            break
        killed.update(found)
    return len(killed)


def _is_marked(pid: int, root: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    name = f"{MARKER}={root}".encode()
    return any(entry == name or entry.startswith(name + b"/") for entry in environment.split(b"\0"))


def _group(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def _kill(pid: int, root: Path) -> bool:
    """Kill the process if it is still the marked one; whether it was there."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not _is_marked(pid, root):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
