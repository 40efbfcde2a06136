"""Text -> token ids, piece by piece, so that what was tokenized before is not tokenized again.

A tokenizer cuts its added tokens out of the raw text before it does anything else, and looks at each part between them
by itself. So a text may be cut before every occurrence of one added token: the ids of the pieces, put together, are the
ids of the text. Chat templates begin every message with such a token, hence a piece is a message, and a conversation
that grows, is compacted or is forked pays for its new messages alone. Where no token is safe to cut at, the text stays
whole. Equality with the whole text is tested by property.
"""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from whippletree.tokens import TokenIds, pack_ids, unpack_ids

LARGEST = 8
"""A piece is kept where it takes at most one part in so many of the whole cache."""


class PieceCache:
    """Packed ids of pieces by their text, those used last. Invariant: texts and ids take at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._ids: OrderedDict[str, bytes] = OrderedDict()

    def get(self, piece: str) -> bytes | None:
        """The ids of a piece that is known."""
        if (ids := self._ids.get(piece)) is not None:
            self._ids.move_to_end(piece)
        return ids

    def put(self, piece: str, ids: bytes) -> None:
        """Keep a piece; those not used for longest go."""
        size = _size(piece, ids)
        if piece in self._ids or size * LARGEST > self._limit:
            return
        self._ids[piece] = ids
        self._size += size
        while self._size > self._limit:
            self._size -= _size(*self._ids.popitem(last=False))


def _size(piece: str, ids: bytes) -> int:
    return sys.getsizeof(piece) + sys.getsizeof(ids)


class Pieces:
    """One tokenizer's pieces. `mark` is the token that texts are cut at; None = texts stay whole."""

    def __init__(self, fast: FastTokenizer, *, mark: str | None, limit: int) -> None:
        """`limit`: bytes that are kept."""
        self._fast, self.mark = fast, mark
        self._cache = PieceCache(limit)

    def look(self, text: str) -> "Looked":
        """What is known of a text's pieces."""
        pieces = cut(text, self.mark)
        known: dict[str, bytes] = {}
        missing: dict[str, None] = {}
        for piece in pieces:
            ids = self._cache.get(piece)
            if ids is None:
                missing[piece] = None
            else:
                known[piece] = ids
        return Looked(pieces, known, list(missing))

    def encode(self, pieces: Iterable[str]) -> list[bytes]:
        """Packed ids of each piece. Touches nothing else, so it may run in a thread."""
        encodings = (self._fast.encode_batch_fast([piece], add_special_tokens=False)[0] for piece in pieces)
        return [pack_ids(np.asarray(encoding.ids, dtype=np.int32)) for encoding in encodings]

    def join(self, looked: "Looked", encoded: Sequence[bytes]) -> TokenIds:
        """[P] ids of the whole text, given the ids of what was missing; keeps them."""
        known = {**looked.known, **dict(zip(looked.missing, encoded, strict=True))}
        for piece, ids in zip(looked.missing, encoded, strict=True):
            self._cache.put(piece, ids)
        return unpack_ids(b"".join([known[piece] for piece in looked.pieces]))


class Looked:
    """A text in pieces: which are known, which are not."""

    __slots__ = ("known", "missing", "pieces")

    def __init__(self, pieces: Sequence[str], known: Mapping[str, bytes], missing: Sequence[str]) -> None:
        self.pieces, self.known, self.missing = pieces, known, missing

    @property
    def length(self) -> int:
        """Characters that are left to tokenize."""
        return sum(map(len, self.missing))


def cut(text: str, mark: str | None) -> list[str]:
    """The text in pieces, each but the first beginning with the mark."""
    if mark is None:
        return [text]
    first, *rest = text.split(mark)
    pieces = [mark + part for part in rest]
    return [first, *pieces] if first else pieces


def safe_marks(added: Sequence[AddedToken]) -> list[str]:
    """The added tokens that a tokenizer finds wherever their text stands, and before which every word ends."""
    verbatim = [token for token in added if not token.normalized]
    return [
        token.content
        for token in verbatim
        if not (token.single_word or token.lstrip or token.rstrip)
        and not any(map(str.isspace, token.content))
        and not (token.content[:1].isalnum() or token.content[:1] in ("_", ""))
        and not any(hides(other.content, token.content) for other in verbatim)
    ]


def hides(other: str, mark: str) -> bool:
    """Whether a match of `other` may cover the beginning of the mark: it holds the mark, or ends with a part of it."""
    holds = mark in other and other != mark
    return holds or any(other.endswith(mark[:length]) for length in range(1, len(mark)))


def most_frequent(marks: Sequence[str], text: str) -> str | None:
    """The mark that stands most often in a text, the first of several; None where none stands there."""
    counts = {mark: text.count(mark) for mark in marks}
    found = [mark for mark, count in counts.items() if count]
    return max(found, key=lambda mark: (counts[mark], -text.index(mark)), default=None)
