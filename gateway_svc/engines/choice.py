"""Which engine takes a generation: the rollout's own while it is not overloaded, so that its prefix cache is used; else
the least loaded.

In: values. Out: a choice, the same for the same values. A rollout's own engine is the one with the highest hash of both
(rendezvous hashing): when engines come or go, only the rollouts of those change theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from math import ceil

from gateway_svc.types import Engine


class Rank(IntEnum):
    """How willingly an engine is taken: the first rank that has room."""

    READY = 0
    """Healthy, with the model's weights."""
    BEHIND = 1
    """Healthy; its weights are not known, or others: it has to be looked at first."""
    UNREACHABLE = 2
    """Gave no good answer lately; taken only where no engine is better, full or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One engine and what it has to do. `limit` = generations at once, 0 = any number."""

    engine: Engine
    rank: Rank
    in_flight: int
    limit: int

    @property
    def room(self) -> bool:
        """Whether it may get one more."""
        return not self.limit or self.in_flight < self.limit


def choose(options: Sequence[Option], affinity: str, spread: float) -> Engine | None:
    """An engine; None = all that may be taken are full, or there is none.

    An engine is overloaded above `spread` times its share of the generations of its rank.
    """
    better = [option for option in options if option.rank != Rank.UNREACHABLE]
    for rank in Rank:
        equals = [option for option in better or options if option.rank == rank]
        if any(option.room for option in equals):
            return _among(equals, affinity, spread)
    return None


def _among(equals: Sequence[Option], affinity: str, spread: float) -> Engine:
    if len(equals) == 1:
        return equals[0].engine
    ordered = sorted(equals, key=lambda option: weight(affinity, option.engine.address), reverse=True)
    own = ordered[0]
    share = (sum(option.in_flight for option in equals) + 1) / len(equals)
    if own.room and own.in_flight < ceil(spread * share):
        return own.engine
    return min((option for option in ordered if option.room), key=lambda option: option.in_flight).engine


def weight(affinity: str, address: str) -> bytes:
    """How much a rollout belongs to an engine; uniform over all."""
    return blake2b(f"{affinity} {address}".encode(), digest_size=8).digest()
