"""Which models a rollout may call, and when that is asked again."""

import itertools
from typing import cast

import pytest

from openai_bridge.gateway import Gateway
from openai_bridge.models import Models
from openai_bridge.types import Model
from whippletree.errors import NotFoundError


class Record:
    """What of a gateway is asked here; counts the questions."""

    def __init__(self) -> None:
        self.runs, self.policies, self.names = {"r1": "runs/one"}, {"runs/one": "old"}, ["old", "new"]
        self.asked = 0

    async def run_of(self, rollout: str) -> str:
        self.asked += 1
        return self.runs[rollout]

    async def policy_of(self, run: str) -> str:
        self.asked += 1
        return self.policies[run]

    async def models(self) -> tuple[list[Model], list[Model]]:
        self.asked += 1
        return [Model(name=name, tokenizer_path="", context_length=1, created=0) for name in self.names], []


def models_of(record: Record) -> Models:
    ticks = itertools.count(0.0, 0.001)
    return Models(cast(Gateway, record), age=60.0, clock=lambda: next(ticks))


async def test_what_is_known_is_not_asked_again() -> None:
    record = Record()
    models = models_of(record)
    assert (await models.find("r1", "old")).name == "old"
    asked = record.asked
    assert (await models.find("r1", "old")).name == "old"
    assert record.asked == asked


async def test_another_runs_policy_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="'old'"):
        await models_of(Record()).find("r1", "new")


@pytest.mark.parametrize("made_anew", ["run", "rollout"])
async def test_a_rollout_or_a_run_that_was_made_anew_has_its_own_policy(made_anew: str) -> None:
    record = Record()
    models = models_of(record)
    await models.find("r1", "old")
    if made_anew == "run":
        record.policies["runs/one"] = "new"
    else:
        record.runs["r1"], record.policies["runs/two"] = "runs/two", "new"
    assert (await models.find("r1", "new")).name == "new"
    with pytest.raises(NotFoundError):
        await models.find("r1", "old")


async def test_a_model_that_was_registered_since_is_found() -> None:
    record = Record()
    record.policies["runs/one"] = "late"
    models = models_of(record)
    with pytest.raises(NotFoundError):
        await models.find("r1", "late")
    record.names.append("late")
    assert (await models.find("r1", "late")).name == "late"
