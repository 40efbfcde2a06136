"""A training run's configuration: one TOML file, frozen, an unknown key is an error that names it.

Relative paths are relative to the file's folder. The resolved form is written to `config.resolved.toml` in the run's
folder. What a laptop and a cluster set apart (addresses, folders of the machine) is in `settings.py`.
"""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from trainer_svc.advantage import Advantage
from trainer_svc.rewards import Missing
from trainer_svc.weights import Normalisation
from whippletree.settings import Section

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RunSection(Section):
    """Names and chance."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?$")]
    """Name of the run and of its folder."""
    seed: int = 1
    """Decides the order of the data and of the warm-up's batches, and the ranks' seed."""


class ModelSection(Section):
    """The policy."""

    path: Path
    """Hugging Face directory: config.json, weights, tokenizer, chat template."""
    name: str = "policy"
    """Name under which the gateway knows it."""


class DataSection(Section):
    """Rollout inputs: one JSON object a line."""

    train: Path
    """What is trained on."""
    heldout: Path | None = None
    """What is only measured on."""


class AgentSection(Section):
    """The harness: a program that finds its task in WHIPPLETREE_INPUT and its model at OPENAI_BASE_URL."""

    program: Path | None = None
    """A Python program, run as `__main__` in a fork of a warm interpreter; either this or `command`."""
    preload: tuple[str, ...] = ()
    """Modules that the warm interpreter imports once."""
    command: tuple[str, ...] = ()
    """Any program with its arguments; not passed through a shell."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `program`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Added to the attempt's clean environment."""
    timeout: Annotated[float, Field(gt=0, le=1e9)] = 300.0
    """Longest time of one attempt, seconds."""
    max_attempts: Annotated[int, Field(ge=1, le=20)] = 3
    """Attempts at most when the infrastructure fails."""


class WarmupSection(Section):
    """Supervised steps before reinforcement learning: AdamW, a linear ramp, then a cosine."""

    steps: Natural = 0
    """Optimizer steps; 0 = no warm-up."""
    demonstrations: Path | None = None
    """One JSON object a line: `token_ids` [T] and `loss_mask` [T] (1 where the token is learned)."""
    batch: Count = 16
    """Demonstrations a step, all of similar length."""
    learning_rate: Positive = 3e-3
    """Highest rate."""
    ramp: Natural = 30
    """Steps up to the highest rate."""
    floor: Annotated[float, Field(ge=0, le=1)] = 0.05
    """The cosine's end, as a share of the highest rate."""
    weight_decay: NotNegative = 0.01
    """Of matrices."""
    clip_norm: NotNegative = 1.0
    """Gradient's largest L2 norm; 0 = no clipping."""


class RlSection(Section):
    """Reinforcement learning, synchronous. Rollouts are sampled at temperature 1 and top_p 1."""

    steps: Natural = 16
    """Batches of rollouts."""
    groups: Count = 16
    """Prompts a batch."""
    group_size: Count = 8
    """Rollouts of each prompt."""
    learning_rate: Positive = 7e-4
    """Constant."""
    clip_low: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: NotNegative = 0.28
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    """Bounds the loss of negative advantages by dual_clip * |advantage|; absent = off."""
    clip_norm: NotNegative = 1.0
    """Gradient's largest L2 norm; 0 = no clipping."""
    weight_decay: NotNegative = 0.0
    """Of matrices."""
    advantage: Advantage = Advantage.GRPO
    """How a rollout is compared with its group."""
    normalisation: Normalisation = Normalisation.ROLLOUT_MEAN
    """What the sum of token losses is divided by."""
    updates: Count = 1
    """Optimizer steps a batch; whole rollouts are shared out among them."""
    missing: Missing = Missing.DROP
    """What becomes of a rollout that failed or has no reward."""
    missing_value: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    """Its reward under `value`."""


class EvaluationSection(Section):
    """Held-out rollouts, sampled at temperature 1, before the first step, every so often, and after the last."""

    questions: Natural = 240
    """The first so many of the held-out inputs; 0 = no evaluation."""
    every: Natural = 4
    """Steps between evaluations; 0 = only before and after."""


