"""What is remembered of answers about runs and models, in a form that outlives upgrades, and what older gateways wrote.

Answers are JSON objects that are read by name: a field that this gateway does not know is passed over, one that is
missing is None or left out, and then what is stored now holds. The first gateways wrote `true` or `false` alone,
whether it existed; later ones lists.
"""

from dataclasses import asdict, fields
from typing import Any

import orjson

from gateway_svc.types import Model, Phase

_MODEL = {field.name for field in fields(Model)}


def of_run(existed: bool, phase: Phase) -> bytes:
    """The answer of CreateRun."""
    return orjson.dumps({"existed": existed, "phase": phase})


def run(answer: bytes) -> tuple[bool, Phase | None]:
    """Whether the run existed, and its phase then."""
    known = _named(answer, "existed", "phase")
    return bool(known.get("existed")), Phase(known["phase"]) if known.get("phase") else None


def of_model(existed: bool, model: Model) -> bytes:
    """The answer of RegisterModel."""
    return orjson.dumps({"existed": existed, "model": asdict(model)})


def model(answer: bytes) -> tuple[bool, dict[str, Any]]:
    """Whether the model existed, and its fields then, as JSON has them, as far as they were remembered."""
    known = _named(answer, "existed", "model")
    given = known.get("model") or {}
    return bool(known.get("existed")), {name: value for name, value in given.items() if name in _MODEL}


def _named(answer: bytes, *names: str) -> dict[str, Any]:
    """An answer by name, in whichever form it was written."""
    match orjson.loads(answer):
        case dict() as known:
            return known
        case list() as values:
            return dict(zip(names, values, strict=False))
        case existed:
            return {"existed": existed}
