"""Which gateway replica may have generations of a run or a model in flight: all of them, until one asks for it alone.

In: keys (`runs/R`, `models/M`). Out: leases. A replica admits a generation only while it has the leases of its keys;
whoever changes a phase or publishes weights waits until no replica has the lease, and so nothing is in flight anywhere.
With one process (SQLite) its own gates are enough: `Alone`. Several replicas share them: `shared_leases.py`.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Whom the leases ask and tell: how much of a key is in flight here; what of a lease that is to be given back must
    be interrupted; when some were taken, first to read runs and models again, then that leases have changed."""

    in_flight: Callable[[str], int]
    interrupt: Callable[[str], None]
    read_again: Callable[[], Awaitable[None]]
    changed: Callable[[], None]


class Leases(Protocol):
    """What the gates ask for."""

    def have(self, keys: Sequence[str]) -> bool:
        """Whether generations of these keys may begin here."""

    async def obtain(self, keys: Sequence[str]) -> None:
        """Ask for the leases of these keys; returns when they are here, or after a moment."""

    def exclusive(self, key: str, *, interrupt: bool) -> AbstractAsyncContextManager[None]:
        """While the block runs no replica has the lease; the caller's own gate must be closed and drained.

        `interrupt` = the others are to interrupt what they have in flight, instead of letting it finish.
        """

    async def run(self, told: Told) -> None:
        """Take and give leases while it runs."""


class Alone:
    """One process: it has all leases."""

    def have(self, keys: Sequence[str]) -> bool:
        """It has."""
        return True

    async def obtain(self, keys: Sequence[str]) -> None:
        """It has."""

    def exclusive(self, key: str, *, interrupt: bool) -> AbstractAsyncContextManager[None]:
        """Nobody else is there."""
        return nullcontext()

    async def run(self, told: Told) -> None:
        """There is nothing to do."""
