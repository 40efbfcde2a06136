import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard

from openai_bridge.encoding import STACKED, ZSTD_FRAMES, decoded
from whippletree.errors import InvalidFieldError, RequestTooLargeError, UnsupportedEncodingError

BODY = b'{"model": "m"}' * 100
LARGE = b'{"model": "m", "x": "' + random.Random(1).randbytes(30_000).hex().encode() + b'"}'
LIMIT = 100_000


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd}


def zstd_stream(data: bytes, *, window_log: int) -> bytes:
    """A frame that does not tell its content's size and wants this window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    made = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return made.compress(data) + made.flush()


@pytest.mark.parametrize(
    ("data", "coding"),
    [
        (BODY, ""),
        (BODY, "identity"),
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), " GZip "),
        (gzip.compress(BODY), "x-gzip"),
        (zlib.compress(BODY), "deflate"),
        (zstd(BODY), "zstd"),
        (zstd_stream(BODY, window_log=23), "ZSTD"),
        (zstd(BODY[:50]) + zstd(b"") + zstd(BODY[50:]), "zstd"),
        (b"\x50\x2a\x4d\x18\x02\x00\x00\x00??" + zstd(BODY), "zstd"),  # a frame to be skipped (RFC 8878, 3.1.2)
        (zstd(gzip.compress(BODY)), "gzip, zstd"),
        (gzip.compress(zstd(BODY)), "zstd,gzip"),
        (gzip.compress(gzip.compress(BODY)), "identity, gzip, gzip"),
    ],
)
def test_known_encodings_are_undone(data: bytes, coding: str) -> None:
    assert decoded(data, coding, LIMIT) == BODY


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("body", [b"{}", BODY, LARGE], ids=["tiny", "small", "60 KB"])
def test_bodies_of_every_size_come_back(body: bytes, coding: str) -> None:
    assert decoded(CODINGS[coding](body), coding, LIMIT) == body


@pytest.mark.parametrize("coding", ["br", "gzip, br", "zstd;q=1", ", ".join(["gzip"] * (STACKED + 1)), "x" * 5000])
def test_other_encodings_are_refused(coding: str) -> None:
    with pytest.raises(UnsupportedEncodingError, match="gzip, deflate and zstd"):
        decoded(BODY, coding, LIMIT)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("end", [-9, -1, None], ids=["cut", "cut at its end", "more"])
@pytest.mark.parametrize("body", [BODY, LARGE], ids=["small", "60 KB"])
def test_a_broken_stream_is_refused(coding: str, end: int | None, body: bytes) -> None:
    whole = CODINGS[coding](body)
    for data in (b"", body, whole[:end] + (b"more" if end is None else b"")):
        with pytest.raises(InvalidFieldError):
            decoded(data, coding, LIMIT)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("outer", ["", ", gzip"], ids=["alone", "within another"])
def test_a_bomb_costs_no_more_than_the_limit(coding: str, outer: str) -> None:
    data = CODINGS[coding](bytes(50_000_000))
    data = gzip.compress(data) if outer else data
    tracemalloc.start()
    with pytest.raises(RequestTooLargeError):
        decoded(data, coding + outer, 1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7_000_000


def test_a_size_that_a_frame_claims_is_not_believed() -> None:
    honest = zstd(bytes(1000))
    assert zstandard.frame_content_size(honest) == 1000
    claimed = zstd(b"a")[:4] + b"\xe0" + (1 << 40).to_bytes(8, "little") + honest[7:]
    assert zstandard.frame_content_size(claimed) == 1 << 40
    with pytest.raises(InvalidFieldError):
        decoded(claimed, "zstd", LIMIT)


def test_a_frame_that_wants_a_large_window_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="window"):
        decoded(zstd_stream(BODY, window_log=24), "zstd", LIMIT)


def test_a_body_of_too_many_frames_is_refused() -> None:
    assert decoded(zstd(b"x") * ZSTD_FRAMES, "zstd", LIMIT) == b"x" * ZSTD_FRAMES
    with pytest.raises(InvalidFieldError, match="frames"):
        decoded(zstd(b"") * (ZSTD_FRAMES + 1), "zstd", LIMIT)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_of_just_the_limit_passes(coding: str) -> None:
    assert len(decoded(CODINGS[coding](bytes(LIMIT)), coding, LIMIT)) == LIMIT
    with pytest.raises(RequestTooLargeError):
        decoded(CODINGS[coding](bytes(LIMIT + 1)), coding, LIMIT)
