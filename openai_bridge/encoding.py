"""Compressed bodies: gzip and deflate, decompressed up to a limit. Pure.

In: bytes and the value of `Content-Encoding`. Out: the body. A small body that holds a large one (a bomb) costs no more
memory than the limit.
"""

import zlib

from whippletree.errors import InvalidFieldError, RequestTooLargeError, UnsupportedEncodingError

FIELD = "Content-Encoding"
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""zlib's `wbits`: which container is expected."""


def decoded(data: bytes, coding: str, limit: int) -> bytes:
    """The body; `limit`: bytes of it at most. UnsupportedEncodingError, RequestTooLargeError, InvalidFieldError."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return data
    if name not in _WINDOWS:
        raise UnsupportedEncodingError(f"'{FIELD}: {coding[:100]}' is not served: gzip and deflate are.", field=FIELD)
    inflate = zlib.decompressobj(wbits=_WINDOWS[name])
    try:
        body = inflate.decompress(data, limit + 1)
    except zlib.error:
        raise InvalidFieldError(f"The body is no {name}.", field="body") from None
    if len(body) > limit:
        raise RequestTooLargeError(f"The decompressed body has more than {limit} bytes.", field="body")
    if not inflate.eof or inflate.unused_data:
        raise InvalidFieldError(f"The body is not one whole {name} stream.", field="body")
    return body
