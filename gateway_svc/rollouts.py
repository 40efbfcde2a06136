"""Rollouts and attempts in the store: create, verbs, reads. The decisions are those of `rollout_state.py`.

Functions with a `Transaction` are operations of the writer, those with a `Connection` are queries.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import orjson
from sqlalchemy import Connection, Row, Select, bindparam, func, insert, select, update

from gateway_svc import facts, requests, rollout_state
from gateway_svc.prepared import Prepared
from gateway_svc.rollout_state import Step
from gateway_svc.schema import attempts, deletions, rollouts, runs
from gateway_svc.store import Transaction, last_change
from gateway_svc.types import (
    Attempt,
    Once,
    Outcome,
    Rollout,
    RolloutId,
    RolloutSpec,
    RolloutState,
    RolloutStatus,
    RunId,
    Split,
)
from whippletree.errors import AlreadyExistsError, NotFoundError

_BY_ID = select(rollouts).where(rollouts.c.rollout_id == bindparam("id"))
_STANDING = Prepared(
    select(rollouts.c.ordinal, rollouts.c.run_id, rollouts.c.state, rollouts.c.attempt).where(
        rollouts.c.rollout_id == bindparam("id")
    )
)
_IDS_PER_QUERY = 500
_ROWS_PER_INSERT = 512
_NEW = RolloutStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which rollouts are meant; None and empty mean all."""

    run_id: RunId | None = None
    states: tuple[RolloutState, ...] = ()
    group_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Rollouts changed after a number, by change; complete up to `upto`, the last change where nothing is `more`.

    `deleted` = names of those that were deleted in the same span.
    """

    rollouts: tuple[Rollout, ...]
    deleted: tuple[facts.Deleted, ...]
    upto: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a rollout stands: what every call and event needs to know of it."""

    ordinal: int
    run_id: RunId
    state: RolloutState
    attempt: int


def create(tx: Transaction, specs: Sequence[RolloutSpec], once: Once | None) -> list[tuple[Rollout, bool]]:
    """Store all that are new, or none; each with whether it existed. Raises AlreadyExistsError, NotFoundError (run)."""
    known = _known(tx.connection, [spec.rollout_id for spec in specs])
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        return _created_before(specs, known, answer)
    _check_runs(tx.connection, {spec.run_id for spec in specs})
    new: list[Rollout] = []
    answers: list[tuple[Rollout, bool]] = []
    ordinal = facts.last_ordinal(tx.connection)
    for spec in specs:
        if (stored := known.get(spec.rollout_id)) is not None:
            if stored.spec != spec:
                name = f"rollouts/{spec.rollout_id}"
                raise AlreadyExistsError(f"{name} exists with other content", name=name)
            answers.append((stored, True))
            continue
        ordinal += 1
        made = Rollout(ordinal=ordinal, spec=spec, status=_NEW, create_time=tx.now, change=tx.next_change())
        known[spec.rollout_id] = made
        answers.append((made, False))
        new.append(made)
    _insert(tx.connection, new)
    if once is not None:
        brief = [None if not existed else requests.pack_status(rollout.status).decode() for rollout, existed in answers]
        requests.remember(tx, once, orjson.dumps(brief))
    return answers


def start(tx: Transaction, rollout_id: RolloutId, worker: str, once: Once | None) -> tuple[Rollout, Attempt]:
    """Open the next attempt."""
    rollout = _verb(tx, rollout_id, once, lambda found: rollout_state.start(found.status, now=tx.now), worker)
    attempt = get_attempt(tx.connection, rollout_id, rollout.status.attempt)
    return rollout, replace(attempt, outcome=None, message="", finish_time=None)


def finish(
    tx: Transaction, rollout_id: RolloutId, attempt: int, outcome: Outcome, message: str, once: Once | None
) -> Rollout:
    """End an attempt."""
    return _verb(
        tx,
        rollout_id,
        once,
        lambda found: rollout_state.finish(
            found.status,
            attempt=attempt,
            outcome=outcome,
            message=message,
            max_attempts=found.spec.max_attempts,
            now=tx.now,
        ),
    )


def cancel(tx: Transaction, rollout_id: RolloutId, message: str, once: Once | None) -> Rollout:
    """End a rollout by request."""
    return _verb(tx, rollout_id, once, lambda found: rollout_state.cancel(found.status, message=message, now=tx.now))


def transition(
    tx: Transaction, rollout_id: RolloutId, to: RolloutState, attempt: int, message: str, once: Once | None
) -> Rollout:
    """Move a rollout to a state."""
    return _verb(
        tx,
        rollout_id,
        once,
        lambda found: rollout_state.transition(
            found.status,
            to=to,
            attempt=attempt,
            message=message,
            max_attempts=found.spec.max_attempts,
            now=tx.now,
        ),
    )


