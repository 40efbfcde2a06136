"""Model calls in the store, prefix-shared: a call keeps what its prompt adds to its parent's prompt + response.

In: what was asked and sampled. Out: a durable call; read again as stored (PACKED), expanded (FULL) or without tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
from sqlalchemy import Connection, Row, and_, bindparam, insert, select, update

from gateway_svc import prefix, requests, rollout_state, rollouts, schema
from gateway_svc.prepared import Prepared
from gateway_svc.schema import calls, events, turns
from gateway_svc.store import Transaction
from gateway_svc.types import (
    Ask,
    CallHead,
    CallId,
    Delivery,
    Event,
    Finish,
    Micros,
    Mode,
    ModelCall,
    ModelName,
    Role,
    RolloutId,
    Sampled,
    Sampling,
    Span,
    View,
)
from whippletree.errors import InternalError, NotFoundError

_BASIC = [column for column in calls.c if column.name not in ("response", "logprobs", "suffix", "digest", "parent")]
_BASIC.append(turns.c.lost)
_WITH_TURN = calls.join(turns, and_(turns.c.rollout == calls.c.rollout, turns.c.sequence == calls.c.sequence), True)
_TOKENS = [calls.c.response, calls.c.logprobs, calls.c.suffix]
_LONGEST = Prepared(
    select(calls.c.sequence, calls.c.call_id, calls.c.length, calls.c.digest)
    .where(calls.c.rollout == bindparam("rollout"), calls.c.attempt == bindparam("attempt"))
    .where(calls.c.length <= bindparam("most"))
    .order_by(calls.c.length.desc(), calls.c.sequence.desc())
    .limit(bindparam("size"))
    .offset(bindparam("offset"))
)
_SAME_PROMPT = (
    select(calls.c.sequence, calls.c.call_id, calls.c.length, calls.c.digest)
    .where(calls.c.rollout == bindparam("rollout"), calls.c.attempt == bindparam("attempt"))
    .where(calls.c.length >= bindparam("size"), calls.c.prompt_count == bindparam("size"))
    .where(calls.c.parent.is_not_distinct_from(bindparam("parent", type_=schema.Number)))
    .where(calls.c.shared == bindparam("shared"), calls.c.suffix == bindparam("suffix"))
    .order_by(calls.c.sequence)
    .limit(1)
)
_INSERT, _INSERT_EVENT = Prepared(insert(calls)), Prepared(insert(events))
_CHAIN = select(calls.c.parent, calls.c.shared, calls.c.suffix, calls.c.response)


FIRST_LOOK = 8
"""Calls that are looked at first for a prompt's parent; a dialogue continues its longest call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A call that is to be recorded; `match` says what its prompt continues, `siblings` whether others may have it."""

    ask: Ask
    call_id: CallId
    head: CallHead
    match: prefix.Match
    prompt: prefix.Hashed
    sampled: Sampled
    siblings: bool = False


