"""Runs a Python program as `__main__` in a forked interpreter so that it cannot tell. The standard library only.

Order: environment, random seeds, `sys.argv` and `__main__`; the program; what the interpreter does at its end, without
taking apart the modules that were imported before the fork: that alone would cost 50 ms of processor time.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn


def run_program(path: str, arguments: list[str], environment: dict[str, str]) -> NoReturn:
    """Be the program; ends the process."""
    imported = frozenset(sys.modules)
    os.environ.clear()
    os.environ.update(environment)
    refresh()
    gc.enable()
    sys.argv = [path, *arguments]
    sys.orig_argv = [sys.executable, path, *arguments]
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __builtins__=sys.modules["builtins"])
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    code = run_code(main, path)
    finish(code, main, imported)


def refresh() -> None:
    """Give this process what must not be shared with its siblings. (`random` reseeds itself after a fork.)"""
    if "TZ" in os.environ:
        time.tzset()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()
    if (asyncio := sys.modules.get("asyncio")) is not None:
        asyncio.set_event_loop_policy(None)


def run_code(main: ModuleType, path: str) -> int:
    """Execute the program; returns the exit code that the interpreter would give."""
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        return 2
    try:
        code = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        return exit_code(end.code)
    except BaseException as error:
        inner = error.__traceback__.tb_next if error.__traceback__ else None  # without this function's own frame
        sys.excepthook(type(error), error.with_traceback(inner), inner)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def exit_code(code: object) -> int:
    """Exit code of `SystemExit(code)`; a message goes to standard error."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def finish(code: int, main: ModuleType, imported: frozenset[str]) -> NoReturn:
    """What the interpreter does at its end: threads, exit functions, the program's own objects, buffers."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are not daemons
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        if threading.active_count() == 1:  # a daemon thread would stumble over what is taken from it
            for name in sys.modules.keys() - imported:
                clear(sys.modules[name])
            clear(main)
            gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError):
            pass  # the program replaced or closed it
        except OSError:
            code = code or 120
    os._exit(code)


def clear(module: ModuleType) -> None:
    """Drop a module's objects, so that files without a `close` are written out: private names first, as Python does."""
    names = [name for name in vars(module) if name != "__builtins__"]
    for name in sorted(names, key=lambda name: not name.startswith("_")):
        module.__dict__[name] = None
