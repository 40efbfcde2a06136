"""Answers in any pieces; lengths that are ambiguous, bodies that are cut, heads that never end."""

import pytest

from gateway_svc.engines.http_answer import HEAD_LIMIT, Answer, HttpError

SIMPLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n" + SIMPLE


@pytest.mark.parametrize("whole", [SIMPLE, CHUNKED, INTERIM], ids=["length", "chunked", "interim"])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_pieces_in_which_an_answer_comes_do_not_matter(whole: bytes, size: int) -> None:
    answer = Answer()
    for begin in range(0, len(whole), size):
        answer.feed(whole[begin : begin + size])
    assert (answer.status, answer.body, answer.kept) == (200, b"hello", True)


@pytest.mark.parametrize("whole", [SIMPLE, CHUNKED, INTERIM], ids=["length", "chunked", "interim"])
def test_an_answer_is_complete_with_its_last_byte_and_not_before(whole: bytes) -> None:
    answer = Answer()
    answer.feed(whole[:-1])
    assert answer.body is None


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 500 Oh\r\n\r\nhel")
    answer.feed(b"lo")
    waiting = answer.body is None
    answer.end()
    assert waiting
    assert (answer.status, answer.body, answer.kept) == (500, b"hello", False)


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nmore",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nmore",
    ],
    ids=["close", "1.0", "bytes after a body", "bytes after chunks"],
)
def test_such_a_connection_carries_no_further_request(whole: bytes) -> None:
    answer = Answer()
    answer.feed(whole)
    assert (answer.body, answer.kept) == (b"", False)


def test_an_answer_that_has_no_body_needs_no_length() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (answer.body, answer.kept) == (b"", True)


@pytest.mark.parametrize("size", [10, 50, 70, len(CHUNKED) - 1], ids=["head", "length", "chunk", "last chunk"])
def test_an_answer_that_ends_early_is_none(size: int) -> None:
    answer = Answer()
    answer.feed(CHUNKED[:size])
    assert answer.body is None
    with pytest.raises(HttpError):
        answer.end()


def test_a_body_shorter_than_its_length_is_none() -> None:
    answer = Answer()
    answer.feed(SIMPLE[:-1])
    with pytest.raises(HttpError, match="middle"):
        answer.end()


@pytest.mark.parametrize(
    "bad",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 99 x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n65\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1_0\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\ntrailer: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * (HEAD_LIMIT + 1),
        b"HTTP/1.1 200 OK\r\n" + b"x" * HEAD_LIMIT,
        b"HTTP/1.1 200 OK\r\na: " + b"x" * HEAD_LIMIT + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_answer_are_refused(bad: bytes) -> None:
    with pytest.raises(HttpError):
        Answer(body_limit=100).feed(bad)
