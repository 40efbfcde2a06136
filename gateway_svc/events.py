"""Events in the store: append and read. Model calls are appended by `calls.record`."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, Row, insert, select

from gateway_svc import calls, requests, rollout_state, rollouts
from gateway_svc.prepared import Prepared
from gateway_svc.schema import events
from gateway_svc.store import Transaction
from gateway_svc.types import Event, Log, ModelCall, Note, Once, Payload, Reward, RolloutId, View
from whippletree.errors import InvalidFieldError, NotFoundError, RewardNotFiniteError

_INSERT = Prepared(insert(events))
LABEL_LIMIT = 128
"""Characters of a note's type, a reward's source, a log's stream."""
NOTE_LIMIT = 1 << 20
"""Bytes of a note's data."""
LOG_LIMIT = 64 << 10
"""Bytes of a log's text."""


def check(payload: Reward | Note | Log) -> None:
    """Raise RewardNotFiniteError or InvalidFieldError where the payload cannot be stored."""
    match payload:
        case Reward(value=value, source=label):
            if not math.isfinite(value):
                raise RewardNotFiniteError(f"reward {value} is not a finite number")
            field = "reward.source"
        case Note(type=label, data=data):
            field = "note.type"
            if not label:
                raise InvalidFieldError("note.type is missing", field=field)
            if len(data) > NOTE_LIMIT:
                raise InvalidFieldError(f"note.data has {len(data)} bytes, more than {NOTE_LIMIT}", field="note.data")
        case Log(stream=label, text=text):
            field = "log.stream"
            if len(text.encode()) > LOG_LIMIT:
                raise InvalidFieldError(f"log.text is longer than {LOG_LIMIT} bytes", field="log.text")
    if len(label) > LABEL_LIMIT:
        raise InvalidFieldError(f"{field} is longer than {LABEL_LIMIT} characters", field=field)


def append(
    tx: Transaction,
    rollout_id: RolloutId,
    attempt: int,
    payload: Reward | Note | Log,
    may_ignore: bool,
    once: Once | None,
    ordinal: int = 0,
) -> Event:
    """Store one event of the current attempt of the rollout with this ordinal; 0 = whichever has the id.

    Raises NotFoundError, StaleAttemptError, RolloutEndedError, InvalidFieldError.
    """
    rollout = rollouts.standing(tx.connection, rollout_id, ordinal)
    if (answer := requests.first_answer(tx.connection, once)) is not None:
        first = page(tx.connection, rollout.ordinal, rollout_id, orjson.loads(answer) - 1, 1, View.BASIC)
        if not first or first[0].sequence != orjson.loads(answer):
            name = f"rollouts/{rollout_id}/events/{orjson.loads(answer)}"
            raise NotFoundError(f"{name} was deleted since this request was answered", name=name)
        return first[0]
    rollout_state.check_writable(rollout, attempt, f"rollouts/{rollout_id}")
    if (
        isinstance(payload, Reward)
        and payload.call_id
        and not calls.exists(tx.connection, rollout.ordinal, payload.call_id)
    ):
        raise InvalidFieldError(f"the rollout has no call {payload.call_id}", field="reward.call_id")
    row = {"rollout": rollout.ordinal, "attempt": attempt, "create_time": tx.now, "may_ignore": may_ignore}
    sequence = tx.next_sequence()
    _INSERT.run(tx.connection, row | _row(payload) | {"sequence": sequence})
    requests.remember(tx, once, orjson.dumps(sequence))
    return Event(
        rollout_id=rollout_id,
        sequence=sequence,
        attempt=attempt,
        create_time=tx.now,
        payload=payload,
        may_ignore=may_ignore,
    )


def page(
    connection: Connection, rollout: int, rollout_id: RolloutId, after: int, size: int, view: View, attempt: int = 0
) -> list[Event]:
    """At most `size` events of the rollout with this ordinal after a sequence; `attempt` 0 = all."""
    query = select(events).where(events.c.rollout == rollout, events.c.sequence > after)
    if attempt:
        query = query.where(events.c.attempt == attempt)
    rows = connection.execute(query.order_by(events.c.sequence).limit(size)).all()
    found = calls.by_sequence(connection, [row.sequence for row in rows if row.kind == "call"], view)
    return list(_events(rows, dict.fromkeys((row.sequence for row in rows), rollout_id), found))


def of(connection: Connection, wanted: Mapping[int, RolloutId], view: View) -> list[Event]:
    """The events of these sequences (at most 1,000), each of the rollout named, by sequence."""
    if not wanted:
        return []
    query = select(events).where(events.c.sequence.in_(list(wanted))).order_by(events.c.sequence)
    rows = connection.execute(query).all()
    found = calls.by_sequence(connection, [row.sequence for row in rows if row.kind == "call"], view)
    return list(_events(rows, wanted, found))


def _events(rows: Any, owners: Mapping[int, RolloutId], found: dict[int, ModelCall]) -> Iterator[Event]:
    for row in rows:
        yield Event(
            rollout_id=owners[row.sequence],
            sequence=row.sequence,
            attempt=row.attempt,
            create_time=row.create_time,
            payload=found[row.sequence] if row.kind == "call" else _payload(row),
            may_ignore=row.may_ignore,
        )


def _row(payload: Reward | Note | Log) -> dict[str, Any]:
    match payload:
        case Reward(value=value, source=source, call_id=call_id):
            return {"kind": "reward", "label": source, "call_id": call_id, "value": value, "body": b""}
        case Note(type=label, data=data):
            return {"kind": "note", "label": label, "call_id": "", "value": None, "body": data}
        case Log(stream=stream, text=text):
            return {"kind": "log", "label": stream, "call_id": "", "value": None, "body": text.encode()}


def _payload(row: Row[Any]) -> Payload:
    match row.kind:
        case "reward":
            return Reward(value=row.value, source=row.label, call_id=row.call_id)
        case "note":
            return Note(type=row.label, data=row.body)
        case "log":
            return Log(stream=row.label, text=row.body.decode())
        case kind:
            raise ValueError(f"unknown event kind {kind}")
