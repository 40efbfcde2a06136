"""Tokens as text, for people."""

from collections.abc import Callable, Sequence
from pathlib import Path

Decoder = Callable[[Sequence[int]], str]
"""Token ids -> text, special tokens included."""


def load_decoder(tokenizer_dir: Path) -> Decoder | None:
    """Decoder of a Hugging Face directory; None where it has no tokenizer.json or the library is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    path = tokenizer_dir / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def one_line(text: str, limit: int = 200) -> str:
    """Without line breaks, cut at `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
