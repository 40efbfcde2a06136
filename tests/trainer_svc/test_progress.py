"""What people see, off a terminal, and the figures of the table."""

import io
from pathlib import Path

from rich.console import Console

from trainer_svc.plots import curve, plot_rewards
from trainer_svc.progress import Reporter

LINES: list[dict[str, object]] = [
    {"step": 0, "heldout_accuracy": 0.25, "weight_version": "demo-ab12-0000"},
    {
        "step": 1,
        "reward": 0.5,
        "heldout_accuracy": None,
        "samples_per_rollout": 1.25,
        "trained_tokens": 4400,
        "weight_version": "demo-ab12-0001",
        "seconds": 61.4,
        "seconds_train": 2.25,
        "seconds_rollouts": 50,
    },
]


def test_a_bar_off_a_terminal_is_a_line_now_and_then_and_one_at_the_end() -> None:
    now, out = [0.0], io.StringIO()
    reporter = Reporter(Console(file=out, width=100), clock=lambda: now[0])
    with reporter.bar("rollouts", 3) as bar:
        bar.advance("reward 1.0")
        now[0] = 11.0
        bar.advance("reward 0.5")
        bar.advance("reward 0.3")
    assert out.getvalue().splitlines() == ["rollouts: 2/3  reward 0.5", "rollouts: 3/3  reward 0.3"]


def test_a_bar_on_a_terminal_leaves_its_last_state() -> None:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, width=100, force_terminal=True))
    with reporter.bar("rollouts", 1) as bar:
        bar.advance("reward 1.0")
    assert out.getvalue().endswith("rollouts: 1/1  reward 1.0\n")


def test_the_table_fits_a_narrow_terminal_and_says_where_time_went() -> None:
    out = io.StringIO()
    Reporter(Console(file=out, width=80)).table("run demo-ab12", LINES)
    text = out.getvalue()
    assert "…" not in text
    assert [cell.strip() for cell in text.splitlines()[4].split("│")[1:-1]] == ["0", "", "0.250", "", "", "0000", ""]
    row = [cell.strip() for cell in text.splitlines()[5].split("│")[1:-1]]
    assert row == ["1", "0.500", "", "1.250", "4400", "0001", "61"]
    assert text.endswith("seconds: rollouts 50.0, train 2.2\n")


def test_the_picture_leaves_out_what_was_not_measured(tmp_path: Path) -> None:
    assert curve(LINES, "heldout_accuracy") == ([0.0], [0.25])
    assert curve(LINES, "reward") == ([1.0], [0.5])
    plot_rewards(LINES, "demo", tmp_path / "plots" / "reward.png")
    assert (tmp_path / "plots" / "reward.png").stat().st_size > 1000
