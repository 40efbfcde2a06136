"""Which sampling parameters are really used."""

import json

import pytest

from gateway_svc.sampling import Used, used
from gateway_svc.types import Micros, Mode, ModelName, Role, Run, RunId, Sampling
from whippletree.errors import InvalidFieldError

ASKED = Sampling(temperature=0.2, top_p=0.9, top_k=5, max_tokens=7, stop=("END",), seed=3)


def run(train: Sampling | None = None, evaluation: Sampling | None = None) -> Run:
    return Run(
        run_id=RunId("r"),
        policy=ModelName("m"),
        train_sampling=train or Sampling(),
        eval_sampling=evaluation or Sampling(),
        max_hold=Micros(0),
    )


def resolve(
    asked: Sampling = ASKED,
    *,
    mode: Mode = Mode.TRAIN,
    role: Role = Role.POLICY,
    of: Run | None = None,
    asked_json: str = "",
    room: int = 100,
) -> Used:
    return used(mode=mode, role=role, run=of or run(), asked=asked, asked_json=asked_json, room=room)


def test_train_mode_samples_the_models_own_distribution() -> None:
    found = resolve()
    assert found.sampling == Sampling(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=7, stop=("END",), seed=3)
    assert json.loads(found.asked) == {"temperature": 0.2, "top_p": 0.9, "top_k": 5}


def test_train_mode_takes_the_runs_sampling() -> None:
    found = resolve(of=run(Sampling(temperature=0.7, top_k=20)))
    assert (found.sampling.temperature, found.sampling.top_p, found.sampling.top_k) == (0.7, 1.0, 20)


def test_what_the_harness_leaves_open_is_the_runs() -> None:
    found = resolve(Sampling(), of=run(Sampling(max_tokens=9, stop=("X",))))
    assert (found.sampling.max_tokens, found.sampling.stop, found.asked) == (9, ("X",), "")


def test_eval_mode_takes_the_harness_where_the_run_says_nothing() -> None:
    found = resolve(mode=Mode.EVAL, of=run(evaluation=Sampling(temperature=0.0)))
    assert found.sampling == Sampling(temperature=0.0, top_p=0.9, top_k=5, max_tokens=7, stop=("END",), seed=3)
    assert json.loads(found.asked) == {"temperature": 0.2}


def test_an_auxiliary_model_is_sampled_as_asked() -> None:
    assert resolve(role=Role.AUXILIARY).sampling == ASKED


def test_max_tokens_is_clamped_to_the_room() -> None:
    found = resolve(Sampling(max_tokens=50), room=8)
    assert found.sampling.max_tokens == 8
    assert json.loads(found.asked) == {"max_tokens": 50}
    assert resolve(Sampling(), room=8).sampling.max_tokens == 8


def test_other_wishes_are_kept_beside_the_differences() -> None:
    found = resolve(asked_json='{"logit_bias": {"5": 1}, "frequency_penalty": 0.5}')
    assert json.loads(found.asked)["logit_bias"] == {"5": 1}


@pytest.mark.parametrize(
    "asked",
    [Sampling(max_tokens=0), Sampling(stop=("",)), Sampling(stop=("x",) * 17)],
    ids=["max_tokens", "empty stop", "too many stops"],
)
def test_what_is_used_must_be_in_range(asked: Sampling) -> None:
    with pytest.raises(InvalidFieldError):
        resolve(asked)


@pytest.mark.parametrize("asked", [Sampling(temperature=-1.0), Sampling(top_p=0.0), Sampling(top_k=0)])
def test_what_is_not_used_may_be_anything(asked: Sampling) -> None:
    assert resolve(asked).asked
    with pytest.raises(InvalidFieldError):
        resolve(asked, mode=Mode.EVAL)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_asked_sampling_must_be_a_json_object(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        resolve(asked_json=text)
