"""Which request a recorded call answers now, and whether its reply was lost: by this a retry finds its call.

In: transactions and what a request says of itself. Out: the recorded call that it retries, taken over for it.
Invariant: a call has one holder, the latest request that was given it; only the holder's end makes it lost.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, bindparam, insert, select, update

from gateway_svc import calls, requests, retry, rollout_state, rollouts
from gateway_svc.prepared import Prepared
from gateway_svc.schema import calls as calls_table
from gateway_svc.schema import turns
from gateway_svc.store import Transaction
from gateway_svc.types import Ask, Event, RolloutId

_INSERT = Prepared(insert(turns))
_EQUAL = Prepared(
    select(turns.c.sequence, turns.c.idempotency_key, turns.c.lost)
    .where(turns.c.rollout == bindparam("rollout"), turns.c.attempt == bindparam("attempt"))
    .where(turns.c.turn == bindparam("turn"))
    .order_by(turns.c.sequence.desc())
)


def record(tx: Transaction, draft: calls.Draft, rollout: int, *, lost: bool) -> Event:
    """Store one call of the rollout with this ordinal, as `calls.record`; `lost` = nobody waits for it any more."""
    ask = draft.ask
    if (answer := requests.first_answer(tx.connection, ask.once)) is not None:
        return calls.replayed(tx.connection, answer)
    event = calls.record(tx, draft, rollout)
    if ask.repeat is not None:
        row = {"rollout": rollout, "sequence": event.sequence, "attempt": ask.attempt, "turn": ask.repeat.turn}
        row |= {"idempotency_key": ask.repeat.key, "holder": _request(ask), "lost": lost}
        _INSERT.run(tx.connection, row)
    return event


def equal(connection: Connection, rollout: int, ask: Ask) -> Sequence[Any]:
    """The recorded calls of the same turn, latest first: rows of sequence, idempotency_key, lost."""
    if ask.repeat is None:
        return ()
    keys = {"rollout": rollout, "attempt": ask.attempt, "turn": ask.repeat.turn}
    return _EQUAL.all(connection, keys)


def retried(connection: Connection, rows: Sequence[Any], ask: Ask) -> int | None:
    """Sequence of the recorded call that this request retries, out of the equal ones."""
    if ask.repeat is None or not rows:
        return None
    written = select(calls_table.c.sequence).where(
        calls_table.c.sequence.in_([sequence for sequence, _, _ in rows]), calls_table.c.delivered
    )
    delivered = set(connection.execute(written).scalars())
    earlier = [retry.Earlier(key=key, lost=bool(lost) and sequence not in delivered) for sequence, key, lost in rows]
    found = retry.choose(ask.repeat, earlier)
    return None if found is None else int(rows[found][0])


def take_over(tx: Transaction, ask: Ask, *, lost: bool) -> Event | None:
    """The recorded call that this request retries, held by it from now on; None = there is none (any more).

    `lost` = nobody waits for this request any more either.
    Raises StaleAttemptError and RolloutEndedError where the attempt may not make calls.
    """
    if (answer := requests.first_answer(tx.connection, ask.once)) is not None:
        return calls.replayed(tx.connection, answer)
    rollout = rollouts.standing(tx.connection, ask.rollout_id, ask.ordinal)
    rollout_state.check_writable(rollout, ask.attempt, f"rollouts/{ask.rollout_id}")
    if (sequence := retried(tx.connection, equal(tx.connection, rollout.ordinal, ask), ask)) is None:
        return None
    answer = orjson.dumps(sequence)
    event = calls.replayed(tx.connection, answer)
    _hold(tx, rollout.ordinal, sequence, ask, lost=lost)
    requests.remember(tx, ask.once, answer)
    return event


def joined(tx: Transaction, sequence: int, ask: Ask) -> None:
    """Make a request that joined a running generation the holder of the call that came of it."""
    if requests.first_answer(tx.connection, ask.once) is None:
        rollout = rollouts.standing(tx.connection, ask.rollout_id)
        _hold(tx, rollout.ordinal, sequence, ask, lost=False)
        requests.remember(tx, ask.once, orjson.dumps(sequence))


def lose(tx: Transaction, rollout_id: RolloutId, request_ids: Sequence[str]) -> None:
    """These requests' harness is gone and got no whole reply. Raises NotFoundError for the rollout."""
    rollout = rollouts.standing(tx.connection, rollout_id)
    mine = (turns.c.rollout == rollout.ordinal, turns.c.holder.in_([one for one in request_ids if one]))
    tx.connection.execute(update(turns).where(*mine).values(lost=True))


def _hold(tx: Transaction, rollout: int, sequence: int, ask: Ask, *, lost: bool) -> None:
    row = (turns.c.rollout == rollout, turns.c.sequence == sequence)
    tx.connection.execute(update(turns).where(*row).values(holder=_request(ask), lost=lost))


def _request(ask: Ask) -> str:
    return ask.once.request_id if ask.once else ""
