"""WhippletreeError -> what an OpenAI client understands: status, error body, and whether a repeat makes sense.

Official clients repeat 408, 409, 429 and 5xx on their own; `x-should-retry` and `retry-after` (seconds) overrule that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import orjson

from whippletree.errors import WhippletreeError

RETRY_AFTER = 1.0
"""Seconds, where an error that may be repeated does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error as the harness sees it."""

    status: int
    """HTTP status."""
    body: bytes
    """JSON, `{"error": {message, type, param, code}}`."""
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    status: int
    code: str
    type: str = "invalid_request_error"
    retry: bool = False


_SERVER = "server_error"
_KINDS: Mapping[str, _Kind] = {
    "INVALID_FIELD": _Kind(status=400, code="invalid_value"),
    "NOT_FOUND": _Kind(status=404, code="not_found"),
    "STALE_ATTEMPT": _Kind(status=400, code="stale_attempt"),
    "ROLLOUT_ENDED": _Kind(status=400, code="rollout_ended"),
    "WRONG_STATE": _Kind(status=400, code="wrong_state"),
    "CONTEXT_LENGTH_EXCEEDED": _Kind(status=400, code="context_length_exceeded"),
    "HELD_TOO_LONG": _Kind(status=503, code="held_too_long", type=_SERVER, retry=True),
    "OVERLOADED": _Kind(status=429, code="rate_limit_exceeded", type="rate_limit_error", retry=True),
    "STORE_FULL": _Kind(status=503, code="store_full", type=_SERVER, retry=True),
    "ENGINE_UNAVAILABLE": _Kind(status=503, code="engine_unavailable", type=_SERVER, retry=True),
    "SHUTTING_DOWN": _Kind(status=503, code="shutting_down", type=_SERVER, retry=True),
    "DEADLINE": _Kind(status=504, code="timeout", type=_SERVER),
}
_FAULT = _Kind(status=500, code="internal_error", type=_SERVER)


def failure(error: WhippletreeError) -> Failure:
    """The OpenAI form of an error. Our own faults keep their text to themselves."""
    kind = _KINDS.get(error.reason, _FAULT)
    headers = {"x-should-retry": "true" if kind.retry else "false"}
    if kind.retry:
        headers["retry-after"] = str(ceil(error.retry_after or RETRY_AFTER))
    body = {
        "error": {
            "message": _message(error, kind),
            "type": kind.type,
            "param": error.metadata.get("field", "messages" if kind.code == "context_length_exceeded" else None),
            "code": "model_not_found" if _is_model(error) else kind.code,
        }
    }
    return Failure(status=kind.status, body=orjson.dumps(body), headers=headers)


def _message(error: WhippletreeError, kind: _Kind) -> str:
    if kind is _FAULT:
        return "The server had an error while processing your request."
    if kind.code == "context_length_exceeded" and {"prompt_tokens", "context_length"} <= error.metadata.keys():
        # The words by which harnesses and their libraries recognise an overflow.
        return (
            f"This model's maximum context length is {error.metadata['context_length']} tokens. However, your messages "
            f"resulted in {error.metadata['prompt_tokens']} tokens. Please reduce the length of the messages."
        )
    return error.message


def _is_model(error: WhippletreeError) -> bool:
    return error.reason == "NOT_FOUND" and error.metadata.get("name", "").startswith("models/")
