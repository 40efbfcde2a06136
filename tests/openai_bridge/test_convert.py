import gzip

import pytest
import zstandard
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2

from openai_bridge.convert import body, caller
from openai_bridge.settings import LimitSettings
from whippletree.errors import InvalidFieldError


def asked(**fields: str) -> bridge_pb2.ChatCompletionsRequest:
    return bridge_pb2.ChatCompletionsRequest(**{"rollout": "r1", "attempt": "1", "mode": "train"} | fields)


@pytest.mark.parametrize("attempt", ["", "0", "-1", "1.0", "²", "x", "12345678901234", "9" * 40])
def test_an_attempt_is_a_number_that_the_gateway_can_have(attempt: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        caller(asked(attempt=attempt))
    assert caught.value.metadata["field"] == "attempt"


@pytest.mark.parametrize("rollout", ["", "é", "a\nb", "a/b", "A", "x" * 49])
def test_a_rollout_that_could_not_be_metadata_is_refused(rollout: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        caller(asked(rollout=rollout))
    assert caught.value.metadata["field"] == "rollout"


def test_leading_zeros_do_not_make_another_attempt() -> None:
    assert caller(asked(attempt="007")).attempt == 7


def test_codings_in_several_lines_are_one_list() -> None:
    sent = bridge_pb2.ChatCompletionsRequest(body=HttpBody(data=zstandard.compress(gzip.compress(b"{}"))))
    lines = [("content-encoding", "gzip"), ("x", "y"), ("content-encoding", "zstd")]
    assert body(sent, lines, LimitSettings()) == b"{}"
