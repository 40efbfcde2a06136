"""How much text one token can stand for at most: what lets a hopeless prompt be refused before it is tokenized.

Known for byte-level BPE alone, where every byte of the text is in exactly one token. Tokenizers that drop, replace or
shorten text (most normalizers, unknown tokens, whitespace next to added tokens) have no bound.
"""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.pre_tokenizers import ByteLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Every token stands for at most `longest` bytes of UTF-8; with `nfc`, of text that is in NFC already."""

    longest: int
    nfc: bool

    def least(self, text: str) -> int:
        """Tokens that a text has at least."""
        size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self.nfc and not unicodedata.is_normalized("NFC", text):
            return 0
        return -(-size // self.longest)

    def may_exceed(self, text: str, tokens: int) -> bool:
        """Whether `least` is worth its time: it never is for a text that could fit."""
        return 4 * len(text) > tokens * self.longest


def bound(fast: FastTokenizer) -> Bound | None:
    """The bound of a tokenizer; None where there is none, or none is known."""
    made: Mapping[str, Any] = orjson.loads(fast.to_str())
    vocabulary = made["model"].get("vocab")
    if made["model"].get("type") != "BPE" or not set(ByteLevel.alphabet()) <= vocabulary.keys():
        return None
    if made["normalizer"] not in (None, {"type": "NFC"}) or not _is_byte_level(made["pre_tokenizer"]):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in made["added_tokens"]):
        return None
    added = (len(token["content"].encode()) for token in made["added_tokens"])
    return Bound(longest=max(*map(len, vocabulary), *added), nfc=made["normalizer"] is not None)


def _is_byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether it ends in bytes and drops nothing on the way."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    *before, last = steps
    return (last or {}).get("type") == "ByteLevel" and all(
        step["type"] in {"Split", "Digits"} and step.get("behavior") != "Removed" for step in before
    )
