"""What a harness asked for and did not get is named, never shown to the template, and bounded."""

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from openai_bridge import reply
from openai_bridge.dialects import (
    anthropic_fields,
    anthropic_messages,
    anthropic_reply,
    ignored,
    openai_chat,
    openai_fields,
)
from openai_bridge.dialects.body import digest
from openai_bridge.render import render
from openai_bridge.settings import LimitSettings
from openai_bridge.template import ChatTemplate
from openai_bridge.types import ChatRequest, Choice, Completion, Finish, Reply, ToolCall

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "foo": 1}}
CALL = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
EVERYTHING = ChatTemplate("{{ messages | tojson }}{{ tools | tojson }}", variables={})


def openai(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return openai_chat.parse(json.dumps(body).encode(), LimitSettings())


def anthropic(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **fields}
    return anthropic_messages.parse(json.dumps(body).encode(), LimitSettings())


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content, **more}, USER]}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"foo": 1}, ["foo"]),
        ({"foo": False, "bar": 0, "baz": {}}, ["bar", "baz", "foo"]),
        ({"reasoning_effort": "low", "min_tokens": 5}, ["min_tokens", "reasoning_effort"]),
        ({"tool_choice": "required"}, ["tool_choice"]),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ["tool_choice"]),
        ({"parallel_tool_calls": False}, ["parallel_tool_calls"]),
        (message("user", "hi", foo=1, bar=2), ["messages.bar", "messages.foo"]),
        (message("assistant", "hi", refusal="no"), ["messages.refusal"]),
        (message("user", [{"type": "text", "text": "hi", "foo": 1}, "there"]), ["messages.content.foo"]),
        (message("assistant", None, tool_calls=[{**CALL, "foo": 1}]), ["messages.tool_calls.foo"]),
        (
            message("assistant", None, tool_calls=[{**CALL, "function": {"name": "f", "foo": 1}}]),
            ["messages.tool_calls.function.foo"],
        ),
        ({"tools": [{"type": "function", "function": FUNCTION, "foo": 1}]}, ["tools.foo"]),
        ({"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]}, ["tools.function.strict"]),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, ["tools.custom", "tools.type"]),
        ({"chat_template_kwargs": {"messages": [1], "enable_thinking": False}}, ["chat_template_kwargs.messages"]),
    ],
)
def test_what_openais_request_asked_for_in_vain_is_named(fields: dict[str, Any], names: list[str]) -> None:
    assert list(openai(**fields).ignored) == names


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"foo": 1, "context_management": {"edits": [1]}}, ["context_management", "foo"]),
        ({"output_config": {"effort": "low"}}, ["output_config.effort"]),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ["thinking.budget_tokens"]),
        ({"tool_choice": {"type": "tool", "name": "f"}}, ["tool_choice.name", "tool_choice.type"]),
        ({"tools": [{"type": "web_search_1", "name": "w", "max_uses": 5}]}, ["tools.max_uses", "tools.type"]),
        ({"system": [{"type": "text", "text": "s", "foo": 1}]}, ["system.foo"]),
        (message("user", "hi", foo=1), ["messages.foo"]),
        (message("user", [{"type": "text", "text": "hi", "citations": [1]}]), ["messages.content.citations"]),
        (message("assistant", [{"type": "redacted_thinking", "data": "x"}]), ["messages.content.data"]),
        (
            message(
                "user",
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a",
                        "is_error": True,
                        "content": [{"type": "text", "text": "1", "foo": 2}],
                    }
                ],
            ),
            ["messages.content.content.foo", "messages.content.is_error"],
        ),
    ],
)
def test_what_anthropics_request_asked_for_in_vain_is_named(fields: dict[str, Any], names: list[str]) -> None:
    assert list(anthropic(**fields).ignored) == names


