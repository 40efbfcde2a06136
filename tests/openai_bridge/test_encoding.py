import gzip
import tracemalloc
import zlib

import pytest

from openai_bridge.encoding import decoded
from whippletree.errors import InvalidFieldError, RequestTooLargeError, UnsupportedEncodingError

BODY = b'{"model": "m"}' * 100
LIMIT = 10_000


@pytest.mark.parametrize(
    ("data", "coding"),
    [
        (BODY, ""),
        (BODY, "identity"),
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), " GZip "),
        (gzip.compress(BODY), "x-gzip"),
        (zlib.compress(BODY), "deflate"),
    ],
)
def test_known_encodings_are_undone(data: bytes, coding: str) -> None:
    assert decoded(data, coding, LIMIT) == BODY


@pytest.mark.parametrize("coding", ["zstd", "br", "gzip, gzip", "x" * 5000])
def test_other_encodings_are_refused(coding: str) -> None:
    with pytest.raises(UnsupportedEncodingError):
        decoded(BODY, coding, LIMIT)


@pytest.mark.parametrize("data", [b"", BODY, gzip.compress(BODY)[:-9], gzip.compress(BODY) + b"more"])
def test_a_broken_stream_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidFieldError):
        decoded(data, "gzip", LIMIT)


def test_a_bomb_costs_no_more_than_the_limit() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    tracemalloc.start()
    with pytest.raises(RequestTooLargeError):
        decoded(bomb, "gzip", 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


def test_a_body_of_just_the_limit_passes() -> None:
    assert len(decoded(gzip.compress(bytes(LIMIT)), "gzip", LIMIT)) == LIMIT
    with pytest.raises(RequestTooLargeError):
        decoded(gzip.compress(bytes(LIMIT + 1)), "gzip", LIMIT)
