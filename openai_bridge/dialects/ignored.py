"""Which fields of a body asked for something and were not used: their names go into the record of the call.

A dialect says by `Shape`s what it uses. A field that cannot change what is sampled (who asks, where it is kept, how it
is billed) counts as used; so does one whose value asks for nothing, or for what is done anyway. Names are JSON paths
without indices, such as `foo` or `messages.foo`. Nothing that is named here reaches a model.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST = 50
"""Names of one request; the first ones that are met."""
LENGTH = 100
"""Characters of a name."""
NOTHING: Collection[Any] = (None, "", [])
"""Values that ask for nothing, whatever the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The fields of an object that are used, at one place of a body."""

    place: str = ""
    """Stands before the names of its fields, with a dot at the end."""
    used: frozenset[str] = frozenset()
    usual: Mapping[str, Collection[Any]] = field(default_factory=dict)
    """Fields that are not used, with the values that ask for what is done anyway."""
    inside: Mapping[str, "Shape"] = field(default_factory=dict)
    """Those of `used` that hold objects with fields of their own, one or a list."""


def note(value: Any, shape: Shape, found: set[str]) -> None:
    """Add to `found` what an object, or each in a list, holds beside its shape."""
    used, inside = shape.used, shape.inside
    for one in value if type(value) is list else (value,):
        if type(one) is not dict:
            continue
        if not used.issuperset(one):
            _add(one, shape, found)
        for name in inside:
            if (under := one.get(name)) is not None and type(under) is not str:
                note(under, inside[name], found)


def names(found: set[str]) -> tuple[str, ...]:
    """As they are recorded."""
    return tuple(sorted(found))


def _add(one: Mapping[str, Any], shape: Shape, found: set[str]) -> None:
    for name, value in one.items():
        if len(found) == MOST:
            return
        if name not in shape.used and value not in NOTHING and value not in shape.usual.get(name, ()):
            start = name[:LENGTH]
            found.add((shape.place + (start if start.isprintable() else ascii(start)[1:-1]))[:LENGTH])
