"""What a person sees while a run goes on: bars on a terminal, plain lines elsewhere, and the table at the end."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trainer_svc.rewards import outcome
from trainer_svc.step import Finished

QUIET = 10.0
"""Seconds between plain lines of one bar."""


class Bar:
    """One piece of work of known size."""

    def __init__(self, title: str, total: int, show: Callable[["Bar"], None]) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self.note = ""
        self._show = show

    def advance(self, note: str) -> None:
        """One more is done; `note` stands beside the bar."""
        self.done += 1
        self.note = note
        self._show(self)


class Reporter:
    """Writes for people. Nothing here decides anything."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock

    def line(self, text: str) -> None:
        """One line."""
        self._console.print(text, highlight=False, markup=False)

    @contextmanager
    def bar(self, title: str, total: int) -> Iterator[Bar]:
        """A bar while the block runs; its last state stays as a line."""
        if self._console.is_terminal:
            with self._live(title, total) as bar:
                yield bar
        else:
            bar = Bar(title, total, self._plain())
            yield bar
        self.line(f"{title}: {bar.done}/{total}  {bar.note}")

    @contextmanager
    def _live(self, title: str, total: int) -> Iterator[Bar]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, TextColumn("{task.fields[note]}"), console=self._console, transient=True)
        with progress:
            task = progress.add_task(title, total=total, note="")
            yield Bar(title, total, lambda bar: progress.update(task, completed=bar.done, note=bar.note))

    def _plain(self) -> Callable[[Bar], None]:
        last = self._clock()

        def show(bar: Bar) -> None:
            nonlocal last
            if self._clock() - last >= QUIET and bar.done < bar.total:
                last = self._clock()
                self.line(f"{bar.title}: {bar.done}/{bar.total}  {bar.note}")

        return show

    def table(self, title: str, lines: Sequence[Mapping[str, object]]) -> None:
        """The run, a row a step, and where the time went."""
        table = Table(title=title)
        for heading in HEADINGS:
            table.add_column(heading, justify="right")
        for line in lines:
            table.add_row(*(_cell(key, line.get(key)) for key in HEADINGS.values()))
        self._console.print(table)
        parts = {key.removeprefix("seconds_") for line in lines for key in line if key.startswith("seconds_")}
        totals = {part: sum(_number(line.get(f"seconds_{part}")) for line in lines) for part in sorted(parts)}
        self.line("seconds: " + ", ".join(f"{part} {total:.1f}" for part, total in totals.items()))


HEADINGS: Mapping[str, str] = {
    "step": "step",
    "reward": "reward",
    "held out": "heldout_accuracy",
    "samples/rollout": "samples_per_rollout",
    "tokens": "trained_tokens",
    "weights": "weight_version",
    "seconds": "seconds",
}
"""Heading -> key of metrics.jsonl."""


def _cell(key: str, value: object) -> str:
    match key, value:
        case _, None:
            return ""
        case "weight_version", _:
            return str(value).rpartition("-")[2]
        case "reward" | "heldout_accuracy" | "samples_per_rollout", _:
            return f"{_number(value):.3f}"
        case "seconds", _:
            return f"{_number(value):.0f}"
        case _:
            return str(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


class Tally:
    """What a bar says of the rollouts that have ended."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._failed = 0
        self._rewards: list[float] = []
        self._tokens = 0

    def add(self, finished: Finished) -> None:
        """One more rollout has ended."""
        self._failed += finished.status.state != "succeeded"
        if (reward := outcome(finished.rewards)) is not None:
            self._rewards.append(reward)
        self._tokens += finished.forest.recorded_tokens
        mean = sum(self._rewards) / len(self._rewards) if self._rewards else 0.0
        self._bar.advance(f"reward {mean:.3f}, {self._failed} failed, {self._tokens} tokens")
