"""A model's folder -> its tokenizer, chat template and end tokens; text -> ids and ids -> text.

Read: tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json, config.json (Hugging Face).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from openai_bridge.bounds import bound
from openai_bridge.pieces import Pieces, most_frequent, safe_marks
from openai_bridge.template import FAILURES, ChatTemplate
from whippletree.tokens import TokenIds

KEPT = 256 << 20
"""Bytes of texts and their tokens that are kept of one model."""
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """One model's tokenizer. Special tokens in text are special, and none is added: templates write their own."""

    def __init__(
        self, fast: FastTokenizer, *, templates: Mapping[str, ChatTemplate], end_ids: frozenset[int], kept: int = KEPT
    ) -> None:
        """`kept`: see KEPT."""
        fast.no_padding()
        fast.no_truncation()
        self._fast = fast
        self._templates = templates
        self.end_ids = end_ids
        self.pieces = Pieces(fast, mark=message_mark(fast, templates["default"]), limit=kept)
        self.bound = bound(fast)

    def template(self, *, with_tools: bool) -> ChatTemplate:
        """The template; some models have one of their own for tools."""
        return self._templates.get("tool_use", self._templates["default"]) if with_tools else self._templates["default"]

    def encode(self, text: str) -> TokenIds:
        """Text -> [P] ids."""
        looked = self.pieces.look(text)
        return self.pieces.join(looked, self.pieces.encode(looked.missing))

    def decode(self, ids: TokenIds) -> str:
        """[R] ids -> text without the end tokens at its end; every other special token stays visible."""
        end = len(ids)
        while end and int(ids[end - 1]) in self.end_ids:
            end -= 1
        return str(self._fast.decode(ids[:end].tolist(), skip_special_tokens=False))

    def token(self, token_id: int) -> str:
        """The text of one token; a piece of a character shows as U+FFFD."""
        return str(self._fast.decode([token_id], skip_special_tokens=False))


def load(folder: Path) -> Tokenizer:
    """The tokenizer in a model's folder. OSError or ValueError where it has none, or no chat template."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads cost more than one short text takes
    config = _read(folder / "tokenizer_config.json")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer.json in {folder}")
    fast = FastTokenizer.from_file(str(path))
    special = special_tokens({**_read(folder / "special_tokens_map.json"), **config})
    templates = {
        name: ChatTemplate(source, variables=special) for name, source in _template_sources(folder, config).items()
    }
    if "default" not in templates:
        raise ValueError(f"no chat template in {folder}")
    return Tokenizer(fast, templates=templates, end_ids=_end_ids(folder, fast, special))


def message_mark(fast: FastTokenizer, template: ChatTemplate) -> str | None:
    """The token that begins every message, where texts may be cut; None where there is none."""
    turns = [{"role": role, "content": "probe"} for role in ("user", "assistant") * 2]
    try:
        text = template.render([*turns, {"role": "user", "content": "probe"}])
    except FAILURES:
        return None
    return most_frequent(safe_marks(list(fast.get_added_tokens_decoder().values())), text)


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; written as text or as an object with `content`."""
    found: dict[str, str] = {}
    for name in SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    given = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(given, str):
        sources["default"] = given
    elif isinstance(given, list):
        sources = {str(item["name"]): str(item["template"]) for item in given}
    if (path := folder / "chat_template.jinja").is_file():
        sources["default"] = path.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text(encoding="utf-8")
    return sources


def _end_ids(folder: Path, fast: FastTokenizer, special: Mapping[str, str]) -> frozenset[int]:
    """Every id that the engine ends a response at."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read(folder / name).get("eos_token_id")
        found.update([value] if isinstance(value, int) else value or [])
    token_id = fast.token_to_id(special["eos_token"]) if "eos_token" in special else None
    return frozenset(found if token_id is None else found | {token_id})


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    return value if isinstance(value, dict) else {}
