"""Which sampling parameters are really used, and what the harness asked for and did not get.

In train mode temperature, top_p and top_k are the run's (default 1, 1, off), so that recorded log-probabilities are
those of the distribution that was sampled; max_tokens, stop and seed are the harness's. In eval mode the run's eval
parameters hold and unset ones are the harness's. An auxiliary model is sampled as the harness asks.
"""

import math
from dataclasses import dataclass

import orjson

from gateway_svc.types import Mode, Role, Run, Sampling
from whippletree.errors import InvalidFieldError

STOP_LIMIT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """`sampling` has every field but the seed set; `asked` is JSON of what differs, empty = nothing."""

    sampling: Sampling
    asked: str


def used(*, mode: Mode, role: Role, run: Run, asked: Sampling, asked_json: str, room: int) -> Used:
    """Resolve the parameters of one call. `room` = tokens that the context leaves. Raises InvalidFieldError."""
    if role == Role.AUXILIARY:
        chosen = _merged(asked, Sampling())
    elif mode == Mode.EVAL:
        chosen = _merged(run.eval_sampling, asked)
    else:
        fixed = run.train_sampling
        chosen = _merged(
            Sampling(max_tokens=asked.max_tokens, stop=asked.stop, seed=asked.seed),
            fixed,
        )
    resolved = Sampling(
        temperature=1.0 if chosen.temperature is None else chosen.temperature,
        top_p=1.0 if chosen.top_p is None else chosen.top_p,
        top_k=-1 if chosen.top_k is None else chosen.top_k,
        max_tokens=room if chosen.max_tokens is None else min(chosen.max_tokens, room),
        stop=chosen.stop,
        seed=chosen.seed,
    )
    check(resolved)
    return Used(sampling=resolved, asked=_differences(asked, resolved, asked_json))


def check(sampling: Sampling) -> None:
    """Raise InvalidFieldError where a set field is out of range."""
    temperature, top_p, top_k = sampling.temperature, sampling.top_p, sampling.top_k
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise InvalidFieldError(f"temperature {temperature} is not a finite number >= 0", field="sampling.temperature")
    if top_p is not None and not 0 < top_p <= 1:
        raise InvalidFieldError(f"top_p {top_p} lies outside (0, 1]", field="sampling.top_p")
    if top_k is not None and top_k != -1 and top_k < 1:
        raise InvalidFieldError(f"top_k {top_k} is neither -1 nor positive", field="sampling.top_k")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InvalidFieldError(f"max_tokens {sampling.max_tokens} is not positive", field="sampling.max_tokens")
    if len(sampling.stop) > STOP_LIMIT or not all(sampling.stop):
        raise InvalidFieldError(f"stop holds at most {STOP_LIMIT} strings, none of them empty", field="sampling.stop")


def _merged(first: Sampling, second: Sampling) -> Sampling:
    """Fields of `first`, where unset those of `second`."""
    return Sampling(
        temperature=second.temperature if first.temperature is None else first.temperature,
        top_p=second.top_p if first.top_p is None else first.top_p,
        top_k=second.top_k if first.top_k is None else first.top_k,
        max_tokens=second.max_tokens if first.max_tokens is None else first.max_tokens,
        stop=first.stop or second.stop,
        seed=second.seed if first.seed is None else first.seed,
    )


def _differences(asked: Sampling, resolved: Sampling, asked_json: str) -> str:
    """What was asked for and not used, as JSON with sorted keys."""
    other: dict[str, object] = {}
    if asked_json:
        try:
            parsed = orjson.loads(asked_json)
        except orjson.JSONDecodeError as error:
            raise InvalidFieldError("asked_sampling is not JSON", field="asked_sampling") from error
        if not isinstance(parsed, dict):
            raise InvalidFieldError("asked_sampling is not a JSON object", field="asked_sampling")
        other |= parsed
    for name in ("temperature", "top_p", "top_k", "max_tokens", "seed"):
        wanted = getattr(asked, name)
        if wanted is not None and wanted != getattr(resolved, name):
            other[name] = wanted
    if asked.stop and asked.stop != resolved.stop:
        other["stop"] = list(asked.stop)
    return orjson.dumps(other, option=orjson.OPT_SORT_KEYS).decode() if other else ""
