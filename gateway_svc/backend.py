"""What a database must do for the store; `sqlite.py` and `postgresql.py` do it.

All that differs between them is here: how the one writer at a time is kept, whether other processes write too, and
how these hear of one another. Statements and migrations are the same for both.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The last numbers given, gateway-wide: of a change of a rollout, of an event, of a change of runs or models.

    They are given by the one writer inside its transaction, so they become visible in their order and without gaps.
    """

    change: int = 0
    sequence: int = 0
    catalog: int = 0


class Near(Protocol):
    """A database in this process."""

    def snapshot(self) -> AbstractContextManager[Connection]:
        """A connection on which a reading transaction runs while the block does."""


class Backend(Protocol):
    """One open database."""

    writer: Engine
    reader: Engine
    """Its transactions are snapshots: all statements of one see the same commits."""
    near: Near | None
    """For reads in the event loop itself; None = the database is too far away for them."""
    url: str
    """Where other processes reach the same database; empty = this process has it alone."""

    def prepare(self, connection: Connection) -> None:
        """Keep other processes from migrating until this transaction ends."""

    def begin(self, connection: Connection, known: Numbers) -> Numbers:
        """Become the one writer until this transaction ends; the last numbers given, `known` if nobody else gives."""

    def announce(self, connection: Connection, numbers: Numbers) -> None:
        """Tell other processes, when this transaction has been committed."""

    async def follow(self, committed: Callable[[Numbers], None]) -> None:
        """Call `committed` with what other processes gave, for ever; returns at once where there are none."""

    def lost(self, error: DBAPIError) -> bool:
        """Whether the database cannot be reached, so that what was begun may or may not have been carried out."""

    def cut(self) -> None:
        """End what waits for a database that does not answer, with an error, from any thread; nothing is begun anew."""

    def close(self) -> None:
        """Let go of everything."""
