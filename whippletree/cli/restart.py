"""When a part that ended is started again, and when that is given up: a pure decision."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Back-off that doubles with every quick death and starts over after a long life."""

    first_delay: float = 0.2
    """Seconds before the first new start."""
    max_delay: float = 10.0
    """Seconds, at most."""
    long_life: float = 30.0
    """A part that lived so many seconds counts as healthy again."""
    max_quick_deaths: int = 6
    """So many quick deaths in a row are the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Start again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Do not start again: it died `deaths` times in a row soon after its start."""

    deaths: int


def decide(lifetimes: Sequence[float], policy: RestartPolicy) -> Again | GiveUp:
    """What to do after the part's last death, given how long each of its lives was, seconds, oldest first."""
    deaths = 0
    for lifetime in lifetimes:
        deaths = 1 if lifetime >= policy.long_life else deaths + 1
    if deaths >= policy.max_quick_deaths:
        return GiveUp(deaths=deaths)
    return Again(delay=min(policy.max_delay, policy.first_delay * 2.0 ** max(0, deaths - 1)))
