"""Ctrl-C while things start: nothing is left. (In the middle of a step: test_story.py.)"""

import signal
from pathlib import Path

import pytest

from tests.e2e import processes
from tests.e2e.conftest import LONGEST, Place, killed_at_the_end, until

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param("prepare", id="while data is prepared"),
        pytest.param("engine     starting", id="while the first parts start"),
        pytest.param("run short-", id="while engine and ranks start"),
    ],
)
def test_ctrl_c_leaves_no_process(tmp_path: Path, sign: str) -> None:
    place = Place(folder=tmp_path)
    with killed_at_the_end(place.demo()) as process:
        until(lambda: sign in place.output(), process, place)
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST) == 130
    assert processes.none_left(place.folder, place.mark, 0.5) == {}
    assert "Traceback" not in place.output()


def test_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    place = Place(folder=tmp_path)
    with killed_at_the_end(place.demo()) as process:
        until(lambda: "run short-" in place.output(), process, place)
        process.kill()
        process.wait()
    assert processes.none_left(place.folder, place.mark, 60) == {}
