"""What a verification found."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that must not be: which row, and what is wrong with it."""

    where: str
    what: str


@dataclass(slots=True, kw_only=True)
class Report:
    """Counts by what was looked at, faults in the order found."""

    counts: dict[str, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def count(self, what: str, more: int = 1) -> None:
        """Note that so many were looked at."""
        self.counts[what] = self.counts.get(what, 0) + more

    def fault(self, where: str, what: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(where=where, what=what))
