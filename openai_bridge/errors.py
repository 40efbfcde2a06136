"""WhippletreeError -> what an HTTP client can do with it: status, code, words, and whether a repeat makes sense.

The official clients repeat 408, 409, 429 and 5xx on their own; `x-should-retry` and `retry-after` (seconds) overrule
that. How a failure is written is a matter of the dialect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from whippletree.errors import WhippletreeError

RETRY_AFTER = 1.0
"""Seconds, where an error that may be repeated does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as a harness may know it."""

    status: int
    """HTTP status."""
    code: str
    message: str
    field: str | None
    """The place in the request, where there is one."""
    overflow: tuple[str, str] | None = None
    """(tokens of the prompt, of the context) where the prompt is too long: each dialect has words of its own for that,
    by which harnesses and their libraries recognise it."""
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    status: int
    code: str
    retry: bool = False


_KINDS: Mapping[str, _Kind] = {
    "INVALID_FIELD": _Kind(status=400, code="invalid_value"),
    "REQUEST_TOO_LARGE": _Kind(status=413, code="request_too_large"),
    "UNSUPPORTED_ENCODING": _Kind(status=415, code="unsupported_encoding"),
    "NOT_FOUND": _Kind(status=404, code="not_found"),
    "STALE_ATTEMPT": _Kind(status=400, code="stale_attempt"),
    "ROLLOUT_ENDED": _Kind(status=400, code="rollout_ended"),
    "WRONG_STATE": _Kind(status=400, code="wrong_state"),
    "CONTEXT_LENGTH_EXCEEDED": _Kind(status=400, code="context_length_exceeded"),
    "HELD_TOO_LONG": _Kind(status=503, code="held_too_long", retry=True),
    "OVERLOADED": _Kind(status=429, code="rate_limit_exceeded", retry=True),
    "STORE_FULL": _Kind(status=503, code="store_full", retry=True),
    "ENGINE_UNAVAILABLE": _Kind(status=503, code="engine_unavailable", retry=True),
    "SHUTTING_DOWN": _Kind(status=503, code="shutting_down", retry=True),
    "DEADLINE": _Kind(status=504, code="timeout"),
}
_FAULT = _Kind(status=500, code="internal_error")


def failure(error: WhippletreeError) -> Failure:
    """An error for the outside. Our own faults keep their text to themselves."""
    kind = _KINDS.get(error.reason, _FAULT)
    headers = {"x-should-retry": "true" if kind.retry else "false"}
    if kind.retry:
        headers["retry-after"] = str(ceil(error.retry_after or RETRY_AFTER))
    return Failure(
        status=kind.status,
        code="model_not_found" if _is_model(error) else kind.code,
        message="The server had an error while processing your request." if kind is _FAULT else error.message,
        field=error.metadata.get("field", "messages" if kind.code == "context_length_exceeded" else None),
        overflow=_overflow(error),
        headers=headers,
    )


def _overflow(error: WhippletreeError) -> tuple[str, str] | None:
    found = error.metadata.get("prompt_tokens"), error.metadata.get("context_length")
    if error.reason != "CONTEXT_LENGTH_EXCEEDED" or found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


def _is_model(error: WhippletreeError) -> bool:
    return error.reason == "NOT_FOUND" and error.metadata.get("name", "").startswith("models/")
