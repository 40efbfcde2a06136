"""What all dialects do with a body: JSON within limits, a loose schema, a digest.

Raises InvalidFieldError, or RequestTooLargeError where there is more of something than the limits allow.
"""

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from openai_bridge.settings import LimitSettings
from openai_bridge.types import Message
from whippletree.errors import InvalidFieldError, RequestTooLargeError

INT32 = 2**31 - 1
Stop = Annotated[str, Field(min_length=1, max_length=1_000)]
"""A stop string."""
Stops = Annotated[
    list[Stop], Field(max_length=16), BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]
"""Stop strings; one alone may be given as it is."""

_MARKS = (b",", b"[", b"{")
"""A body has no more values than it has of these, and one. What is in its strings counts too: that much never fits a
model's context."""


class Loose(BaseModel):
    """Part of a body; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


B = TypeVar("B", bound=Loose)


def json_object(data: bytes, limits: LimitSettings) -> dict[str, Any]:
    """A body that is one JSON object, with no more in it than one request may ask for."""
    if len(data) > limits.body:
        raise RequestTooLargeError(f"The body has {len(data)} bytes, more than {limits.body}.", field="body")
    if len(data) > limits.values and sum(map(data.count, _MARKS)) >= limits.values:
        raise RequestTooLargeError(f"The body has more than {limits.values} JSON values or commas.", field="body")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidFieldError(f"The body could not be parsed as JSON: {error}", field="body") from None
    if not isinstance(value, dict):
        raise InvalidFieldError("The body must be a JSON object.", field="body")
    for field, most in (("messages", limits.messages), ("tools", limits.tools)):
        if isinstance(listed := value.get(field), list) and len(listed) > most:
            raise RequestTooLargeError(f"Invalid '{field}': {len(listed)}, more than {most}.", field=field)
    return value


def validated(schema: type[B], value: Any, place: str = "") -> B:
    """The object as its schema knows it; the first thing that is wrong is told. `place` = where in the body it is."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, (place, *first["loc"]) if place else first["loc"]))
        if first["type"] == "missing":
            raise InvalidFieldError(f"Missing required parameter: '{field}'.", field=field) from None
        raise InvalidFieldError(f"Invalid '{field}': {first['msg']}.", field=field) from None


def refuse_prefill(messages: Sequence[Message]) -> None:
    """Raise where the assistant has the last word: a template would end that turn and begin another."""
    if messages and messages[-1].role == "assistant":
        raise InvalidFieldError(
            "Invalid 'messages': the last one is the assistant's, and a prefilled reply is not continued. "
            "Add a user message or a tool's result.",
            field="messages",
        )


def digest(dialect: str, body: Mapping[str, Any], *, without: Collection[str]) -> bytes:
    """128 bits that equal requests of a dialect have in common; what `without` names makes no difference."""
    kept = {name: value for name, value in body.items() if name not in without}
    return sha256(_dumps([dialect, kept], "body", orjson.OPT_SORT_KEYS)).digest()[:16]


def json_text(value: Any, field: str) -> str:
    """A parsed value as JSON again. InvalidFieldError where it is nested too deeply to be written."""
    return _dumps(value, field, 0).decode()


def _dumps(value: Any, field: str, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        raise InvalidFieldError(f"Invalid '{field}': nested too deeply.", field=field) from None
