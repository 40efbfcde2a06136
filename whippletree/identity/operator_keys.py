"""Operators' keys: random, shown once, kept as digests.

A key is `wt_ID_SECRET` with 256 random bits, so that one SHA-256 is as good as a slow hash: nothing can be guessed. The
id is no secret; it names the key in lists and logs.
"""

import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from whippletree.errors import UnauthenticatedError
from whippletree.identity.claims import Operator

PREFIX = "wt_"
"""By it Envoy and the services tell a key from a token."""
_FORM = re.compile(r"wt_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_NOBODY = sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKey:
    """What is kept of a key."""

    key_id: str
    name: str
    """For people: whose it is, or what for."""
    digest: str
    """SHA-256 of the whole key, hexadecimal."""
    created: int
    """Seconds since 1970 UTC."""


def new_key(name: str, *, now: int) -> tuple[str, OperatorKey]:
    """A new key, to be shown once, and what is kept of it."""
    key_id = secrets.token_hex(4)
    key = f"{PREFIX}{key_id}_{secrets.token_urlsafe(32)}"
    return key, OperatorKey(key_id=key_id, name=name, digest=_digest(key), created=now)


def check(key: str, known: Mapping[str, OperatorKey]) -> Operator:
    """Whose key it is; takes as long for an unknown id as for a wrong secret. UnauthenticatedError."""
    match = _FORM.fullmatch(key)
    found = known.get(match[1]) if match else None
    if not hmac.compare_digest(_digest(key), found.digest if found else _NOBODY) or found is None:
        raise UnauthenticatedError("the API key is not known, or was revoked")
    return Operator(key_id=found.key_id)


def _digest(key: str) -> str:
    return sha256(key.encode(errors="replace")).hexdigest()
