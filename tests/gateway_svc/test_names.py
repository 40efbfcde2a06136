"""Names, ids and tokens."""

import pytest

from gateway_svc import names
from whippletree.errors import InvalidFieldError


@pytest.mark.parametrize("text", ["a", "a-b", "0", "a" * 48])
def test_ids_that_fit_a_job_name_are_taken(text: str) -> None:
    assert names.rollout_id(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a_b", "a" * 49, "a/b", "a\n", "ä"])
def test_other_ids_are_refused(text: str) -> None:
    with pytest.raises(InvalidFieldError):
        names.rollout_id(text)


def test_a_name_holds_its_id() -> None:
    assert names.rollout("rollouts/a-1") == "a-1"
    assert names.attempt("rollouts/a/attempts/12") == ("a", 12)
    assert names.model("models/Qwen3-8B.fp8") == "Qwen3-8B.fp8"


@pytest.mark.parametrize("name", ["a", "runs/a", "rollouts/", "rollouts/a/attempts/x", "rollouts/a/attempts/"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidFieldError):
        names.attempt(name)


def test_tokens_come_back_and_serve_one_kind_alone() -> None:
    token = names.token("events", 17)
    assert names.number("events", token, "page_token") == 17
    assert names.number("events", "", "page_token") == 0
    for wrong in ("17", "%", names.token("runs", 17), names.token("events", "x"), "é"):
        with pytest.raises(InvalidFieldError):
            names.number("events", wrong, "page_token")
