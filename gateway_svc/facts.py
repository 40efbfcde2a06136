"""What the store knows of itself: its identity, its last numbers, and which rollouts were deleted.

Functions with a `Transaction` are operations of the writer, those with a `Connection` are queries.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from gateway_svc.schema import deletions, facts, rollouts
from gateway_svc.store import Transaction
from gateway_svc.types import Micros, RolloutId, RunId
from whippletree.errors import ResumeTokenExpiredError


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """A rollout that is gone, and the number of that change."""

    rollout_id: RolloutId
    change: int


def number(connection: Connection, name: str) -> int:
    """One number; 0 where there is none."""
    return connection.execute(select(facts.c.number).where(facts.c.name == name)).scalar() or 0


def has(connection: Connection, name: str) -> bool:
    """Whether this fact is there."""
    return connection.execute(select(facts.c.number).where(facts.c.name == name)).first() is not None


def put(tx: Transaction, name: str, value: int = 0, text: str = "") -> None:
    """Set one fact."""
    changed = tx.connection.execute(update(facts).where(facts.c.name == name).values(number=value, text=text))
    if not changed.rowcount:
        tx.connection.execute(insert(facts), {"name": name, "number": value, "text": text})


def add(tx: Transaction, name: str, more: int) -> None:
    """Add to a number that is there."""
    tx.connection.execute(update(facts).where(facts.c.name == name).values(number=facts.c.number + more))


def remove(tx: Transaction, name: str) -> None:
    """Forget one fact."""
    tx.connection.execute(delete(facts).where(facts.c.name == name))


def last_ordinal(connection: Connection) -> int:
    """The highest ordinal of a rollout that was ever given."""
    kept = connection.execute(select(func.max(rollouts.c.ordinal))).scalar() or 0
    return max(kept, number(connection, "deleted_ordinal"))


def check_known(connection: Connection, after: int, last: int) -> None:
    """Raise ResumeTokenExpiredError where nobody can say any more what happened since this change."""
    if after > last:
        raise ResumeTokenExpiredError("the resume token is from another store")
    if 0 < after < number(connection, "forgotten_change"):
        raise ResumeTokenExpiredError("the resume token is too old: deletions since then are forgotten")


def deleted(connection: Connection, run_id: RunId | None, after: int, upto: int, size: int) -> tuple[Deleted, ...]:
    """The first `size` rollouts deleted after one change, up to another, by change."""
    query = select(deletions.c.rollout_id, deletions.c.change)
    query = query.where(deletions.c.change > after, deletions.c.change <= upto)
    if run_id is not None:
        query = query.where(deletions.c.run_id == run_id)
    return tuple(
        Deleted(rollout_id=RolloutId(row.rollout_id), change=row.change)
        for row in connection.execute(query.order_by(deletions.c.change).limit(size))
    )


def was_deleted(connection: Connection, rollout_id: RolloutId) -> bool:
    """Whether a rollout of this id is known to be deleted."""
    query = select(deletions.c.change).where(deletions.c.rollout_id == rollout_id)
    return connection.execute(query.limit(1)).first() is not None


def forget_deletions(tx: Transaction, age: Micros) -> None:
    """Remove what is known of deletions older than `age`; resume tokens from before expire."""
    old = (deletions.c.purged, deletions.c.create_time < tx.now - age)
    highest = tx.connection.execute(select(func.max(deletions.c.change)).where(*old)).scalar()
    if highest is None:
        return
    put(tx, "forgotten_change", max(highest, number(tx.connection, "forgotten_change")))
    tx.connection.execute(delete(deletions).where(*old))
