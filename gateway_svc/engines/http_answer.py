"""One HTTP/1.1 answer, parsed as its bytes come in.

In: bytes, in any pieces. Out: status, whole body, and whether the connection can carry another request. HttpError where
the bytes are no HTTP, too many, or end too early: lengths that are ambiguous are refused, never guessed.
"""

import re

HEAD_LIMIT = 64 << 10
BODY_LIMIT = 256 << 20
"""Bytes of an answer at most."""
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?")


class HttpError(Exception):
    """No answer: not connected, cut off, too slow, or not HTTP."""


class Answer:
    """One answer, parsed as its bytes come in. HttpError where they are no HTTP or too many."""

    def __init__(self, body_limit: int = BODY_LIMIT) -> None:
        self._limit, self._buffer = body_limit, bytearray()
        self._length: int | None = None
        self._chunked = False
        self._chunks = bytearray()
        self.status = 0
        self.kept = False
        """Whether the connection can carry another request."""
        self.body: bytes | None = None
        """None until the answer is complete."""

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._buffer += data
        while not self.status:
            end = self._buffer.find(b"\r\n\r\n")
            if max(end, 0 if end >= 0 else len(self._buffer)) > HEAD_LIMIT:
                raise HttpError(f"the head of the answer is longer than {HEAD_LIMIT} bytes")
            if end < 0:
                return
            self._head(self._buffer[:end].decode("latin-1"))
            del self._buffer[: end + 4]
        if self._chunked:
            self._dechunk()
        elif self._length is not None and len(self._buffer) >= self._length:
            self.kept = self.kept and len(self._buffer) == self._length
            self.body = bytes(self._buffer[: self._length])
        elif len(self._buffer) > self._limit:
            raise HttpError(f"the answer is longer than {self._limit} bytes")

    def end(self) -> None:
        """The connection is closed, in order: that ends a body without a stated length, and cuts any other."""
        if not self.status or self._chunked or self._length is not None:
            raise HttpError("the connection was closed in the middle" if self.status else "no answer came")
        self.body = bytes(self._buffer)

    def _head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        if not (found := _STATUS.fullmatch(first)):
            raise HttpError("the answer is not HTTP/1.1")
        fields: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise HttpError("the answer has a malformed header")
            name, value = name.lower(), value.strip().lower()
            if fields.setdefault(name, value) != value and name in ("content-length", "transfer-encoding"):
                raise HttpError(f"the answer has two values of {name}")
        if found[1][0] == "1":  # an interim answer: the real one follows
            return
        self.status = int(found[1])
        self.kept = first.startswith("HTTP/1.1") and fields.get("connection", "") != "close"
        length, coding = fields.get("content-length"), fields.get("transfer-encoding")
        if fields.get("content-encoding", "identity") != "identity":
            raise HttpError("the answer is compressed")
        if coding is not None and (coding != "chunked" or length is not None):
            raise HttpError("the answer's length is ambiguous")
        self._chunked = coding is not None
        if self.status in (204, 304):
            self._chunked, length = False, "0"
        if length is None:
            self.kept = self._chunked and self.kept
            return
        if not (length.isascii() and length.isdigit()):
            raise HttpError("the answer's length is no number")
        self._length = int(length)
        if self._length > self._limit:
            raise HttpError(f"the answer is longer than {self._limit} bytes")

    def _dechunk(self) -> None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            text = self._buffer[:end].partition(b";")[0].strip()
            try:
                size = int(text, 16) if text.isalnum() else -1
            except ValueError:
                size = -1
            if size < 0 or len(self._chunks) + size > self._limit:
                raise HttpError("the answer has a malformed chunk" if size < 0 else "the answer is too long")
            if size == 0:
                if self._buffer.startswith(b"\r\n", end + 2):
                    self.kept = self.kept and len(self._buffer) == end + 4
                    self.body = bytes(self._chunks)
                elif len(self._buffer) >= end + 4:
                    raise HttpError("the answer has trailers")
                return
            if len(self._buffer) < end + 2 + size + 2:
                return
            if not self._buffer.startswith(b"\r\n", end + 2 + size):
                raise HttpError("the answer has a malformed chunk")
            self._chunks += self._buffer[end + 2 : end + 2 + size]
            del self._buffer[: end + 2 + size + 2]
        if len(self._buffer) > HEAD_LIMIT:
            raise HttpError("the answer has a malformed chunk")
