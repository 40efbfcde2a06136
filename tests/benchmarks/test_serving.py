"""The parts of the measurement that decide what a figure means."""

import random
from itertools import pairwise

import orjson
import pytest

from benchmarks.load import Request, is_whole
from benchmarks.serving import LARGE, SMALL
from benchmarks.words import Conversation, Shape


@pytest.mark.parametrize(("shape", "least", "most"), [(SMALL, 900, 4_000), (LARGE, 170_000, 230_000)])
def test_every_call_extends_the_one_before(shape: Shape, least: int, most: int) -> None:
    conversation = Conversation(shape, "policy", "reply " * 75, "some words " * 1_000, random.Random(1))
    bodies = list(conversation.bodies())
    assert len(bodies) == shape.turns
    assert least < len(bodies[0]) < len(bodies[-1]) < most
    for before, after in pairwise(orjson.loads(body)["messages"] for body in bodies):
        assert after[: len(before)] == before
        assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks"],
)
def test_an_answer_is_whole_only_with_its_last_byte(answer: bytes) -> None:
    assert [is_whole(bytearray(answer[:size])) for size in range(len(answer))] == [False] * len(answer)
    assert is_whole(bytearray(answer))


def test_a_request_carries_its_token_where_it_has_one() -> None:
    assert b"\r\nauthorization: Bearer secret\r\n" in Request(b"/", b"{}", b"secret").head()
    assert b"authorization" not in Request(b"/", b"{}").head()
