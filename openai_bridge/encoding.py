"""Compressed bodies: gzip, deflate and zstd, decompressed up to a limit. Pure.

In: bytes and the value of `Content-Encoding`. Out: the body. A small body that holds a large one (a bomb) costs no more
memory than the limit and a few MiB: no size that a body claims is believed.
"""

import zlib

import zstandard

from whippletree.errors import InvalidFieldError, RequestTooLargeError, UnsupportedEncodingError

FIELD = "Content-Encoding"
STACKED = 2
"""Codings over one another at most: each costs the time of a whole body."""
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's `wbits`: which container is expected."""
ZSTD_WINDOW = 8 << 20
"""Bytes that a frame may want to look back: the most that a zstd content coding may use (RFC 9659)."""
ZSTD_FRAMES = 1_000
"""Frames of one body at most: an empty one has 9 bytes, and each costs a round of Python."""
_ZSTD_RATIO = 1 << 15
"""Bytes that one of a frame can become at most: a block has 4 or more (3 of them its header) and 128 KiB within."""
_ZSTD_PIECE = 64
"""Bytes that are decompressed at a time at least."""


def decoded(data: bytes, coding: str, limit: int) -> bytes:
    """The body; `limit`: bytes of it at most. UnsupportedEncodingError, RequestTooLargeError, InvalidFieldError."""
    names = [name for part in coding.split(",") if (name := part.strip().lower()) not in ("", "identity")]
    if len(names) > STACKED or not set(names) <= {*_WINDOWS, "zstd"}:
        served = f"gzip, deflate and zstd are, {STACKED} of them over one another at most"
        raise UnsupportedEncodingError(f"'{FIELD}: {coding[:100]}' is not served: {served}.", field=FIELD)
    for name in reversed(names):  # they are listed in the order in which they were applied
        data = _unzstd(data, limit) if name == "zstd" else _inflated(data, name, limit)
    return data


def _inflated(data: bytes, name: str, limit: int) -> bytes:
    inflate = zlib.decompressobj(wbits=_WINDOWS[name])
    try:
        body = inflate.decompress(data, limit + 1)
    except zlib.error:
        raise InvalidFieldError(f"The body is no {name}.", field="body") from None
    if len(body) > limit:
        raise _too_large(limit)
    if not inflate.eof or inflate.unused_data:
        raise InvalidFieldError(f"The body is not one whole {name} stream.", field="body")
    return body


def _unzstd(data: bytes, limit: int) -> bytes:
    """Frames after one another (RFC 8878, 3.1). Each piece is so short that it cannot become much more than is left."""
    made, body = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW), bytearray()
    frame, frames, at = made.decompressobj(), 1, 0
    while at < len(data):
        if frame.eof:
            frame, frames = made.decompressobj(), frames + 1
        if frames > ZSTD_FRAMES:
            raise InvalidFieldError(f"The body has more than {ZSTD_FRAMES} zstd frames.", field="body")
        piece = data[at : at + max((limit - len(body)) // _ZSTD_RATIO, _ZSTD_PIECE)]
        try:
            body += frame.decompress(piece)
        except zstandard.ZstdError:
            needs = f"or needs a window of more than {ZSTD_WINDOW} bytes"
            raise InvalidFieldError(f"The body is no zstd, {needs}.", field="body") from None
        at += len(piece) - len(frame.unused_data)
        if len(body) > limit:
            raise _too_large(limit)
    if not frame.eof:
        raise InvalidFieldError("The body is not whole: its last zstd frame has no end.", field="body")
    return bytes(body)


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"The decompressed body has more than {limit} bytes.", field="body")
