"""The bridge's prompts are transformers' prompts, id by id; its text is what was sampled."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.quickstart.model import train_tokenizer, write_tokenizer
from openai_bridge.dialects.openai_chat import parse
from openai_bridge.settings import LimitSettings
from openai_bridge.tokenizer import Tokenizer, load, special_tokens
from openai_bridge.tokenizer_cache import to_prompt
from tests.fakes.chat_model import CHATML, QWEN, QWEN_OBJECTS, write_chat_model

ROOT = Path(__file__).parents[2]
TRANSFORMERS = ROOT / ".venv-train" / "bin" / "python"

TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Computes <b>one</b> & 'only' one operation; é, 漢字, 😀",
        "parameters": {"type": "object", "properties": {"z": {"type": "number"}, "a": {"enum": [1, 2.5, None, True]}}},
    },
}


def call(arguments: str, number: int = 0) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}


CONVERSATIONS: list[tuple[list[dict[str, Any]], list[Any], dict[str, Any]]] = [
    ([{"role": "user", "content": "What is 1+1?"}], [], {}),
    ([{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "漢字 😀 é"}], [TOOL], {}),
    ([{"role": "user", "content": "hi"}], [TOOL], {"enable_thinking": False}),
    (
        [
            {"role": "user", "content": "2+2, then 3+3"},
            {"role": "assistant", "content": "", "tool_calls": [call('{ "a":  1}'), call('{"z": 2}', 1)]},
            {"role": "tool", "content": "4", "tool_call_id": "c0"},
            {"role": "tool", "content": "6", "tool_call_id": "c1"},
        ],
        [TOOL],
        {},
    ),
    (
        [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two ", "reasoning_content": "\nwhy\n"},
            {"role": "user", "content": "text with <|im_end|>\n<|im_start|>system inside"},
            {"role": "assistant", "content": "  three", "reasoning_content": "because", "tool_calls": [call("{}")]},
            {"role": "tool", "content": "", "tool_call_id": "c0"},
        ],
        [TOOL],
        {},
    ),
]


async def bridge_ids(
    tokenizer: Tokenizer, messages: list[Any], tools: list[Any], variables: dict[str, Any]
) -> list[int]:
    body = {"model": "m", "messages": messages, "tools": tools, "chat_template_kwargs": variables}
    request = parse(json.dumps(body).encode(), LimitSettings())
    prompt = await to_prompt(tokenizer, request, context_length=100_000)
    ids: list[int] = prompt.ids.tolist()
    return ids


def transformers_ids(folder: Path, conversations: list[Any]) -> list[list[int]]:
    cases = [{"messages": m, "tools": t, "variables": v} for m, t, v in conversations]
    answer = subprocess.run(
        [TRANSFORMERS, Path(__file__).with_name("hf_render.py")],
        input=json.dumps({"folder": str(folder), "cases": cases}),
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
    )
    assert answer.returncode == 0, answer.stderr
    ids: list[list[int]] = json.loads(answer.stdout)
    return ids


def objects(conversations: list[Any]) -> list[Any]:
    """The same with arguments as objects, as a template that walks over them needs them."""
    copied = json.loads(json.dumps(conversations))
    for messages, _, _ in copied:
        for message in messages:
            for made in message.get("tool_calls", ()):
                made["function"]["arguments"] = json.loads(made["function"]["arguments"])
    return list(copied)


@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="needs .venv-train (transformers): make setup")
@pytest.mark.parametrize(
    ("source", "given"),
    [(QWEN, CONVERSATIONS), (CHATML, CONVERSATIONS), (QWEN_OBJECTS, objects(CONVERSATIONS))],
    ids=["qwen", "chatml", "objects"],
)
async def test_prompt_is_the_one_of_transformers(tmp_path: Path, source: str, given: list[Any]) -> None:
    folder = write_chat_model(tmp_path, source)
    tokenizer = load(folder)
    expected = transformers_ids(folder, given)
    # Text arguments go in even where transformers was given objects: the bridge makes them objects itself.
    assert [await bridge_ids(tokenizer, *conversation) for conversation in CONVERSATIONS] == expected


@pytest.mark.skipif(not TRANSFORMERS.exists(), reason="needs .venv-train (transformers): make setup")
async def test_quick_starts_prompts_are_those_of_transformers(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, train_tokenizer(["The answer is 53.", "Add 4 and 17 <tool_call>"] * 9))
    system = {"role": "system", "content": "Use the calculator."}
    given = [([system, *messages], tools, variables) for messages, tools, variables in CONVERSATIONS[2:]]
    tokenizer = load(tmp_path)
    assert [await bridge_ids(tokenizer, *conversation) for conversation in given] == transformers_ids(tmp_path, given)


async def test_special_tokens_in_text_are_special_and_none_is_added(tmp_path: Path) -> None:
    tokenizer = load(write_chat_model(tmp_path))
    ids = await bridge_ids(tokenizer, [{"role": "user", "content": "<|im_end|>"}], [], {})
    assert ids.count(2) == 2
    assert ids[0] == 1


def test_only_end_tokens_at_the_end_are_left_out_of_the_text(tmp_path: Path) -> None:
    tokenizer = load(write_chat_model(tmp_path))
    ids = tokenizer.encode("a<|im_end|>b<tool_call><|endoftext|><|im_end|><|im_end|>")
    assert tokenizer.decode(ids) == "a<|im_end|>b<tool_call><|endoftext|>"
    assert tokenizer.decode(np.asarray([], dtype=np.int32)) == ""


def test_second_end_token_is_known_from_the_generation_config(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    tokenizer = load(folder)
    assert tokenizer.end_ids == {0, 2}
    assert tokenizer.decode(tokenizer.encode("a<|endoftext|>")) == "a"


def test_characters_of_several_tokens_stay_whole(tmp_path: Path) -> None:
    tokenizer = load(write_chat_model(tmp_path))
    ids = tokenizer.encode("漢字😀é")
    assert len(ids) > 4
    assert tokenizer.decode(ids) == "漢字😀é"
    assert tokenizer.decode(ids[:-1]).endswith("�")


def test_padding_and_truncation_of_the_file_are_not_used(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert len(load(folder).encode("a" * 50)) == 50


def test_model_may_have_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    folder = write_chat_model(tmp_path, CHATML)
    (folder / "chat_template.jinja").unlink()
    config = {"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load(folder)
    assert tokenizer.template(with_tools=True).source == "tools"
    assert tokenizer.template(with_tools=False).source == "plain"


def test_special_tokens_are_written_in_two_ways() -> None:
    config = {"eos_token": "<e>", "bos_token": {"content": "<b>"}, "pad_token": None}
    assert special_tokens(config) == {"eos_token": "<e>", "bos_token": "<b>"}


def test_folder_without_tokenizer_or_template_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        load(tmp_path)
    folder = write_chat_model(tmp_path)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="chat template"):
        load(folder)
