"""What the driver itself must remember over its death: it rides in every checkpoint of the ranks.

The order of the data is a function of seed and position (`data.py`), and rollout ids are functions of run, step and
index (`ids.py`), so a position and a step are all that chance needs.
"""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """After a step."""

    step: int = 0  # the last batch that was trained
    position: int = 0  # prompts taken from the data
    updates: int = 0  # optimizer steps of the ranks
    version_step: int = 0  # the step whose weights are published; behind `step` where a step taught nothing
    rollouts: int = 0  # trained on
    samples: int = 0  # made of them
    trained_tokens: int = 0  # trained response tokens of them
    recorded_tokens: int = 0  # recorded response tokens of them
    undelivered_calls: int = 0  # of them, left out because the harness never had the reply
    seconds: float = 0.0  # that the run has taken
    accuracy_before: float | None = None  # held out, before the first step

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "DriverState":
        """Raises TypeError or ValueError where it is something else."""
        return cls(**json.loads(data))
