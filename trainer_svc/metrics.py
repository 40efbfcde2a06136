"""Figures of a step, typed by how they are reduced, and `metrics.jsonl`: one JSON object a line and step."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer_svc.files import replace_text


@dataclass(frozen=True, slots=True)
class Mean:
    """A weighted mean."""

    value: float
    weight: float = 1.0

    def merged(self, other: "Mean") -> "Mean":
        """Of both together."""
        weight = self.weight + other.weight
        return Mean((self.value * self.weight + other.value * other.weight) / weight if weight else 0.0, weight)


@dataclass(frozen=True, slots=True)
class Max:
    """The largest."""

    value: float

    def merged(self, other: "Max") -> "Max":
        """Of both together."""
        return Max(max(self.value, other.value))


@dataclass(frozen=True, slots=True)
class Sum:
    """A total."""

    value: float

    def merged(self, other: "Sum") -> "Sum":
        """Of both together."""
        return Sum(self.value + other.value)


Metric = Mean | Max | Sum


class Metrics:
    """Collects one step's figures; a name keeps its kind."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def add(self, **metrics: Metric) -> None:
        """Merge by name. Raises TypeError where a name changes its kind."""
        for name, metric in metrics.items():
            match self._metrics.get(name), metric:
                case None, _:
                    self._metrics[name] = metric
                case Mean() as old, Mean():
                    self._metrics[name] = old.merged(metric)
                case Max() as old, Max():
                    self._metrics[name] = old.merged(metric)
                case Sum() as old, Sum():
                    self._metrics[name] = old.merged(metric)
                case old, _:
                    raise TypeError(f"{name} is a {type(old).__name__}, not a {type(metric).__name__}")

    def values(self) -> dict[str, float]:
        """The reduced figures by name; whole numbers as int."""
        return {name: _plain(metric.value) for name, metric in self._metrics.items()}


Line = dict[str, object]
"""One line of metrics.jsonl: `step`, then figures and names."""


class MetricsFile:
    """metrics.jsonl: appended a line a step, cut back when a run goes on from an earlier step."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[Line]:
        """All complete lines; a last one that a crash cut off is left out."""
        if not self._path.exists():
            return []
        *complete, _ = self._path.read_text().split("\n")
        return [json.loads(line) for line in complete]

    def append(self, line: Mapping[str, object]) -> None:
        """Write one line. Figures that are not finite become null."""
        with self._path.open("a") as file:
            file.write(_json(line) + "\n")

    def amend(self, **figures: float) -> None:
        """Add figures to the last line."""
        *lines, last = self.lines()
        self._write([*lines, {**last, **figures}])

    def cut(self, step: int) -> list[Line]:
        """Drop what comes after `step`; the lines that stay."""
        kept = [line for line in self.lines() if int(str(line["step"])) <= step]
        self._write(kept)
        return kept

    def _write(self, lines: Sequence[Line]) -> None:
        replace_text(self._path, "".join(_json(line) + "\n" for line in lines))


def _json(line: Mapping[str, object]) -> str:
    finite = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}
    return json.dumps(finite, ensure_ascii=False)


def _plain(value: float) -> float:
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else float(value)