def test_what_cannot_change_a_reply_or_asks_for_what_is_done_anyway_is_not_named() -> None:
    tool = {"type": "function", "function": {**FUNCTION, "strict": False}, "cache_control": {"type": "ephemeral"}}
    asked = openai(
        **message("assistant", "hi", refusal=None, annotations=[], function_call=None, tool_calls=[CALL]),
        user="u",
        store=True,
        metadata={"a": 1},
        service_tier="flex",
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        tools=[tool],
        tool_choice="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        frequency_penalty=0.5,
        foo=None,
        chat_template_kwargs={"enable_thinking": False, "add_generation_prompt": True},
    )
    assert asked.ignored == ()
    other = anthropic(
        **message("user", [{"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": False}]),
        metadata={"user_id": "u"},
        system=[{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        tools=[{"type": "custom", "name": "f", "input_schema": {"foo": 1}}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": False},
        thinking={"type": "disabled"},
        stream=True,
    )
    assert other.ignored == ()


def test_a_reply_that_comes_back_as_it_was_is_used_whole() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a": 1}')
    choice = Choice(
        reply=Reply(content="Look.", reasoning="why", tool_calls=(call,)),
        finish=Finish.STOP,
        response_count=3,
        logprobs=None,
    )
    made = Completion(id="x", created=0, model="m", weight_version="1", prompt_count=1, choices=(choice,))
    echo = orjson.loads(reply.body(made))["choices"][0]["message"]
    assert openai(messages=[USER, echo, {"role": "tool", "tool_call_id": "c", "content": "1"}]).ignored == ()
    result = {"type": "tool_result", "tool_use_id": "c", "content": "1"}
    turn = {"role": "assistant", "content": orjson.loads(anthropic_reply.body(made))["content"]}
    assert anthropic(messages=[USER, turn, {"role": "user", "content": [result]}]).ignored == ()


def test_no_unknown_field_reaches_the_template() -> None:
    extra = {"foo": "SEEN"}
    call = {**CALL, **extra, "function": {"name": "f", "arguments": "{}", **extra}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "hi", **extra}], **extra},
        {"role": "assistant", "content": "", "tool_calls": [call], **extra},
        {"role": "tool", "tool_call_id": "c", "content": "1", **extra},
    ]
    plain = {"type": "function", "function": FUNCTION}
    tools = [
        plain,
        {**plain, **extra, "cache_control": {}, "function": {**FUNCTION, "strict": True, **extra}},
        {"type": "function", **FUNCTION, **extra},
        {"type": "custom", "custom": extra},
    ]
    asked = openai(messages=turns, tools=tools, **extra)
    assert "SEEN" not in render(EVERYTHING, asked)
    assert asked.tools == [plain, plain, {"type": "function", **FUNCTION}]
    block = {"type": "text", "text": "hi", **extra}
    tool = {"name": "f", "input_schema": {"type": "object"}, **extra}
    other = anthropic(messages=[{"role": "user", "content": [block], **extra}], tools=[tool], system=[block], **extra)
    assert "SEEN" not in render(EVERYTHING, other)


@pytest.mark.parametrize("asked", [openai, anthropic])
def test_names_are_bounded_and_the_first_ones_are_kept(asked: Callable[..., ChatRequest]) -> None:
    found = asked(**{f"{number:03}" + "x" * 1_000: 1 for number in range(1_000)}).ignored
    assert found == tuple(f"{number:03}" + "x" * 97 for number in range(ignored.MOST))
    assert asked(**{"a\nb\0": 1, "ü.🙂": 1}).ignored == ("a\\nb\\x00", "ü.🙂")
    many = [{"role": "user", "content": "hi", f"{number}": 1} for number in range(100)]
    assert len(asked(messages=many).ignored) == ignored.MOST


def test_a_field_that_is_read_is_known_to_be_used() -> None:
    body = openai_fields.BODY
    assert set(openai_chat._Body.model_fields) <= body.used | body.usual.keys()
    assert set(anthropic_messages._Body.model_fields) <= anthropic_fields.BODY.used
    assert set(anthropic_messages._Tool.model_fields) <= anthropic_fields.TOOL.used


def test_noted_fields_are_part_of_the_digest_as_before() -> None:
    one, same, other = openai(foo=1), openai(foo=1, stream=True), openai(foo=2)
    assert one.digest == same.digest != other.digest
    assert one.digest == digest("openai.chat", {"foo": 1, "model": "m", "messages": [USER]}, without=())
