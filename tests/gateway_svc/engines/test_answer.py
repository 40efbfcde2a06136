"""What is taken from an engine's answer, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway_svc.engines.answer import sampled
from gateway_svc.types import Finish
from whippletree.tokens import unpack_floats, unpack_ids

SHAPES = Path(__file__).parents[2] / "fakes" / "sglang_shapes"


def answer(**changes: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "finish_reason": {"type": "stop", "matched": 7},
        "output_token_logprobs": [[-0.5, 6, None], [-1.5, 7, None]],
        "weight_versions": [{"version": "v1", "start": 0, "end": 2}],
    }
    return {"output_ids": changes.pop("output_ids", [6, 7]), "meta_info": meta | changes}


def test_ids_logprobs_spans_and_reason_are_taken() -> None:
    found = sampled(answer(), 10)
    assert unpack_ids(found.response).tolist() == [6, 7]
    assert unpack_floats(found.logprobs).tolist() == [-0.5, -1.5]
    assert (found.finish, found.matched_stop, found.count) == (Finish.STOP, "7", 2)
    assert [(span.weight_version, span.start, span.end) for span in found.spans] == [("v1", 0, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"output_ids": [6]},
        {"output_ids": [6, 8]},
        {"output_token_logprobs": [[-0.5, 6, None]]},
        {"output_token_logprobs": [[None, 6, None], [-1.5, 7, None]]},
        {"output_token_logprobs": [[float("-inf"), 6, None], [-1.5, 7, None]]},
        {"output_token_logprobs": [[float("nan"), 6, None], [-1.5, 7, None]]},
        {"finish_reason": None},
        {"finish_reason": {"type": "tired"}},
        {"weight_versions": [{"version": "v1", "start": 0, "end": 1}]},
        {"output_ids": [6, 10], "output_token_logprobs": [[-0.5, 6, None], [-1.5, 10, None]]},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_an_answer_that_does_not_agree_with_itself_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        sampled(answer(**changes), 10)


@pytest.mark.parametrize("body", [{}, {"output_ids": [1]}, {"output_ids": 3, "meta_info": {}}])
def test_another_form_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="form"):
        sampled(body, 10)


@pytest.mark.parametrize("case", ["generate_length", "generate_stop_token", "generate_two_versions"])
def test_a_real_engines_answer_is_taken_as_it_is(case: str) -> None:
    body = json.loads((SHAPES / f"{case}.json").read_text())["body"]
    found = sampled(body, 1024)
    assert unpack_ids(found.response).tolist() == body["output_ids"]
    assert found.spans[-1].end == len(body["output_ids"])
