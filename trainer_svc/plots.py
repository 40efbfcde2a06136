"""metrics.jsonl -> a picture of reward and held-out accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def curve(lines: Sequence[Mapping[str, object]], key: str) -> tuple[list[float], list[float]]:
    """(steps, values) of the lines that have a number under `key`."""
    points = [(line["step"], line[key]) for line in lines if isinstance(line.get(key), int | float)]
    return [float(str(step)) for step, _ in points], [float(str(value)) for _, value in points]


def plot_rewards(lines: Sequence[Mapping[str, object]], title: str, path: Path) -> None:
    """Write a PNG: the batches' reward as a thin line, held-out accuracy as points joined."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # costs a second, that a run need not wait for at start
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(*curve(lines, "reward"), color="tab:blue", alpha=0.6, label="reward of the batch")
    axes.plot(*curve(lines, "heldout_accuracy"), color="tab:orange", marker="o", label="held-out accuracy")
    axes.set(xlabel="step", ylabel="reward", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
