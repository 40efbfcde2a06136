"""The fork server's own program: a warm interpreter that forks one process per attempt. The standard library only.

In, one JSON line each on an inherited socket: first the setup {"preload": [module], "folder": str}, then {"start": ...}
and {"signal": ...}. Out, likewise: {"ready": ...} or {"refused": reason}; {"started": {"key", "pid"}}, {"failed":
{"key", "reason"}}, {"exited": {"key", "status", "cpu"}}. Order: an attempt's exit is told after its whole process group
was killed. The socket's end means that the controller is gone: every process is killed, then this one ends.

It is a child subreaper: what an attempt leaves behind, also in a session of its own, comes back here and is killed.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from child import become  # type: ignore[import-not-found]  # beside this file, which starts as a script

MARKER = "WHIPPLETREE_WORKDIR"
"""In the environment of every process of an attempt: its own folder."""
PAUSE, LONGEST_PAUSE, LOOKING = 0.05, 1.0, 60.0
"""Seconds between looks at orphans that do not say yet whose they are, at first and at most; and for how long."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class ForkServer:
    """Forks, signals and reaps. `running` holds what was forked and has not been reaped, by key and by process id."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.pids: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.folders: dict[int, str] = {}
        self.ended: deque[int] = deque(maxlen=4096)
        self.closing = False
        self.look_again: float | None = None
        """Seconds after which orphans are looked at again; None = all are known."""
        self.looking_until = 0.0
        self.imported_environment: dict[str, str] = {}
        """Variables that the preload set: importing the same modules in the program would have set them."""
        self.wake_read, self.wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def send(self, **message: Any) -> None:
        """Tell the controller; where it is gone, the next read says so."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")

    def watch_signals(self) -> None:
        """SIGCHLD and SIGTERM wake the loop; SIGINT of a terminal is the controller's business."""
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "closing", True))
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self, pending: bytes) -> None:
        """Until the controller is gone. `pending`: what was read behind the setup."""
        while not self.closing:
            *lines, pending = pending.split(b"\n")
            for line in lines:
                self.obey(json.loads(line))
            self.reap()
            control = self.control.fileno()
            ready, _, _ = select.select([control, self.wake_read], [], [], self.look_again)
            if not ready:
                self.sweep()
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
            if control in ready:
                data = self.control.recv(1 << 16)
                pending += data
                self.closing = self.closing or not data
        self.end_all()

    def obey(self, message: dict[str, Any]) -> None:
        """Carry out one message of the controller."""
        if start := message.get("start"):
            self.start(start)
        elif request := message.get("signal"):
            pid = self.pids.get(request["key"])
            if pid is not None:
                kill_group(pid, request["number"])

    def start(self, task: dict[str, Any]) -> None:
        """Fork one attempt. Only the parent returns."""
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self.send(failed={"key": task["key"], "reason": f"fork: {error.strerror}"})
            return
        if pid == 0:
            own = (self.wake_read, self.wake_write, self.control.detach())
            become({**task, "environment": {**self.imported_environment, **task["environment"]}}, own, parent)
        self.pids[task["key"]], self.keys[pid] = pid, task["key"]
        self.folders[pid] = task["environment"].get(MARKER, "")
        with contextlib.suppress(ValueError):
            self.ended.remove(pid)
        self.send(started={"key": task["key"], "pid": pid})

    def reap(self) -> None:
        """Report ended attempts. A leader's group is killed while its zombie still holds the number."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            pid = found.si_pid
            if pid in self.keys:
                kill_group(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            key = self.keys.pop(pid, None)
            if key is not None:
                del self.pids[key], self.folders[pid]
                self.ended.append(pid)
                self.looking_until = time.monotonic() + LOOKING
            self.look_again = None
            self.sweep()  # an orphan's end, too: its own children come here
            if key is not None:
                self.send(exited={"key": key, "status": status, "cpu": usage.ru_utime + usage.ru_stime})

    def sweep(self) -> None:
        """Kill orphans of attempts that have ended. One that just becomes another program has no environment for a
        moment, so those without are looked at again."""
        unknown = False
        for pid in set(children()) - self.keys.keys():
            doomed = self.doomed(pid)
            if doomed:
                kill_one(pid)
            unknown = unknown or doomed is None
        if unknown and time.monotonic() < self.looking_until:
            self.look_again = PAUSE if self.look_again is None else min(2 * self.look_again, LONGEST_PAUSE)
        else:
            self.look_again = None

    def doomed(self, pid: int) -> bool | None:
        """Whether an orphan belongs to no attempt that still runs; None = it does not say whose it is."""
        session, folder = identity(pid)
        if not self.keys:
            return True
        if session in self.keys or folder in self.folders.values():
            return False
        if session in self.ended:
            return True
        return folder != os.environ.get(MARKER, "") if folder else None

    def end_all(self) -> None:
        """Kill every process that came from here, also what appears meanwhile."""
        while True:
            for pid in children():
                kill_group(pid, signal.SIGKILL)
                kill_one(pid)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def children() -> list[int]:
    """Process ids of this process's children, adopted ones too."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def identity(pid: int) -> tuple[int, str]:
    """Session and attempt folder of a process; (0, "") where it is gone."""
    try:
        session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return 0, ""
    marked = [entry.partition(b"=")[2] for entry in environment if entry.startswith(MARKER.encode() + b"=")]
    return session, os.fsdecode(marked[0]) if marked else ""


def kill_group(pid: int, number: int) -> None:
    """Signal a process group; one that is gone, or never was, is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def kill_one(pid: int) -> None:
    """Kill one process; one that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def preload(modules: list[str], control: int) -> str:
    """Import the modules; returns why they must not be forked from, else nothing. `control`: our own socket."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:
            return f"preload of {name}: {type(error).__name__}: {error}"
    if threading.active_count() > 1:
        return "preload started a thread, which a fork would not have: " + threading.enumerate()[-1].name
    if open_sockets() - {control}:
        return "preload left a socket open, which all forks would share"
    return ""


def open_sockets() -> set[int]:
    """Descriptors above standard error that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  # the listing's own descriptor is gone afterwards
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


def main() -> None:
    """`warm.py DESCRIPTOR`."""
    del sys.path[0]  # this file's folder
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # while importing nobody reads the socket
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = ForkServer(control)
    pending = b""
    while b"\n" not in pending:
        data = control.recv(1 << 16)
        if not data:
            return
        pending += data
    line, _, pending = pending.partition(b"\n")
    setup = json.loads(line)
    if setup["folder"]:
        sys.path.insert(0, setup["folder"])
    before = dict(os.environ)
    if reason := preload(setup["preload"], control.fileno()):
        server.send(refused=reason)
        return
    server.imported_environment = {name: value for name, value in os.environ.items() if before.get(name) != value}
    server.watch_signals()
    _prctl(PR_SET_PDEATHSIG, 0)  # from here on the socket's end is enough, and lets the children be killed first
    gc.collect()
    gc.freeze()
    gc.disable()
    server.send(ready={"pid": os.getpid()})
    server.serve(pending)


if __name__ == "__main__":
    main()
