"""Ids put together from pieces are the ids of the whole text, whatever the tokenizer, the template and the history."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from openai_bridge.dialects.openai_chat import parse
from openai_bridge.pieces import PieceCache, cut, hides, most_frequent, safe_marks
from openai_bridge.render import render
from openai_bridge.settings import LimitSettings
from openai_bridge.template import ChatTemplate
from openai_bridge.tokenizer import Tokenizer
from openai_bridge.tokenizer_cache import to_prompt
from tests.fakes.chat_model import CHATML, QWEN
from tests.fakes.tokenizers import KINDS

LLAMA = """\
{%- for m in messages -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"""
LAST = """\
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + ('!' if loop.last else '') + '\\n' + m.content + '<|im_end|>' }}
{%- endfor -%}
{{ '<|im_start|>assistant ' ~ (messages | length) }}"""
INST = """\
{%- for m in messages -%}
{{ m.content + '</s>' if m.role == 'assistant' else '[INST] ' + m.content + ' [/INST]' }}
{%- endfor -%}"""
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TEMPLATES = {"qwen": QWEN, "chatml": CHATML, "llama": LLAMA, "last": LAST, "inst": INST, "plain": PLAIN}

PLAIN_WORDS = ["hello", " world", "the answer", "  ", "\n", "\n\n", "1", "e\u0301", "é", "漢字", "😀"]
MARKS = ["<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|eot_id|>", "[INST]", "</s>", "</think>", "<|pad|>", "world<|"]
WORDS = st.sampled_from([*PLAIN_WORDS, *MARKS, "<", "|", "<|", "im_start|>", "answer"])
TEXT = st.lists(WORDS, max_size=6).map("".join)
TURN = st.fixed_dictionaries({"content": TEXT}, optional={"reasoning_content": TEXT})


def tokenizer(kind: str, template: str, kept: int = 1 << 20) -> Tokenizer:
    return Tokenizer(
        KINDS[kind](),
        templates={"default": ChatTemplate(TEMPLATES[template], variables={})},
        end_ids=frozenset(),
        kept=kept,
    )


def asked(messages: list[dict[str, Any]]) -> Any:
    return parse(json.dumps({"model": "m", "messages": messages}).encode(), LimitSettings())


@pytest.mark.parametrize("kept", [1 << 20, 2_000], ids=["kept", "often-dropped"])
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_whole_text(kind: str, template: str, kept: int) -> None:
    made, whole = tokenizer(kind, template, kept), KINDS[kind]()

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(turns=st.lists(TURN, min_size=1, max_size=7))
    def holds(turns: list[dict[str, Any]]) -> None:
        messages = [{"role": ("user", "assistant")[number % 2], **turn} for number, turn in enumerate(turns)]
        for end in range(1, len(messages) + 1, 2):  # each ends with the user
            text = render(made.template(with_tools=False), asked(messages[:end]))
            assert made.encode(text).tolist() == whole.encode(text, add_special_tokens=False).ids

    holds()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXT)
def test_a_text_may_be_cut_at_every_safe_mark(kind: str, text: str) -> None:
    fast = KINDS[kind]()
    ids = fast.encode(text, add_special_tokens=False).ids
    for mark in safe_marks(list(fast.get_added_tokens_decoder().values())):
        parts = [fast.encode(piece, add_special_tokens=False).ids for piece in cut(text, mark)]
        assert [token for part in parts for token in part] == ids


@pytest.mark.parametrize(
    ("kind", "template", "mark"),
    [
        ("bytes", "qwen", "<|im_start|>"),
        ("bytes", "llama", "<|start_header_id|>"),
        ("sentence-pieces", "inst", "[INST]"),
        ("bytes", "plain", None),
        ("greedy", "chatml", None),
    ],
)
def test_texts_are_cut_where_messages_begin(kind: str, template: str, mark: str | None) -> None:
    assert tokenizer(kind, template).pieces.mark == mark


async def test_a_call_that_extends_another_tokenizes_the_new_messages_alone() -> None:
    made = tokenizer("bytes", "chatml")
    messages = [{"role": "user", "content": "hello " * 50}, {"role": "assistant", "content": "the answer"}]
    await to_prompt(made, asked(messages[:1]), context_length=10_000)
    text = render(made.template(with_tools=False), asked([*messages, {"role": "user", "content": "new"}]))
    assert made.pieces.look(text).missing == [
        "<|im_start|>assistant\nthe answer<|im_end|>\n",
        "<|im_start|>user\nnew<|im_end|>\n",
    ]


def test_a_cache_keeps_what_was_used_last_within_its_limit() -> None:
    cache = PieceCache(10_000)
    for number in range(100):
        cache.put(f"{number:500}", b"ids")
        assert cache.get(f"{0:500}") == b"ids"
    kept = [number for number in range(100) if cache.get(f"{number:500}")]
    assert 10 < len(kept) < 20
    assert kept[0] == 0
    assert kept[1:] == list(range(100 - len(kept) + 1, 100))


def test_a_piece_that_would_push_out_all_others_is_not_kept() -> None:
    cache = PieceCache(10_000)
    cache.put("small", b"ids")
    cache.put("x" * 9_000, b"ids")
    assert cache.get("x" * 9_000) is None
    assert cache.get("small") == b"ids"


@pytest.mark.parametrize(
    ("other", "hidden"),
    [("<a>", False), ("<a>\n", True), ("x<a>", True), ("x<", True), ("x<a", True), ("a>", False), (">x", False)],
)
def test_a_mark_that_another_token_may_cover_is_not_safe(other: str, hidden: bool) -> None:
    assert hides(other, "<a>") is hidden


def test_tokens_that_depend_on_what_stands_next_to_them_are_not_safe() -> None:
    tokens = [
        AddedToken("<ok>", normalized=False),
        AddedToken("<normalized>", normalized=True),
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<word>", single_word=True, normalized=False),
        AddedToken("<sp ace>", normalized=False),
        AddedToken("(ab(", normalized=False),
        AddedToken("word>", normalized=False),
    ]
    assert safe_marks(tokens) == ["<ok>"]


def test_the_mark_is_the_one_that_stands_most_often() -> None:
    assert most_frequent(["<b>", "<a>", "<c>"], "<s><a>x<b>y<a>x<b>") == "<a>"
    assert most_frequent(["<b>"], "nothing") is None
