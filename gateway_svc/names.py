"""Resource names, ids and opaque tokens: text in, checked ids out, or InvalidFieldError with the field's name."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from gateway_svc.types import ModelName, RolloutId, RunId
from whippletree.errors import InvalidFieldError, ResumeTokenExpiredError

_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?")
_MODEL = re.compile(r"[A-Za-z0-9._-]{1,128}")


def rollout_id(text: str, field: str = "rollout_id") -> RolloutId:
    """A rollout's id."""
    return RolloutId(_checked(_ID, text, field))


def run_id(text: str, field: str = "run_id") -> RunId:
    """A run's id."""
    return RunId(_checked(_ID, text, field))


def rollout(name: str, field: str = "name") -> RolloutId:
    """`rollouts/{rollout}` -> id."""
    return RolloutId(_checked(_ID, _after("rollouts/", name, field), field))


def run(name: str, field: str = "name") -> RunId:
    """`runs/{run}` -> id."""
    return RunId(_checked(_ID, _after("runs/", name, field), field))


def model(name: str, field: str = "name") -> ModelName:
    """`models/{model}` -> bare name."""
    return ModelName(_checked(_MODEL, _after("models/", name, field), field))


def engine_id(text: str, field: str = "engine_id") -> str:
    """An engine's id within its model."""
    return _checked(_ID, text, field)


def engine(name: str, field: str = "name") -> tuple[ModelName, str]:
    """`models/{model}/engines/{engine}` -> bare names."""
    head, separator, text = name.partition("/engines/")
    if not separator:
        raise InvalidFieldError(f"{field} has not the form models/MODEL/engines/ENGINE", field=field)
    return model(head, field), engine_id(text, field)


def attempt(name: str, field: str = "name") -> tuple[RolloutId, int]:
    """`rollouts/{rollout}/attempts/{number}` -> id and number."""
    head, separator, number = name.partition("/attempts/")
    if not separator or not number.isascii() or not number.isdigit() or len(number) > 9:
        raise InvalidFieldError(f"{field} has not the form rollouts/ID/attempts/NUMBER", field=field)
    return rollout(head, field), int(number)


def token(kind: str, position: int | str) -> str:
    """An opaque token for a position of one kind of stream or list."""
    return urlsafe_b64encode(f"{kind}:{position}".encode()).decode().rstrip("=")


def position(kind: str, text: str, field: str) -> str:
    """The position in a token that `token` made for the same kind."""
    try:
        found, _, value = urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode().partition(":")
    except ValueError:
        found, value = "", ""
    if found != kind or not value:
        raise InvalidFieldError(f"{field} is none of ours", field=field)
    return value


def resume(kind: str, identity: str, *positions: int) -> str:
    """An opaque resume token for positions in a stream of the store of this identity."""
    return token(kind, ".".join([identity, *map(str, positions)]))


def resumed(kind: str, identity: str, text: str, count: int) -> tuple[int, ...]:
    """The positions in a token of `resume`, zeros for an empty one. ResumeTokenExpiredError: it is another store's."""
    if not text:
        return (0,) * count
    head, *rest = position(kind, text, "resume_token").split(".")
    if head != identity:
        raise ResumeTokenExpiredError("the resume token is from another store")
    if len(rest) != count or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in rest):
        raise InvalidFieldError("resume_token is none of ours", field="resume_token")
    return tuple(map(int, rest))


def number(kind: str, text: str, field: str) -> int:
    """The number in a token that `token` made for the same kind; 0 for an empty token."""
    if not text:
        return 0
    value = position(kind, text, field)
    if not value.isascii() or not value.isdigit() or len(value) > 18:
        raise InvalidFieldError(f"{field} is none of ours", field=field)
    return int(value)


def _after(prefix: str, name: str, field: str) -> str:
    if not name.startswith(prefix):
        raise InvalidFieldError(f"{field} {name!r} does not begin with {prefix}", field=field)
    return name[len(prefix) :]


def _checked(pattern: re.Pattern[str], text: str, field: str) -> str:
    if not pattern.fullmatch(text):
        raise InvalidFieldError(f"{field} {text[:140]!r} does not match {pattern.pattern}", field=field)
    return text
