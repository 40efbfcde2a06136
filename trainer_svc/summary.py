"""`summary.json`: the run in a dozen figures, written once, when the run is complete."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer_svc.files import replace_text
from trainer_svc.state import DriverState


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to. Accuracies are held out, sampled at temperature 1; None = not measured."""

    run_id: str
    seed: int
    accuracy_before: float | None
    accuracy_after: float | None
    steps: int
    rollouts: int
    samples_per_rollout: float
    trained_tokens: int
    recorded_tokens: int
    undelivered_calls: int
    weight_version: str
    seconds: float


def summarise(
    state: DriverState, *, run_id: str, seed: int, accuracy_after: float | None, weight_version: str
) -> Summary:
    """Of the driver's last state."""
    return Summary(
        run_id=run_id,
        seed=seed,
        accuracy_before=state.accuracy_before,
        accuracy_after=accuracy_after,
        steps=state.step,
        rollouts=state.rollouts,
        samples_per_rollout=round(state.samples / state.rollouts, 4) if state.rollouts else 0.0,
        trained_tokens=state.trained_tokens,
        recorded_tokens=state.recorded_tokens,
        undelivered_calls=state.undelivered_calls,
        weight_version=weight_version,
        seconds=round(state.seconds, 1),
    )


def write(summary: Summary, path: Path) -> None:
    """Whole or not at all."""
    replace_text(path, json.dumps(asdict(summary), indent=2) + "\n")
