"""Deleting a run in small steps, each an operation of its own, so that other writers wait for one step at most.

Order: the run itself goes first, so that nothing new can begin; rollouts that have not ended are cancelled; rollouts
are removed, a page at a time, each with a number that tells its watchers; then their events, calls and attempts, which
nobody can reach any more. A fact of the store keeps a deletion that was cut, and it goes on at the next start.
"""

from sqlalchemy import Connection, delete, insert, select, update

from gateway_svc import facts, requests, rollouts
from gateway_svc.schema import attempts, calls, deletions, events, runs, turns
from gateway_svc.schema import facts as facts_table
from gateway_svc.schema import rollouts as rollouts_table
from gateway_svc.store import Transaction
from gateway_svc.types import Micros, Once, RolloutId, RolloutState, RunId
from whippletree.errors import NotFoundError, WrongStateError

ROLLOUTS = 100
"""Rollouts that one step cancels or removes."""
EVENTS = 200
"""Events that one step removes, with their calls and tokens."""
MARK = "deleting "
_ENDED = tuple(state for state in RolloutState if state.ended)


def begin(tx: Transaction, run_id: RunId, force: bool, once: Once | None) -> bytes | None:
    """Take the run away; what was answered to this request before, else None. Raises WrongStateError, NotFoundError."""
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        return answer
    name = f"runs/{run_id}"
    if facts.has(tx.connection, MARK + run_id):
        return None
    if tx.connection.execute(select(runs.c.ordinal).where(runs.c.run_id == run_id)).first() is None:
        raise NotFoundError(f"{name} does not exist", name=name)
    if not force and (open_ := _open(tx.connection, run_id, 1)):
        text = f"rollouts/{open_[0]} of {name} has not ended; cancel what runs, or delete with force"
        raise WrongStateError(text, name=name, rollout=f"rollouts/{open_[0]}")
    tx.connection.execute(delete(runs).where(runs.c.run_id == run_id))
    tx.change_catalog()
    facts.put(tx, MARK + run_id)
    return None


def step(tx: Transaction, run_id: RunId) -> bool:
    """Do the next piece; False = nothing was left to do."""
    return _cancel(tx, run_id) or _remove(tx, run_id) or _purge(tx, run_id)


def end(tx: Transaction, run_id: RunId, once: Once | None) -> int:
    """Note that all is gone; how many rollouts there were."""
    count = facts.number(tx.connection, MARK + run_id)
    facts.remove(tx, MARK + run_id)
    if requests.first_answer(tx.connection, once) is None:
        requests.remember(tx, once, str(count).encode())
    return count


def unfinished(connection: Connection) -> list[RunId]:
    """Runs whose deletion was begun and has not ended."""
    found = connection.execute(select(facts_table.c.name).where(facts_table.c.name.startswith(MARK)))
    return [RunId(name[len(MARK) :]) for name in found.scalars()]


def outlived(connection: Connection, before: Micros) -> list[RunId]:
    """Runs in which nothing was made or ended since `before`, and all rollouts have ended."""
    mine = rollouts_table.c.run_id == runs.c.run_id
    lives = rollouts_table.c.state.not_in(_ENDED) | (rollouts_table.c.finish_time >= before)
    query = select(runs.c.run_id).where(runs.c.create_time < before)
    return [RunId(name) for name in connection.execute(query.where(~select(1).where(mine, lives).exists())).scalars()]


def _open(connection: Connection, run_id: RunId, size: int) -> list[str]:
    query = select(rollouts_table.c.rollout_id)
    query = query.where(rollouts_table.c.run_id == run_id, rollouts_table.c.state.not_in(_ENDED))
    return list(connection.execute(query.order_by(rollouts_table.c.ordinal).limit(size)).scalars())


def _cancel(tx: Transaction, run_id: RunId) -> bool:
    found = _open(tx.connection, run_id, ROLLOUTS)
    for name in found:
        rollouts.cancel(tx, RolloutId(name), "its run was deleted", None)
    return bool(found)


def _remove(tx: Transaction, run_id: RunId) -> bool:
    query = select(rollouts_table.c.ordinal, rollouts_table.c.rollout_id).where(rollouts_table.c.run_id == run_id)
    found = tx.connection.execute(query.order_by(rollouts_table.c.ordinal).limit(ROLLOUTS)).all()
    if not found:
        return False
    rows = [
        {
            "change": tx.next_change(),
            "ordinal": row.ordinal,
            "rollout_id": row.rollout_id,
            "run_id": run_id,
            "purged": False,
            "create_time": tx.now,
        }
        for row in found
    ]
    tx.connection.execute(insert(deletions), rows)
    ordinals = [row.ordinal for row in found]
    tx.connection.execute(delete(rollouts_table).where(rollouts_table.c.ordinal.in_(ordinals)))
    facts.put(tx, "deleted_ordinal", max(ordinals[-1], facts.number(tx.connection, "deleted_ordinal")))
    facts.add(tx, MARK + run_id, len(found))
    return True


def _purge(tx: Transaction, run_id: RunId) -> bool:
    query = select(deletions.c.change, deletions.c.ordinal)
    query = query.where(deletions.c.purged.is_(False), deletions.c.run_id == run_id)
    found = tx.connection.execute(query.order_by(deletions.c.change).limit(ROLLOUTS)).all()
    room = EVENTS
    for row in found:
        room -= _purge_rollout(tx, row.ordinal, row.change, room)
        if room <= 0:
            break
    return bool(found)


def _purge_rollout(tx: Transaction, ordinal: int, change: int, room: int) -> int:
    """Remove at most `room` events of a rollout, and what else it has where they were the last; how many."""
    query = select(events.c.sequence).where(events.c.rollout == ordinal).order_by(events.c.sequence).limit(room)
    sequences = list(tx.connection.execute(query).scalars())
    if sequences:
        tx.connection.execute(delete(calls).where(calls.c.sequence.in_(sequences)))
        tx.connection.execute(delete(turns).where(turns.c.rollout == ordinal, turns.c.sequence.in_(sequences)))
        tx.connection.execute(delete(events).where(events.c.sequence.in_(sequences)))
        facts.add(tx, "deleted_events", len(sequences))
    if len(sequences) < room:
        tx.connection.execute(delete(attempts).where(attempts.c.rollout == ordinal))
        tx.connection.execute(update(deletions).where(deletions.c.change == change).values(purged=True))
    return len(sequences) + 1
