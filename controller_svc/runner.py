"""What carries out attempts, whatever the backend."""

from collections.abc import Mapping
from typing import Protocol

from controller_svc.types import Exit, Rollout, RolloutId


class Runner(Protocol):
    """What carries out attempts; exits come by `Controller.exited`. See `local/process.py`."""

    async def launch(self, rollout: Rollout, number: int, token: str) -> Exit | None:
        """Start an attempt, its agent with the token (empty = none); an exit where it ended before it began."""

    def signal(self, rollout: RolloutId, number: int, signal_number: int) -> None:
        """Signal everything that belongs to an attempt."""

    def output(self, rollout: RolloutId, number: int) -> Mapping[str, str]:
        """Ends of `stdout` and `stderr`."""

    async def remove(self, rollout: RolloutId, number: int, *, failed: bool) -> None:
        """Forget an attempt that has ended."""
