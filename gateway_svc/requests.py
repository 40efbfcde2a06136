"""Requests that are answered once: the same id and body get the first answer, another body is refused.

In: a transaction, an `Once` (None = the caller gave no id) and, after the effect, the bytes that the answer is made
from.
"""

from datetime import timedelta

import orjson
from sqlalchemy import Connection, bindparam, delete, insert, select

from gateway_svc.prepared import Prepared
from gateway_svc.schema import requests
from gateway_svc.store import Transaction
from gateway_svc.types import Micros, Once, Outcome, RolloutState, RolloutStatus
from whippletree.errors import RequestIdReusedError

KEPT = Micros(timedelta(hours=24) // timedelta(microseconds=1))

_INSERT = Prepared(insert(requests))
_BY_ID = Prepared(
    select(requests.c.method, requests.c.digest, requests.c.answer).where(requests.c.request_id == bindparam("id"))
)


def first_answer(connection: Connection, once: Once | None) -> bytes | None:
    """What was remembered for this request; None = it is new. Raises RequestIdReusedError."""
    if once is None:
        return None
    row = _BY_ID.first(connection, {"id": once.request_id})
    if row is None:
        return None
    method, digest, answer = row
    if method != once.method or digest != once.digest:
        raise RequestIdReusedError(f"request_id {once.request_id} was used for another request", method=method)
    return bytes(answer)


def remember(tx: Transaction, once: Once | None, answer: bytes) -> None:
    """Store the answer in the transaction of its effect."""
    if once is not None:
        _INSERT.run(
            tx.connection,
            {
                "request_id": once.request_id,
                "method": once.method,
                "digest": once.digest,
                "create_time": tx.now,
                "answer": answer,
            },
        )


def forget(tx: Transaction) -> None:
    """Remove what is older than 24 hours."""
    tx.connection.execute(delete(requests).where(requests.c.create_time < tx.now - KEPT))


def pack_status(status: RolloutStatus) -> bytes:
    """A rollout's status as an answer."""
    return orjson.dumps(status)


def unpack_status(answer: bytes) -> RolloutStatus:
    """The status in an answer."""
    fields = orjson.loads(answer)
    outcome = fields["outcome"]
    return RolloutStatus(
        state=RolloutState(fields["state"]),
        attempt=fields["attempt"],
        outcome=None if outcome is None else Outcome(outcome),
        message=fields["message"],
        start_time=fields["start_time"],
        finish_time=fields["finish_time"],
        revision=fields["revision"],
    )
