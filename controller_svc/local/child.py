"""From the fork to the attempt: a session and a group of its own, its folder, its outputs, then its program.

The standard library only. Dies with the fork server, whose own descriptors it does not keep.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from typing import Any, NoReturn

from agent_main import run_program  # type: ignore[import-not-found]  # beside this file

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become(task: dict[str, Any], own: Iterable[int], parent: int) -> NoReturn:
    """Turn into the attempt's process. `own`: the server's descriptors; `parent`: its process id."""
    code = 125
    try:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(code)  # it died before the line above
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in own:
            os.close(descriptor)
        os.setsid()
        redirect(task["stdout"], task["stderr"])
        os.chdir(task["folder"])
        if task.get("command"):
            code = execute(task["command"], task["environment"])
        else:
            run_program(task["program"], task["arguments"], task["environment"])
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"cannot start: {error!r}\n".encode())
    finally:
        os._exit(code)


def redirect(stdout: str, stderr: str) -> None:
    """Standard input from nowhere, the outputs appended to files."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, path, mode in ((0, os.devnull, os.O_RDONLY), (1, stdout, flags), (2, stderr, flags)):
        descriptor = os.open(path, mode, 0o600)
        os.dup2(descriptor, target)
        os.close(descriptor)


def execute(command: list[str], environment: dict[str, str]) -> int:
    """Replace this process by the command; returns the shell's exit code where that cannot be done."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        return 127 if isinstance(error, FileNotFoundError) else 126
    return 126
