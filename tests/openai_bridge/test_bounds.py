"""A text that cannot fit is refused before it is tokenized, and none is that could."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_bridge.bounds import bound
from openai_bridge.dialects.openai_chat import parse
from openai_bridge.settings import LimitSettings
from openai_bridge.template import ChatTemplate
from openai_bridge.tokenizer import Tokenizer
from openai_bridge.tokenizer_cache import to_prompt
from tests.fakes.chat_model import CHATML
from tests.fakes.tokenizers import KINDS
from whippletree.errors import ContextLengthExceededError


class Untouched(Tokenizer):
    """Nothing is tokenized with it."""

    def __init__(self, kind: str) -> None:
        super().__init__(KINDS[kind](), templates={"default": ChatTemplate(CHATML, variables={})}, end_ids=frozenset())
        self.pieces = None  # type: ignore[assignment]


def asked(content: str) -> Any:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return parse(json.dumps(body).encode(), LimitSettings())


@pytest.mark.parametrize("kind", ["bytes", "bytes-nfc"])
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(st.sampled_from("hello world answer漢字\u0301é😀\n<|im_end|>")))
def test_no_text_has_fewer_tokens_than_the_bound_says(kind: str, text: str) -> None:
    fast = KINDS[kind]()
    known = bound(fast)
    assert known is not None
    tokens = len(fast.encode(text, add_special_tokens=False).ids)
    assert known.least(text) <= tokens
    assert known.may_exceed(text, tokens - 1) or known.least(text) <= tokens - 1


@pytest.mark.parametrize("kind", ["sentence-pieces", "words", "greedy"])
def test_tokenizers_that_drop_or_replace_text_have_no_bound(kind: str) -> None:
    assert bound(KINDS[kind]()) is None


def test_text_that_its_normalizer_may_shorten_has_no_bound() -> None:
    known = bound(KINDS["bytes-nfc"]())
    assert known is not None
    assert known.least("e\u0301" * 1_000) == 0
    assert known.least("é" * 1_000) > 0


@pytest.mark.parametrize("kind", ["bytes", "bytes-nfc"])
async def test_hopeless_prompt_is_refused_before_it_is_tokenized(kind: str) -> None:
    with pytest.raises(ContextLengthExceededError) as caught:
        await to_prompt(Untouched(kind), asked("hello world " * 1_000_000), context_length=40_960)
    assert caught.value.metadata["context_length"] == "40960"
    assert int(caught.value.metadata["prompt_tokens"].removeprefix("at least ")) > 40_960
