"""Typed reductions and the file of lines."""

import json
from pathlib import Path

import pytest

from trainer_svc.metrics import Max, Mean, Metrics, MetricsFile, Sum


def test_each_kind_is_reduced_in_its_own_way() -> None:
    metrics = Metrics()
    metrics.add(reward=Mean(1.0), longest=Max(3), tokens=Sum(2), loss=Mean(1.0, 1))
    metrics.add(reward=Mean(0.0), longest=Max(1), tokens=Sum(5), loss=Mean(4.0, 3))
    assert metrics.values() == {"reward": 0.5, "longest": 3, "tokens": 7, "loss": 3.25}


def test_a_name_keeps_its_kind() -> None:
    metrics = Metrics()
    metrics.add(tokens=Sum(1))
    with pytest.raises(TypeError, match="tokens is a Sum, not a Max"):
        metrics.add(tokens=Max(1))


def test_a_mean_of_nothing_is_zero() -> None:
    assert Mean(0.0, 0.0).merged(Mean(0.0, 0.0)).value == 0.0


def test_lines_are_appended_amended_and_cut_back(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.lines() == []
    for step in range(4):
        file.append({"step": step, "reward": step / 4})
    file.amend(seconds=1.5)
    assert file.lines()[-1] == {"step": 3, "reward": 0.75, "seconds": 1.5}
    assert [line["step"] for line in file.cut(1)] == [0, 1]
    file.append({"step": 2})
    assert [line["step"] for line in file.lines()] == [0, 1, 2]
    assert file.cut(-1) == []


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"step": 1, "rew')
    assert MetricsFile(path).lines() == [{"step": 0}]


def test_figures_that_are_not_finite_become_null(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path).append({"step": 1, "gradient_norm": float("inf")})
    assert json.loads(path.read_text()) == {"step": 1, "gradient_norm": None}