def parent(connection: Connection, rollout: int, attempt: int, prompt: prefix.Hashed) -> prefix.Match:
    """Which call of the attempt the prompt continues. Calls are looked at from the longest on, a few at first."""
    keys, offset, size = {"rollout": rollout, "attempt": attempt, "most": len(prompt.prompt) // 4}, 0, FIRST_LOOK
    while True:
        rows = _LONGEST.all(connection, keys | {"size": size, "offset": offset})
        match = prefix.longest(
            prompt, [prefix.Sequence(key=r[0], call_id=r[1], length=r[2], digest=r[3]) for r in rows]
        )
        if match.parent is not None or len(rows) < size:
            return match
        offset, size = offset + size, 8 * size


def same_prompt(connection: Connection, rollout: int, attempt: int, prompt: bytes, match: prefix.Match) -> prefix.Match:
    """`match`, or the first call that was recorded with the same prompt and the same match: then it is all shared."""
    suffix = prompt[4 * match.shared :]
    keys = {"rollout": rollout, "attempt": attempt, "size": len(prompt) // 4, "shared": match.shared, "suffix": suffix}
    row = connection.execute(_SAME_PROMPT, keys | {"parent": match.parent.key if match.parent else None}).first()
    if row is None or not suffix:
        return match
    found = prefix.Sequence(key=row.sequence, call_id=row.call_id, length=row.length, digest=row.digest)
    return prefix.Match(parent=found, shared=len(prompt) // 4)


def record(tx: Transaction, draft: Draft, ordinal: int) -> Event:
    """Store one call, by a request that has no answer yet, of the rollout with this ordinal.

    Raises NotFoundError where that is gone, StaleAttemptError and RolloutEndedError where the attempt may not write any
    more.
    """
    ask, sampled = draft.ask, draft.sampled
    rollout = rollouts.standing(tx.connection, ask.rollout_id, ordinal)
    rollout_state.check_writable(rollout, ask.attempt, f"rollouts/{ask.rollout_id}")
    event: dict[str, Any] = {
        "rollout": rollout.ordinal,
        "attempt": ask.attempt,
        "create_time": tx.now,
        "may_ignore": False,
    }
    event |= {"kind": "call", "label": "", "call_id": draft.call_id, "value": None, "body": b""}
    sequence = tx.next_sequence()
    _INSERT_EVENT.run(tx.connection, event | {"sequence": sequence})
    match = draft.match
    if draft.siblings:
        match = same_prompt(tx.connection, rollout.ordinal, ask.attempt, ask.prompt, match)
    found = match.parent
    call = ModelCall(
        call_id=draft.call_id,
        head=draft.head,
        prompt_count=len(ask.prompt) // 4,
        response_count=sampled.count,
        parent_call_id=found.call_id if found else "",
        shared=match.shared,
        delivery=Delivery.UNKNOWN,
        suffix=ask.prompt[4 * match.shared :],
        response=sampled.response,
        logprobs=sampled.logprobs,
    )
    keys: dict[str, Any] = {"sequence": sequence, "rollout": rollout.ordinal, "attempt": ask.attempt}
    keys["parent"] = found.key if found else None
    digest = draft.prompt.followed_by(sampled.response).digest()
    _INSERT.run(tx.connection, _row(call) | keys | {"digest": digest})
    requests.remember(tx, ask.once, orjson.dumps(sequence))
    return Event(rollout_id=ask.rollout_id, sequence=sequence, attempt=ask.attempt, create_time=tx.now, payload=call)


def replayed(connection: Connection, answer: bytes) -> Event:
    """The recorded call that a remembered answer names, tokens as stored."""
    sequence: int = orjson.loads(answer)
    event = connection.execute(
        select(events.c.attempt, events.c.create_time, schema.rollouts.c.rollout_id)
        .join(schema.rollouts, schema.rollouts.c.ordinal == events.c.rollout)
        .where(events.c.sequence == sequence)
    ).first()
    if event is None:
        raise NotFoundError(f"events/{sequence} was deleted since it was recorded", name=f"events/{sequence}")
    payload = by_sequence(connection, [sequence], View.PACKED)[sequence]
    return Event(
        rollout_id=event.rollout_id,
        sequence=sequence,
        attempt=event.attempt,
        create_time=event.create_time,
        payload=payload,
    )


def by_sequence(connection: Connection, sequences: Sequence[int], view: View) -> dict[int, ModelCall]:
    """Calls by their sequence (at most 1,000)."""
    columns = _BASIC if view == View.BASIC else [*_BASIC, *_TOKENS]
    query = select(*columns).select_from(_WITH_TURN).where(calls.c.sequence.in_(sequences))
    rows = connection.execute(query).all() if sequences else ()
    found = {row.sequence: _call(row, view) for row in rows}
    if view == View.FULL:
        cache: dict[int, bytes] = {}
        for sequence in sorted(found):
            whole = sequence_tokens(connection, sequence, cache)
            call = found[sequence]
            found[sequence] = replace(call, prompt=whole[: 4 * call.prompt_count], suffix=b"")
    return found


def sequence_tokens(connection: Connection, sequence: int, cache: dict[int, bytes]) -> bytes:
    """Packed prompt + response of one call, expanded through its parents; `cache` serves a whole rollout."""
    chain: list[Any] = []
    keys: list[int] = []
    key: int | None = sequence
    while key is not None and key not in cache:
        row = connection.execute(_CHAIN.where(calls.c.sequence == key)).first()
        if row is None:
            raise InternalError(f"call {key} is missing")
        chain.append(row)
        keys.append(key)
        key = row.parent
    whole = cache[key] if key is not None else b""
    for key, row in zip(reversed(keys), reversed(chain), strict=True):
        whole = whole[: 4 * row.shared] + row.suffix + row.response
        cache[key] = whole
    return whole


def mark_delivered(tx: Transaction, rollout_id: RolloutId | None, call_ids: Sequence[str]) -> None:
    """Mark calls of a rollout as delivered. Raises NotFoundError where one is none of its calls.

    None = calls of any rollouts; those that are not there (any more) are passed over.
    """
    if rollout_id is not None:
        rollout = rollouts.standing(tx.connection, rollout_id)
        known = select(calls.c.call_id).where(calls.c.rollout == rollout.ordinal, calls.c.call_id.in_(call_ids))
        missing = set(call_ids) - set(tx.connection.execute(known).scalars())
        if missing:
            name = sorted(missing)[0]
            raise NotFoundError(f"rollouts/{rollout_id} has no call {name}", name=name)
    tx.connection.execute(update(calls).where(calls.c.call_id.in_(call_ids)).values(delivered=True))


def exists(connection: Connection, rollout: int, call_id: str) -> bool:
    """Whether the rollout has this call."""
    query = select(calls.c.sequence).where(calls.c.call_id == call_id, calls.c.rollout == rollout)
    return connection.execute(query).first() is not None


def _row(call: ModelCall) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "prompt_count": call.prompt_count,
        "response_count": call.response_count,
        "length": call.prompt_count + call.response_count,
        "parent_call_id": call.parent_call_id,
        "shared": call.shared,
        "delivered": call.delivery == Delivery.DELIVERED,
        "head": orjson.dumps(call.head).decode(),
        "response": call.response,
        "logprobs": call.logprobs,
        "suffix": call.suffix,
    }


def _call(row: Row[Any], view: View) -> ModelCall:
    tokens = view != View.BASIC
    return ModelCall(
        call_id=row.call_id,
        head=head_from(orjson.loads(row.head)),
        prompt_count=row.prompt_count,
        response_count=row.response_count,
        parent_call_id=row.parent_call_id,
        shared=row.shared,
        delivery=_delivery(delivered=row.delivered, lost=bool(row.lost)),
        suffix=row.suffix if tokens else b"",
        response=row.response if tokens else b"",
        logprobs=row.logprobs if tokens else b"",
    )


def _delivery(*, delivered: bool, lost: bool) -> Delivery:
    """Delivered is final; lost is what the latest request that was given the call says."""
    if delivered:
        return Delivery.DELIVERED
    return Delivery.LOST if lost else Delivery.UNKNOWN


def head_from(fields: Mapping[str, Any]) -> CallHead:
    """What is known of a call, from its JSON form; what stores of earlier versions do not have is not known."""
    return CallHead(
        model=ModelName(fields["model"]),
        dialect=fields["dialect"],
        mode=Mode(fields["mode"]),
        sampling=sampling_from(fields["sampling"]),
        asked_sampling=fields["asked_sampling"],
        finish=Finish(fields["finish"]),
        matched_stop=fields["matched_stop"],
        engine=fields["engine"],
        start_time=Micros(fields["start_time"]),
        hold=Micros(fields["hold"]),
        engine_time=Micros(fields["engine_time"]),
        spans=tuple(Span(**span) for span in fields["spans"]),
        role=Role(fields.get("role", Role.POLICY)),
        checksum=fields.get("checksum"),
        ignored_fields=tuple(fields.get("ignored_fields", ())),
    )


def sampling_from(fields: Mapping[str, Any]) -> Sampling:
    """Sampling from its JSON form."""
    return Sampling(**{**fields, "stop": tuple(fields["stop"])})
