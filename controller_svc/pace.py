"""The creation rate: a bucket of allowances that fills steadily and holds one second's worth."""


class Pace:
    """At most `rate` starts per second on average, and at most one second's worth (at least 1) at once."""

    def __init__(self, *, rate: float, now: float) -> None:
        self._rate, self._size = rate, max(1.0, rate)
        self._level, self._at = self._size, now

    def allowance(self, now: float) -> int:
        """Starts that are allowed now."""
        self._level, self._at = min(self._size, self._level + (now - self._at) * self._rate), now
        return int(self._level)

    def take(self) -> None:
        """One start."""
        self._level -= 1

    def next_at(self, now: float) -> float:
        """When the next start is allowed, seconds on the clock; inf where one is allowed already."""
        missing = 1.0 - (self._level + (now - self._at) * self._rate)
        return now + missing / self._rate if missing > 0 else float("inf")
