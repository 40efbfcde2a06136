"""What counts as a retry, as functions of values. `docs/retries.md` gives the reasons.

In: what a request says of itself, and the earlier calls of its attempt with the same body. Out: the call that it
belongs to, or None: then it is a sibling and gets a response of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway_svc.types import Mode, Repeat

TURN_SIZE = 16
"""Bytes of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An earlier call of the same turn; `lost` = its connection is gone and its reply was not written out in full."""

    key: str
    lost: bool


def turn(body_digest: bytes, mode: Mode, model: str, choice_index: int) -> bytes:
    """What must be equal for a retry, within an attempt. Each choice of a request is a turn of its own."""
    hashed = blake2b(f"{mode} {model} {choice_index} ".encode(), digest_size=TURN_SIZE)
    hashed.update(body_digest)
    return hashed.digest()


def choose(repeat: Repeat, earlier: Sequence[Earlier]) -> int | None:
    """Index of the call that this request retries; `earlier` is ordered latest first, all of the same turn.

    The same key decides. Two different keys are two calls, whatever else. Then a call whose reply was lost waits for
    just this request. Then one that says of itself that it retries belongs to the latest.
    """
    if repeat.key:
        for index, call in enumerate(earlier):
            if call.key == repeat.key:
                return index
    free = [(index, call) for index, call in enumerate(earlier) if not (repeat.key and call.key)]
    lost = next((index for index, call in free if call.lost), None)
    if lost is not None or not repeat.is_retry:
        return lost
    return free[0][0] if free else None