def get(connection: Connection, rollout_id: RolloutId) -> Rollout:
    """One rollout. Raises NotFoundError."""
    row = connection.execute(_BY_ID, {"id": rollout_id}).first()
    if row is None:
        raise NotFoundError(f"rollouts/{rollout_id} does not exist", name=f"rollouts/{rollout_id}")
    return _rollout(row)


def standing(connection: Connection, rollout_id: RolloutId, ordinal: int = 0) -> Standing:
    """Where one rollout stands. Raises NotFoundError, also where it is not the one with this ordinal; 0 = any."""
    row = _STANDING.first(connection, {"id": rollout_id})
    if row is None or (ordinal and row[0] != ordinal):
        text = "was deleted and made anew" if row else "does not exist"
        raise NotFoundError(f"rollouts/{rollout_id} {text}", name=f"rollouts/{rollout_id}")
    found, run_id, state, attempt = row
    return Standing(ordinal=found, run_id=RunId(run_id), state=RolloutState(state), attempt=attempt)


def page(connection: Connection, wanted: Filter, after: int, size: int) -> list[Rollout]:
    """The first `size` rollouts created after the ordinal `after`, in the order of creation."""
    query = _filtered(select(rollouts), wanted).where(rollouts.c.ordinal > after)
    return [_rollout(row) for row in connection.execute(query.order_by(rollouts.c.ordinal).limit(size))]


def changed(connection: Connection, wanted: Filter, after: int, size: int) -> Changes:
    """At most `size` rollouts changed after the number `after`, and as many deleted. Raises ResumeTokenExpiredError."""
    last = last_change(connection)
    facts.check_known(connection, after, last)
    query = _filtered(select(rollouts), wanted).where(rollouts.c.change > after)
    found = tuple(_rollout(row) for row in connection.execute(query.order_by(rollouts.c.change).limit(size)))
    more = len(found) == size
    upto = found[-1].change if more else last
    gone = facts.deleted(connection, wanted.run_id, after, upto, size) if after else ()
    if len(gone) == size:
        upto, more = gone[-1].change, True
        found = tuple(rollout for rollout in found if rollout.change <= upto)
    return Changes(rollouts=found, deleted=gone, upto=upto, more=more)


def touched(connection: Connection, after: int) -> tuple[dict[RunId, int], int]:
    """Runs of which a rollout changed or was deleted after a number, each with its last change; and the last of all."""
    last: dict[RunId, int] = {}
    for table in (rollouts, deletions):
        query = select(table.c.run_id, func.max(table.c.change)).where(table.c.change > after).group_by(table.c.run_id)
        for run_id, change in connection.execute(query):
            last[run_id] = max(change, last.get(run_id, 0))
    return last, max(last.values(), default=after)


def get_attempt(connection: Connection, rollout_id: RolloutId, number: int) -> Attempt:
    """One attempt. Raises NotFoundError."""
    found = list_attempts(connection, rollout_id, number - 1, 1)
    if not found or found[0].number != number:
        name = f"rollouts/{rollout_id}/attempts/{number}"
        raise NotFoundError(f"{name} does not exist", name=name)
    return found[0]


def list_attempts(connection: Connection, rollout_id: RolloutId, after: int, size: int) -> list[Attempt]:
    """Attempts of a rollout by number. Raises NotFoundError where there is no such rollout."""
    ordinal = get(connection, rollout_id).ordinal
    query = select(attempts).where(attempts.c.rollout == ordinal, attempts.c.number > after)
    return [
        Attempt(
            rollout_id=rollout_id,
            number=row.number,
            worker=row.worker,
            start_time=row.start_time,
            outcome=None if row.outcome is None else Outcome(row.outcome),
            message=row.message,
            finish_time=row.finish_time,
        )
        for row in connection.execute(query.order_by(attempts.c.number).limit(size))
    ]


def _verb(
    tx: Transaction, rollout_id: RolloutId, once: Once | None, decide: Callable[[Rollout], Step], worker: str = ""
) -> Rollout:
    """Answer as the first time, or decide, apply and remember."""
    found = get(tx.connection, rollout_id)
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        return replace(found, status=requests.unpack_status(answer))
    step = decide(found)
    if step.status != found.status:
        found = _apply(tx, found, step, worker)
    requests.remember(tx, once, requests.pack_status(step.status))
    return found


def _apply(tx: Transaction, rollout: Rollout, step: Step, worker: str) -> Rollout:
    status, number = step.status, rollout.status.attempt
    if step.closes is not None:
        closed = {"outcome": step.closes, "message": status.message, "finish_time": tx.now}
        which = (attempts.c.rollout == rollout.ordinal, attempts.c.number == number)
        tx.connection.execute(update(attempts).where(*which).values(closed))
    if step.opens:
        opened = {"rollout": rollout.ordinal, "number": status.attempt, "worker": worker, "start_time": tx.now}
        tx.connection.execute(insert(attempts), opened | {"message": ""})
    moved = replace(rollout, status=status, change=tx.next_change())
    tx.connection.execute(
        update(rollouts)
        .where(rollouts.c.ordinal == rollout.ordinal)
        .values(_status_row(status) | {"change": moved.change})
    )
    return moved


