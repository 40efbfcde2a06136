"""The prepared files: what a seed decides and what it does not."""

import tomllib
from pathlib import Path

from examples.quickstart import model, prepare
from trainer_svc.config import Config
from trainer_svc.data import read_demonstrations

CONFIG = Path(prepare.__file__).with_name("config.toml")


def test_inputs_follow_the_seed() -> None:
    one, again, two = (list(prepare.inputs(seed, "train", 20)) for seed in ("train 1", "train 1", "train 2"))
    assert one == again
    assert one != two
    assert set(one[0]) == {"question", "truth", "kind"}


def test_demonstrations_fit_the_trainer(tmp_path: Path) -> None:
    tokenizer = model.train_tokenizer(prepare.demonstrations("tokenizer", 200))
    path = tmp_path / "demonstrations.jsonl"
    prepare.write_lines(path, prepare.encoded(tokenizer, prepare.demonstrations("demonstrations 1", 20)))
    read = read_demonstrations(path)
    assert len(read) == 20
    for demonstration in read:
        last = int(demonstration.token_ids[-2])  # the template ends with a newline, which nobody says
        assert last == model.token_id(tokenizer, model.END)
        assert demonstration.mask[-2]
        assert not demonstration.mask[-1]


def test_warm_up_sees_no_demonstration_twice() -> None:
    warmup = configuration(CONFIG).warmup
    assert warmup.steps * warmup.batch == prepare.DEMONSTRATIONS


def test_there_are_enough_questions() -> None:
    config = configuration(CONFIG)
    assert config.rl.steps * config.rl.groups <= prepare.TRAIN_QUESTIONS
    assert config.evaluation.questions == prepare.HELDOUT_QUESTIONS


def test_recipe_changes_with_the_seed_alone() -> None:
    assert prepare.recipe(1) == prepare.recipe(1) != prepare.recipe(2)


def configuration(path: Path) -> Config:
    """The example's configuration; the files it names need not be there."""
    return Config.model_validate(tomllib.loads(path.read_text()))