class BackendSection(Section):
    """The ranks: torchrun in an environment of their own."""

    data_parallel: Count = 2
    """Data-parallel ranks."""
    tensor: Count = 1
    """Tensor-parallel ranks to each data-parallel one."""
    pipeline: Count = 1
    """Pipeline stages."""
    context: Count = 1
    """Context-parallel ranks."""
    token_cap: Count = 2048
    """Tokens of one micro-batch at most; a longer sample gets one of its own."""
    start_timeout: Positive = 300.0
    """Longest wait for the ranks to start and build the model, seconds."""
    command_timeout: Positive = 1800.0
    """Longest wait for any other command, seconds."""


class CheckpointSection(Section):
    """What is kept on disk."""

    every: Natural = 4
    """Steps between checkpoints of model, optimizer and driver; 0 = only after the last step."""
    keep: Count = 2
    """The newest so many are kept."""
    weights: Literal["all"] | Count = 2
    """Published weight directories that are kept: all, or the newest so many."""


class Config(Section):
    """A training run."""

    run: RunSection
    model: ModelSection
    data: DataSection
    agent: AgentSection
    warmup: WarmupSection = WarmupSection()
    rl: RlSection = RlSection()
    evaluation: EvaluationSection = EvaluationSection()
    backend: BackendSection = BackendSection()
    checkpoint: CheckpointSection = CheckpointSection()


class ConfigError(Exception):
    """The configuration does not fit; the message names file and keys, for people."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read, override (`rl.steps=4`: a dotted key and a TOML value, bare text is taken as a string), check, resolve.

    Raises ConfigError.
    """
    try:
        data = tomllib.loads(path.read_text())
        for item in overrides:
            _override(data, item)
        config = Config.model_validate(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(f"{path}: {faults}") from error
    return check(_resolved(config, path.resolve().parent))


def check(config: Config) -> Config:
    """What one field alone cannot tell, and whether the files are there. Raises ConfigError."""
    if (config.agent.program is None) == (not config.agent.command):
        raise ConfigError("agent: give either program or command")
    if config.warmup.steps and config.warmup.demonstrations is None:
        raise ConfigError("warmup.demonstrations: needed, because warmup.steps is not 0")
    if config.evaluation.questions and config.data.heldout is None:
        raise ConfigError("data.heldout: needed, because evaluation.questions is not 0")
    needed = {
        "model.path": config.model.path / "config.json",
        "data.train": config.data.train,
        "data.heldout": config.data.heldout,
        "agent.program": config.agent.program,
        "warmup.demonstrations": config.warmup.demonstrations if config.warmup.steps else None,
    }
    for key, path in needed.items():
        if path is not None and not path.exists():
            raise ConfigError(f"{key}: no such file: {path}")
    return config


def to_toml(config: Section) -> str:
    """The configuration as TOML, sections in order; what is absent is left out."""
    lines = []
    for section, values in config.model_dump(mode="json", exclude_none=True).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _override(data: dict[str, object], item: str) -> None:
    key, separator, text = item.partition("=")
    *parents, last = key.split(".")
    if not separator or not parents:
        raise ConfigError(f"--set {item}: expected section.key=value")
    table: object = data
    for parent in parents:
        table = table.setdefault(parent, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise ConfigError(f"--set {item}: {key} is not in a section")
    try:
        table[last] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = text


def _resolved(config: Config, folder: Path) -> Config:
    """Absolute paths; `..` is folded, links are kept."""

    def absolute(value: object) -> object:
        return Path(os.path.normpath(folder / value)) if isinstance(value, Path) else value

    sections = {}
    for name in Config.model_fields:
        section: Section = getattr(config, name)
        paths = {key: absolute(getattr(section, key)) for key in type(section).model_fields}
        sections[name] = section.model_copy(update=paths)
    return config.model_copy(update=sections)
