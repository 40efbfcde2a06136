"""Texts and a tokenizer of realistic speed for measurements: the repository's own words.

In: a folder. Out: a model's folder (byte-level BPE, a chat template in Qwen's manner) and conversations that grow, as
bodies of chat completions. Everything follows from a seed.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.fakes.chat_model import END, MARKS, QWEN

ROOT = Path(__file__).parents[1]
VOCABULARY = 2_048
"""Small, so that 200 KB are 57,000 tokens: more work a byte than with the tokenizers of large models."""
CONTEXT = 131_072
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizer cuts text into words."""
SYSTEM = "You are an agent that mends programs. Answer with one command at a time, and say what you expect of it. "


def corpus() -> str:
    """Documents and sources of this repository, in a fixed order."""
    paths = sorted(
        path
        for folder in ("docs", "benchmarks", "gateway_svc", "openai_bridge", "trainer_svc", "whippletree", "proto")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".proto"} and "_pb2" not in path.name
    )
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def tokenizer(text: str) -> Tokenizer:
    """Trained on the text; built like Qwen's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=["<|endoftext|>", "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text.splitlines(keepends=True), trainer)
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return made


def write_model(folder: Path, made: Tokenizer) -> Path:
    """What `up` and the bridge read of a model; it has no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(QWEN, encoding="utf-8")
    sizes = {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY, "model_type": "qwen3"}
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a conversation begins and grows; bytes of text, without the replies."""

    first: int
    grows: int
    turns: int


@dataclass(slots=True)
class Conversation:
    """One agent's: every body extends the one before by the reply to it and an observation."""

    shape: Shape
    model: str
    reply: str
    """What the engine always answers."""
    text: str
    draw: random.Random
    messages: list[bytes] = field(default_factory=list)

    def bodies(self) -> Iterator[bytes]:
        """One per turn."""
        self.messages = [message("system", SYSTEM * 3), *self.beginning()]
        for _ in range(self.shape.turns):
            yield b'{"model":"%s","max_tokens":1024,"messages":[%s]}' % (self.model.encode(), b",".join(self.messages))
            self.messages += [message("assistant", self.reply), message("user", self.words(self.shape.grows))]

    def beginning(self) -> Iterator[bytes]:
        """The question; a long conversation begins with as many turns as it would have had by then."""
        left = self.shape.first - len(SYSTEM) * 3
        yield message("user", self.words(min(left, 2_000)))
        left -= 2_000
        while left > 0:
            yield message("assistant", self.reply)
            yield message("user", self.words(min(left, 2_000)))
            left -= 2_000 + len(self.reply)

    def words(self, size: int) -> str:
        """Some text of about so many bytes."""
        start = self.draw.randrange(len(self.text) - size)
        return self.text[start : start + size]


def message(role: str, content: str) -> bytes:
    """One message of a body."""
    return orjson.dumps({"role": role, "content": content})
