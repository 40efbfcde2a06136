"""The training configuration."""

import tomllib
from pathlib import Path

import pytest

from trainer_svc.config import ConfigError, load_config, to_toml

MINIMAL = """
[run]
name = "demo"
[model]
path = "model"
[data]
train = "../data/train.jsonl"
[agent]
program = "agent.py"
environment = {"A B" = "say \\"c\\""}
[evaluation]
questions = 0
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A configuration whose files are there."""
    folder = tmp_path / "example"
    (folder / "model").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    for path in (folder / "model" / "config.json", tmp_path / "data" / "train.jsonl", folder / "agent.py"):
        path.write_text("{}")
    path = folder / "config.toml"
    path.write_text(MINIMAL)
    return path


def test_paths_are_relative_to_the_file(config_file: Path) -> None:
    config = load_config(config_file)
    assert config.data.train == config_file.parent.parent / "data" / "train.jsonl"
    assert config.agent.program == config_file.parent / "agent.py"


def test_overrides_take_toml_values_and_bare_text(config_file: Path) -> None:
    config = load_config(config_file, ["rl.steps=4", "rl.normalisation=token-mean", "agent.preload=['openai']"])
    assert (config.rl.steps, config.rl.normalisation.value, config.agent.preload) == (4, "token-mean", ("openai",))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.stepps=4", r"rl\.stepps: Extra inputs"),
        ("rl.steps=-1", r"rl\.steps: Input should be greater"),
        ("rl.steps", "expected section.key=value"),
        ("steps=4", "expected section.key=value"),
        ("run.name=Not Allowed", r"run\.name: String should match"),
        ("agent.command=['sh']", "either program or command"),
        ("warmup.steps=3", r"warmup\.demonstrations: needed"),
        ("evaluation.questions=3", r"data\.heldout: needed"),
        ("model.path=nowhere", r"model\.path: no such file"),
        ("run.name.x=1", "not in a section"),
        ("rl.learning_rate=inf", r"rl\.learning_rate: Input should be a finite number"),
        ("rl.clip_norm=nan", r"rl\.clip_norm: Input should be"),
        ("agent.timeout=inf", r"agent\.timeout: Input should be less"),
    ],
)
def test_what_does_not_fit_is_named(config_file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(config_file, [override])


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: No such file"):
        load_config(tmp_path / "absent.toml")
    for content in (b"[run\n", b"\xff\xfe"):
        (tmp_path / "broken.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"broken\.toml: "):
            load_config(tmp_path / "broken.toml")


def test_the_resolved_form_reads_back_as_the_same_configuration(config_file: Path, tmp_path: Path) -> None:
    config = load_config(config_file)
    resolved = tmp_path / "config.resolved.toml"
    resolved.write_text(to_toml(config))
    assert load_config(resolved) == config
    assert tomllib.loads(resolved.read_text())["agent"]["environment"] == {"A B": 'say "c"'}
