"""Runs one part and leaves nothing of it behind. Started as a script, by the supervisor and the trainer.

The standard library only.

In: `keeper.py PARENT GRACE -- COMMAND...`; standard error is the part's log. Out: one line with the part's process id
on standard output, then its exit code (128 + signal where a signal ended it). Order: the part starts in a session of
its own; SIGTERM, or the death of PARENT in whatever way, is passed on as SIGTERM and after GRACE seconds as SIGKILL;
when the part has ended, every process that descends from it is killed, also in other sessions: it reaps them all.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WAITED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}


def main() -> int:
    """Start, wait, clean up; the exit code is the part's."""
    parent, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[4:]
    libc = ctypes.CDLL(None, use_errno=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        return 0
    keeper, child = os.getpid(), os.fork()
    if child == 0:
        _become(command, keeper, libc)
    os.write(1, f"{child}\n".encode())
    os.close(1)
    try:
        return _wait(child, grace)
    finally:
        _kill_descendants()


def _become(command: list[str], keeper: int, libc: ctypes.CDLL) -> None:
    """In the child: an own session, death together with the keeper, then the command."""
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(0)
        os.dup2(2, 1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _wait(child: int, grace: float) -> int:
    """Reap until `child` has ended; pass a request to stop on, and enforce it after `grace` seconds."""
    deadline: float | None = None
    while True:
        while (ended := _reap()) is not None:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            left = 1.0
        got = signal.sigwaitinfo(WAITED) if left is None else signal.sigtimedwait(WAITED, left)
        if got is not None and got.si_signo != signal.SIGCHLD and deadline is None:
            deadline = time.monotonic() + grace
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)


def _reap() -> tuple[int, int] | None:
    """(pid, status) of a child that has ended, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _kill_descendants() -> None:
    """Kill until no child is left; orphans become children of this process, level by level."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for _ in range(1000):
        pids = [int(pid) for pid in children.read_text().split()]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while _reap() is not None:
            pass
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