def _created_before(
    specs: Sequence[RolloutSpec], known: dict[RolloutId, Rollout], answer: bytes
) -> list[tuple[Rollout, bool]]:
    """The first answer of a create: new ones as they were made, others as they stood."""
    answers: list[tuple[Rollout, bool]] = []
    for spec, brief in zip(specs, orjson.loads(answer), strict=True):
        if spec.rollout_id not in known:
            name = f"rollouts/{spec.rollout_id}"
            raise NotFoundError(f"{name} was deleted since this request was answered", name=name)
        status = RolloutStatus() if brief is None else requests.unpack_status(brief)
        answers.append((replace(known[spec.rollout_id], status=status), brief is not None))
    return answers


def _known(connection: Connection, ids: Sequence[RolloutId]) -> dict[RolloutId, Rollout]:
    """The rollouts among these ids that are stored."""
    found: dict[RolloutId, Rollout] = {}
    for begin in range(0, len(ids), _IDS_PER_QUERY):
        part = ids[begin : begin + _IDS_PER_QUERY]
        for row in connection.execute(select(rollouts).where(rollouts.c.rollout_id.in_(part))):
            found[row.rollout_id] = _rollout(row)
    return found


def _insert(connection: Connection, new: Sequence[Rollout]) -> None:
    """Store new rollouts. SQLite gets one statement for many: between two it would give up and await Python's lock."""
    if connection.dialect.name != "sqlite":
        if new:
            connection.execute(insert(rollouts), [_row(rollout) for rollout in new])
        return
    for begin in range(0, len(new), _ROWS_PER_INSERT):
        rows = [_row(rollout) for rollout in new[begin : begin + _ROWS_PER_INSERT]]
        columns = tuple(rows[0])
        connection.exec_driver_sql(_insert_many(columns, len(rows)), tuple(itertools.chain(*map(dict.values, rows))))


@cache
def _insert_many(columns: Sequence[str], count: int) -> str:
    marks = f"({', '.join('?' * len(columns))})"
    return f"INSERT INTO rollouts ({', '.join(columns)}) VALUES {', '.join([marks] * count)}"


def _check_runs(connection: Connection, wanted: set[RunId]) -> None:
    for run_id in wanted:
        if connection.execute(select(runs.c.ordinal).where(runs.c.run_id == run_id)).first() is None:
            raise NotFoundError(f"runs/{run_id} does not exist", name=f"runs/{run_id}")


def _filtered(query: Select[Any], wanted: Filter) -> Select[Any]:
    if wanted.run_id is not None:
        query = query.where(rollouts.c.run_id == wanted.run_id)
    if wanted.states:
        query = query.where(rollouts.c.state.in_(wanted.states))
    if wanted.group_id:
        query = query.where(rollouts.c.group_id == wanted.group_id)
    return query


def _row(rollout: Rollout) -> dict[str, Any]:
    spec = rollout.spec
    return {
        "ordinal": rollout.ordinal,
        "rollout_id": spec.rollout_id,
        "run_id": spec.run_id,
        "group_id": spec.group_id,
        "split": spec.split,
        "max_attempts": spec.max_attempts,
        "create_time": rollout.create_time,
        "change": rollout.change,
        "input": spec.input,
        "runner": spec.runner,
        "metadata": spec.metadata,
    } | _status_row(rollout.status)


def _status_row(status: RolloutStatus) -> dict[str, Any]:
    return {
        "state": status.state,
        "attempt": status.attempt,
        "outcome": status.outcome,
        "message": status.message,
        "start_time": status.start_time,
        "finish_time": status.finish_time,
        "revision": status.revision,
    }


def _rollout(row: Row[Any]) -> Rollout:
    fields = row._mapping
    return Rollout(
        ordinal=fields["ordinal"],
        spec=RolloutSpec(
            rollout_id=fields["rollout_id"],
            run_id=fields["run_id"],
            group_id=fields["group_id"],
            split=Split(fields["split"]),
            input=fields["input"],
            runner=fields["runner"],
            metadata=fields["metadata"],
            max_attempts=fields["max_attempts"],
        ),
        status=RolloutStatus(
            state=RolloutState(fields["state"]),
            attempt=fields["attempt"],
            outcome=None if fields["outcome"] is None else Outcome(fields["outcome"]),
            message=fields["message"],
            start_time=fields["start_time"],
            finish_time=fields["finish_time"],
            revision=fields["revision"],
        ),
        create_time=fields["create_time"],
        change=fields["change"],
    )
