"""Which recorded call a new prompt continues: the one whose prompt + response is the longest exact prefix of the
prompt.

In: a packed prompt and, for every recorded sequence of the attempt, its length and digest. Out: the parent and the
digest of the prompt, from which the digest of the new sequence follows. A prefix is recognised by its 128-bit BLAKE2b
digest, so no recorded token is read; one pass over the prompt, whatever the number of recorded sequences.
"""

from collections.abc import Iterable
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


def longest(prompt: bytes, recorded: Iterable[Sequence]) -> Match:
    """The longest recorded sequence that is a prefix of `prompt` (packed int32, [P]); of equal ones the newest key."""
    by_length: dict[int, dict[bytes, Sequence]] = {}
    for sequence in recorded:
        if 0 < sequence.length * 4 <= len(prompt):
            known = by_length.setdefault(sequence.length, {}).get(sequence.digest)
            if known is None or known.key < sequence.key:
                by_length[sequence.length][sequence.digest] = sequence
    best, hasher, position, view = None, blake2b(digest_size=DIGEST_SIZE), 0, memoryview(prompt)
    for length in sorted(by_length):
        hasher.update(view[position : 4 * length])
        position = 4 * length
        best = by_length[length].get(hasher.digest(), best)
    return Match(parent=best, shared=best.length if best else 0)


def digest(prompt: bytes, response: bytes) -> bytes:
    """Digest of a whole recorded sequence."""
    hasher = blake2b(prompt, digest_size=DIGEST_SIZE)
    hasher.update(response)
    return hasher.digest()
