"""What commands share at the terminal: lines about parts, errors in one clear line, and a clean end at a signal."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

import typer
from rich.console import Console

from whippletree.errors import WhippletreeError

OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


class UserError(Exception):
    """Something the user can change; the message names it. Exit code 2."""


class Failure(Exception):
    """Something failed that is not the user's setting; the message is for people. Exit code 1."""


def report(name: str, what: str) -> None:
    """One line about a part."""
    OUT.print(f"{name:<11}{what}", markup=False)


def run(work: Coroutine[Any, Any, None], *, on_sigterm: int = 143) -> NoReturn:
    """Run a command to its end and leave with its exit code: 0; 2 and 1 as the errors say; 130 after Ctrl-C.

    The first SIGINT, SIGTERM or SIGHUP cancels the work, which then cleans up; later ones do not disturb that.
    """
    stopped_by: list[int] = []

    async def guarded() -> None:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            if not stopped_by:
                stopped_by.append(number)
                ERR.print("stopping")
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        await work

    try:
        asyncio.run(guarded())
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        raise typer.Exit(130 if stopped_by[0] == signal.SIGINT else on_sigterm) from None
    except UserError as error:
        _leave(f"error: {error}", 2)
    except Failure as error:
        _leave(f"error: {error}", 1)
    except WhippletreeError as error:
        _leave(f"error: {error.reason}: {error.message}", 1)
    raise typer.Exit(0)


def _leave(message: str, code: int) -> NoReturn:
    ERR.print(message, markup=False, style="red" if sys.stderr.isatty() else None)
    sys.stderr.flush()
    raise typer.Exit(code)
