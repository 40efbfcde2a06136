"""The latest recorded sequences in memory, so that a prompt that continues one is hashed from there on.

In: prompts, and prompt + response of what was recorded. Out: `prefix.Hashed`. It only saves work: what was forgotten is
hashed from the beginning. Tokens are compared byte by byte, which takes a fiftieth of hashing them.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from gateway_svc import prefix
from gateway_svc.prefix import Hashed
from gateway_svc.types import RolloutId

LIMIT = 64 << 20
"""Bytes of tokens that are kept: 256 dialogues of 64k tokens."""
BRANCHES = 8
"""Sequences of one attempt that are kept."""

Place = tuple[RolloutId, int]
"""An attempt of a rollout."""


@dataclass(frozen=True, slots=True)
class _Kept:
    tokens: bytes
    hasher: blake2b


class Recent:
    """For one event loop. What was used last is kept longest; what continues a sequence takes its place."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit, self._size = limit, 0
        self._kept: OrderedDict[Place, list[_Kept]] = OrderedDict()

    def hashed(self, place: Place, prompt: bytes) -> Hashed:
        """The prompt, read from the end of the longest kept sequence that it begins with."""
        kept = [one for one in self._kept.get(place, ()) if prompt.startswith(one.tokens)]
        if not kept:
            return prefix.hashed(prompt)
        longest = max(kept, key=lambda one: len(one.tokens))
        return prefix.hashed(prompt, len(longest.tokens), longest.hasher)

    def add(self, place: Place, prompt: Hashed, response: bytes) -> None:
        """Keep what was recorded."""
        made = _Kept(prompt.prompt + response, prompt.followed_by(response))
        before = self._kept.pop(place, [])
        left = [one for one in before if not made.tokens.startswith(one.tokens)][-BRANCHES + 1 :]
        self._kept[place] = [*left, made]
        self._size += sum(len(one.tokens) for one in self._kept[place]) - sum(len(one.tokens) for one in before)
        while self._size > self._limit:
            _, forgotten = self._kept.popitem(last=False)
            self._size -= sum(len(one.tokens) for one in forgotten)
