"""Which recorded call a new prompt continues: the one whose prompt + response is the longest exact prefix of the
prompt.

In: a packed prompt and, for every recorded sequence of the attempt, its length and digest. Out: the parent and the
digest of the prompt, from which the digest of the new sequence follows. A prefix is recognised by its 128-bit BLAKE2b
digest, so no recorded token is read; one pass over the prompt, whatever the number of recorded sequences, and over its
new part alone where the sequence that it continues is still in memory (`recent.py`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

DIGEST_SIZE = 16
"""Bytes of a sequence's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One recorded prompt + response: where it is stored, its tokens, its digest."""

    key: int
    call_id: str
    length: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """`parent` None = nothing recorded is a prefix; `shared` = tokens of it, from the start, that the prompt has."""

    parent: Sequence | None
    shared: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """A prompt that has been read. The hashers stand still: one that is to go on is copied."""

    prompt: bytes
    position: int
    """Bytes up to a place where the hash is known without reading the prompt."""
    before: blake2b
    """It has read these."""
    whole: blake2b
    """It has read the prompt."""

    @property
    def digest(self) -> bytes:
        """Of the prompt."""
        return self.whole.digest()

    def followed_by(self, response: bytes) -> blake2b:
        """The hasher that has read prompt and response."""
        return _read(self.whole, response)

    def digests(self, lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """The digests of the prompt's beginnings of these lengths in bytes, which rise."""
        view, position, hasher = memoryview(self.prompt), self.position, self.before
        for length in lengths:
            if length < position:
                position, hasher = 0, blake2b(digest_size=DIGEST_SIZE)
            hasher = _read(hasher, view[position:length])
            position = length
            yield length, hasher.digest()


def hashed(prompt: bytes, position: int = 0, before: blake2b | None = None) -> Hashed:
    """Read a prompt; its first `position` bytes are what `before` has read."""
    before = before or blake2b(digest_size=DIGEST_SIZE)
    whole = _read(before, memoryview(prompt)[position:])
    return Hashed(prompt=prompt, position=position, before=before, whole=whole)


def longest(prompt: Hashed, recorded: Iterable[Sequence]) -> Match:
    """The longest recorded sequence that is a prefix of the prompt (int32, [P]); of equal ones the newest key."""
    by_length: dict[int, dict[bytes, Sequence]] = {}
    for sequence in recorded:
        if 0 < sequence.length * 4 <= len(prompt.prompt):
            known = by_length.setdefault(4 * sequence.length, {}).get(sequence.digest)
            if known is None or known.key < sequence.key:
                by_length[4 * sequence.length][sequence.digest] = sequence
    lengths = sorted(by_length)
    longer = [length for length in lengths if length >= prompt.position]
    for part in (longer, lengths[: len(lengths) - len(longer)]):  # what is shorter is read only where it may be needed
        best = None
        for length, digest_ in prompt.digests(part):
            best = by_length[length].get(digest_, best)
        if best is not None:
            return Match(parent=best, shared=best.length)
    return Match(parent=None, shared=0)


def _read(hasher: blake2b, data: bytes | memoryview) -> blake2b:
    """A hasher that has also read this."""
    made = hasher.copy()
    made.update(data)
    return made


def digest(prompt: bytes, response: bytes) -> bytes:
    """Digest of a whole recorded sequence."""
    hasher = blake2b(prompt, digest_size=DIGEST_SIZE)
    hasher.update(response)
    return hasher.digest()
