"""Who a caller is and what a token allows: values and pure decisions.

In: claims, and what a request is about. Out: nothing, or PermissionDeniedError. An attempt token is good for one
attempt of one rollout in one mode; a path or message that names another is refused, whatever the scopes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from whippletree.errors import PermissionDeniedError, UnauthenticatedError


class Scope(StrEnum):
    """What the bearer of a token may do."""

    INFER = "infer"
    """Call models."""
    NOTE = "note"
    """Write notes and logs."""
    REWARD = "reward"
    """Write rewards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token says. `issued` and `expires`: seconds since 1970 UTC."""

    rollout: str
    ordinal: int
    """The rollout's number, which no other of its record ever gets, also none that is made anew with its id."""
    attempt: int
    mode: str
    """`train` or `eval`."""
    run: str
    scopes: frozenset[Scope]
    issued: int
    expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The bearer of an operator's key, who may do everything that the gateway offers."""

    key_id: str


Caller = Claims | Operator
HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
"""Where keys and tokens are looked for, in this order: OpenAI's clients, Anthropic's, Google's, Azure's."""


def presented(headers: Iterable[tuple[str, str | bytes]]) -> str:
    """The key or token among the headers. UnauthenticatedError where there is none."""
    found = {name: value for name, value in headers if name in HEADERS}
    for name in HEADERS:
        value = found.get(name)
        if not isinstance(value, str):
            continue
        scheme, _, rest = value.partition(" ")
        if name != "authorization":
            return value.strip()
        if scheme.lower() == "bearer":
            return rest.strip()
    raise UnauthenticatedError("no API key: send it as 'Authorization: Bearer KEY'")


def require(claims: Claims, scope: Scope, *, rollout: str, attempt: int | None = None, mode: str | None = None) -> None:
    """Raise PermissionDeniedError unless the token allows this for this rollout, attempt and mode; None = not named."""
    if scope not in claims.scopes:
        raise PermissionDeniedError(f"the token has no scope '{scope}'", needs=scope)
    if rollout != claims.rollout:
        raise PermissionDeniedError("the token is for another rollout", needs="rollout")
    if attempt is not None and attempt != claims.attempt:
        raise PermissionDeniedError("the token is for another attempt", needs="attempt")
    if mode is not None and mode != claims.mode:
        raise PermissionDeniedError(f"the token is for mode '{claims.mode}'", needs="mode")
