"""One short demo for all end-to-end tests, with accidents: stopped by SIGINT in its first step, gone on with, its
gateway killed in the second. Then the same system again, on the same record, for what needs one that runs."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import processes
from whippletree.cli import endpoints, identity
from whippletree.cli.endpoints import Endpoints
from whippletree.client import Client, Rollout, open_client

ROOT = Path(__file__).parents[2]
AGENT = Path(__file__).with_name("agent.py")
NAME = "short"
STEPS = 2
GROUPS = 4
GROUP_SIZE = 4
WARMUP_STEPS = 120
LONGEST = 400.0
"""Seconds that any one wait may take; only a fault comes near."""


@dataclass(kw_only=True)
class Place:
    """A folder in which commands run, and a mark that all their processes carry."""

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def run_dir(self) -> Path:
        """Folder of the running system."""
        return self.folder / "run" / NAME

    @property
    def results(self) -> Path:
        """Folder of the training run."""
        return self.folder / "runs" / NAME

    def start(self, *arguments: str, log: str = "output.log") -> subprocess.Popen[bytes]:
        """Start the command line here."""
        with (self.folder / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "whippletree.cli.main", *arguments],
                cwd=self.folder,
                env={**os.environ, processes.MARK: self.mark},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def output(self, log: str = "output.log") -> str:
        """What the command printed."""
        return (self.folder / log).read_text()

    def demo(self, log: str = "output.log") -> subprocess.Popen[bytes]:
        """Start the short demo."""
        settings = {
            "warmup.steps": WARMUP_STEPS,
            "rl.groups": GROUPS,
            "rl.group_size": GROUP_SIZE,
            "evaluation.questions": 4,
            "evaluation.every": 0,
            "checkpoint.every": 1,
            "checkpoint.weights": '"all"',
            "agent.program": json.dumps(str(AGENT)),
            "agent.preload": '["openai"]',
        }
        sets = [argument for key, value in settings.items() for argument in ("--set", f"{key}={value}")]
        return self.start("demo", "--seed", "5", "--name", NAME, "--steps", str(STEPS), *sets, log=log)


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happened."""

    place: Place
    left_after_interrupt: dict[int, str]
    interrupted_code: int
    killed_gateway: int
    code: int
    left: dict[int, str]
    summary: dict[str, Any]


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The short demo with its accidents, from start to end."""
    place = Place(folder=tmp_path_factory.mktemp("story"))
    with killed_at_the_end(place.demo()) as process:
        until(lambda: trained(place, ended=1) > 0, process, place)
        process.send_signal(signal.SIGINT)
        interrupted_code = process.wait(LONGEST)
        left_after_interrupt = processes.none_left(place.folder, place.mark, 0.5)
    with killed_at_the_end(place.demo()) as process:
        until(lambda: trained(place, ended=GROUPS * GROUP_SIZE + 2) > 0, process, place)
        running = endpoints.read(place.run_dir)
        assert running is not None
        os.kill(running.pids["gateway"], signal.SIGKILL)
        code = process.wait(LONGEST)
        left = processes.none_left(place.folder, place.mark, 0.5)
    assert code == 0, place.output()[-6000:]
    return Story(
        place=place,
        left_after_interrupt=left_after_interrupt,
        interrupted_code=interrupted_code,
        killed_gateway=running.pids["gateway"],
        code=code,
        left=left,
        summary=json.loads((place.results / "summary.json").read_text()),
    )


@pytest.fixture(scope="session")
def running(story: Story) -> Iterator[Endpoints]:
    """A system on the story's record."""
    place = story.place
    arguments = (
        "up",
        "--model",
        str(ROOT / ".cache/quickstart/seed-5/model"),
        "--run-dir",
        str(place.run_dir),
        "--port",
        "0",
    )
    with killed_at_the_end(place.start(*arguments, log="up.log")) as process:
        until(lambda: "API " in place.output("up.log"), process, place, log="up.log")
        found = endpoints.read(place.run_dir)
        assert found is not None
        yield found
        process.terminate()
        code = process.wait(LONGEST)
    assert code == 0
    assert processes.none_left(place.folder, place.mark, 0.5) == {}


@pytest.fixture
async def client(running: Endpoints, story: Story) -> AsyncIterator[Client]:
    """A client of its gateway."""
    async with open_client(running.gateway, identity.access(story.place.run_dir)) as opened:
        yield opened


@pytest.fixture
def key(running: Endpoints, story: Story) -> str:
    """The operator's key."""
    return identity.operator_file(story.place.run_dir).read_text().strip()


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """End the command where a test fails before it did; its keepers end the rest."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def until(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], place: Place, log: str = "output.log"
) -> None:
    """Wait for a condition while the command runs."""
    deadline = time.monotonic() + LONGEST
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode}:\n{place.output(log)[-6000:]}"
        assert time.monotonic() < deadline, f"waited too long:\n{place.output(log)[-6000:]}"
        time.sleep(0.05)


def trained(place: Place, *, ended: int) -> int:
    """How many training rollouts run now, if at least `ended` have ended; else 0."""
    found = endpoints.read(place.run_dir)
    if found is None or "gateway" not in found.pids:
        return 0
    rollouts = asyncio.run(_rollouts(found.gateway, place.run_dir))
    train = [item for item in rollouts if item.split == "train"]
    if sum(item.state == "succeeded" for item in train) < ended:
        return 0
    return sum(item.state in ("queued", "running") for item in train)


async def _rollouts(gateway: str, run_dir: Path) -> list[Rollout]:
    async with open_client(gateway, identity.access(run_dir), patience=60.0) as opened:
        return [item async for item in opened.rollouts()]
