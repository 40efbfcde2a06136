"""What all dialects do with a body: JSON, a loose schema, a digest. Raises InvalidFieldError alone."""

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from whippletree.errors import InvalidFieldError

INT32 = 2**31 - 1


class Loose(BaseModel):
    """Part of a body; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


B = TypeVar("B", bound=Loose)


def json_object(data: bytes) -> dict[str, Any]:
    """A body that is one JSON object."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidFieldError(f"The body could not be parsed as JSON: {error}", field="body") from None
    if not isinstance(value, dict):
        raise InvalidFieldError("The body must be a JSON object.", field="body")
    return value


def validated(schema: type[B], value: Mapping[str, Any]) -> B:
    """The object as its schema knows it; the first thing that is wrong is told."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise InvalidFieldError(f"Missing required parameter: '{field}'.", field=field) from None
        raise InvalidFieldError(f"Invalid '{field}': {first['msg']}.", field=field) from None


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
