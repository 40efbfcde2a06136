"""endpoints.json."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from whippletree.cli import endpoints

HERE = endpoints.Endpoints(
    api="http://127.0.0.1:1",
    envoy="127.0.0.1:1",
    gateway="127.0.0.1:2",
    bridge="127.0.0.1:3",
    controller="127.0.0.1:4",
    engine="http://127.0.0.1:5",
    model="policy",
    model_path="/model",
    record="/run/record.db",
    pid=os.getpid(),
    pids={"gateway": 1},
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    endpoints.write(tmp_path, HERE)
    assert endpoints.read(tmp_path) == HERE
    assert [path.name for path in tmp_path.iterdir()] == ["endpoints.json"]


def test_a_file_of_a_process_that_is_gone_counts_as_none(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    endpoints.write(tmp_path, replace(HERE, pid=gone.pid))
    assert endpoints.read(tmp_path) is None


def test_no_file_and_a_broken_file_count_as_none(tmp_path: Path) -> None:
    assert endpoints.read(tmp_path) is None
    endpoints.path(tmp_path).write_text("{")
    assert endpoints.read(tmp_path) is None
