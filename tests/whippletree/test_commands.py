"""What the commands decide: command lines and overrides; and that each explains itself."""

import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from whippletree.cli.demo import Demo, config_overrides
from whippletree.cli.train import driver_command

DEMO = Demo(
    name="mine",
    seed=3,
    nonsense=False,
    overrides=("rl.groups=2", 'run.name="other"'),
    device="cpu",
    port=0,
    fresh=False,
    runs=Path("/runs"),
    run_dir=Path("/run/mine"),
    cache=Path("/cache"),
)


def merged(demo: Demo) -> dict[str, object]:
    """Overrides by key, the last one winning, each a TOML value."""
    pairs = [item.partition("=") for item in config_overrides(demo)]
    return {key: tomllib.loads(f"value = {value}")["value"] for key, _, value in pairs}


def test_the_demo_sets_name_seed_and_files_and_the_user_has_the_last_word() -> None:
    values = merged(DEMO)
    assert values["run.seed"] == 3
    assert values["run.name"] == "other"
    assert values["rl.groups"] == 2
    assert values["model.path"] == "/cache/quickstart/seed-3/model"
    assert values["data.heldout"] == "/cache/quickstart/seed-3/heldout.jsonl"


def test_the_control_tells_the_agent_to_calculate_nonsense() -> None:
    keys = {"agent.environment.CALCULATOR"}
    assert keys & merged(DEMO).keys() == set()
    assert merged(replace(DEMO, nonsense=True))["agent.environment.CALCULATOR"] == "nonsense"


def test_the_driver_gets_every_override_as_it_is() -> None:
    command = driver_command(
        Path("/c.toml"),
        gateway="h:1",
        key=Path("/operator.key"),
        runs=Path("/runs"),
        overrides=['a.b="x, y"', "c.d=1"],
        fresh=False,
    )
    assert command[1:4] == ("-m", "trainer_svc", "/c.toml")
    assert command[-4:] == ("--set", 'a.b="x, y"', "--set", "c.d=1")
    assert command[command.index("--gateway") + 1] == "h:1"
    assert command[command.index("--access.api_key_file") + 1] == "/operator.key"


@pytest.mark.parametrize(
    "words", ["", "up", "train", "demo", "doctor", "rollouts", "rollouts list", "rollouts show", "keys", "keys create"]
)
def test_every_command_explains_itself(words: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "whippletree.cli.main", *words.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "Usage: " in result.stdout
    assert "--help" in result.stdout


def test_doctor_names_what_it_looked_at() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "whippletree.cli.main", "doctor"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode in (0, 1)
    for what in ("Python 3.11", "uv", "Envoy", "port 8080", "memory", "disk", "GPU"):
        assert what in result.stdout
