import json
from typing import Any

import pytest

from openai_bridge.dialects.anthropic_messages import AnthropicMessages, error_type, parse
from openai_bridge.errors import failure
from openai_bridge.settings import LimitSettings
from openai_bridge.types import ChatRequest, Message, ToolCall
from whippletree import errors
from whippletree.errors import InvalidFieldError

USER = {"role": "user", "content": "hi"}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=00aa1;"}


def understood(**fields: Any) -> ChatRequest:
    return parse(json.dumps({"model": "m", "max_tokens": 9, "messages": [USER], **fields}).encode(), LimitSettings())


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [text("a"), {"type": "document"}]}]}, "messages.0.content.1"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages.0.content.0.tool_use_id",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
                    }
                ]
            },
            "messages.0.content.0.content.0",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": []}]}
                ]
            },
            "messages.0.content.0.input",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "Thought:"}]}, "messages"),
        ({"messages": [USER, {"role": "assistant", "content": []}]}, "messages"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"model": ""}, "model"),
    ],
)
def test_bad_body_is_refused_and_the_field_is_named(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        understood(**fields)
    assert caught.value.metadata["field"] == field


def test_a_text_and_its_block_are_the_same_request_to_the_model() -> None:
    plain = understood(system="s")
    blocks = understood(
        system=[text("s", cache_control={"type": "ephemeral"})],
        messages=[{"role": "user", "content": [text("hi", cache_control={"type": "ephemeral"})]}],
    )
    assert (
        plain.messages == blocks.messages == [Message(role="system", content="s"), Message(role="user", content="hi")]
    )


def test_results_of_tools_become_messages_in_their_order() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("x"), text("y")], "is_error": True},
        {"type": "tool_result", "tool_use_id": "c"},
        text("and"),
        text("now?"),
    ]
    assert understood(messages=[{"role": "user", "content": content}]).messages == [
        Message(role="tool", content="1", tool_call_id="a"),
        Message(role="tool", content="x\ny", tool_call_id="b"),
        Message(role="tool", content="", tool_call_id="c"),
        Message(role="user", content="and\nnow?"),
    ]


@pytest.mark.parametrize("signature", ["", "bXNnXzE=", "of another server"])
def test_an_assistants_blocks_are_one_message(signature: str) -> None:
    content = [
        {"type": "thinking", "thinking": "why", "signature": signature},
        {"type": "redacted_thinking", "data": "xyz"},
        text("look"),
        {"type": "tool_use", "id": "a", "name": "bash", "input": {"cmd": "ls"}},
        {"type": "tool_use", "id": "b", "name": "now", "input": {}},
    ]
    _, assistant, _ = understood(messages=[USER, {"role": "assistant", "content": content}, USER]).messages
    assert assistant == Message(
        role="assistant",
        content="look",
        reasoning="why",
        tool_calls=(ToolCall(id="a", name="bash", arguments={"cmd": "ls"}), ToolCall(id="b", name="now", arguments={})),
    )


def test_tools_reach_the_template_in_the_form_that_it_knows() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    given = [
        {"name": "f", "description": "d", "input_schema": schema, "cache_control": {}},
        {"type": "custom", "name": "g", "input_schema": schema},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    tools = understood(tools=given).tools
    assert json.dumps(tools[0]) == json.dumps(
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    )
    assert [tool["function"]["name"] for tool in tools] == ["f", "g"]
    assert understood(tools=given, tool_choice={"type": "none"}).tools == ()
    assert len(understood(tools=given, tool_choice={"type": "any"}).tools) == 2


def test_the_line_that_changes_with_every_call_is_left_out() -> None:
    one = understood(system=[BILLING, text("You are.")])
    other = understood(system=[{**BILLING, "text": BILLING["text"] + " other"}, text("You are.", cache_control={})])
    assert one.messages[0] == Message(role="system", content="You are.")
    assert one.digest == other.digest != understood(system="You were.").digest
    assert [message.role for message in understood(system=[BILLING]).messages] == ["user"]


def test_the_digest_leaves_out_how_the_answer_is_written_and_nothing_else() -> None:
    assert understood(stream=True).digest == understood(stream=False).digest == understood().digest
    assert len({understood(**fields).digest for fields in ({}, {"metadata": {"a": 1}}, {"max_tokens": 8})}) == 3


def test_sampling_and_thinking() -> None:
    request = understood(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["a", "b"], thinking={"type": "adaptive"})
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 5, 9)
    assert sampling.stop == ("a", "b")
    assert request.template_arguments == {"enable_thinking": True}
    assert understood(thinking={"type": "disabled"}).template_arguments == {"enable_thinking": False}
    assert understood().template_arguments == {}


def test_system_messages_in_the_conversation_and_unknown_fields_are_accepted() -> None:
    messages = [USER, {"role": "system", "content": [text("note")], "x": 1}]
    request = understood(messages=messages, context_management={"edits": []}, metadata={"user_id": "u"}, betas=["x"])
    assert [message.role for message in request.messages] == ["user", "system"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidFieldError("m", field="n"), 400, "invalid_request_error"),
        (errors.RolloutEndedError("m"), 400, "invalid_request_error"),
        (errors.NotFoundError("m", name="models/x"), 404, "not_found_error"),
        (errors.OverloadedError("m"), 429, "rate_limit_error"),
        (errors.HeldTooLongError("m"), 503, "overloaded_error"),
        (errors.EngineUnavailableError("m"), 503, "overloaded_error"),
        (errors.DeadlineError("m"), 504, "timeout_error"),
        (errors.InternalError("secret"), 500, "api_error"),
    ],
)
def test_errors_have_anthropics_shape_in_a_body_and_in_a_stream(
    error: errors.WhippletreeError, status: int, kind: str
) -> None:
    told = failure(error)
    body = json.loads(AnthropicMessages().error_body(told))
    assert (told.status, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["details"]["error_code"] == told.code
    assert "secret" not in body["error"]["message"]
    name, data, *_ = AnthropicMessages().error_event(told).decode().split("\n")
    assert (name, json.loads(data.removeprefix("data: "))) == ("event: error", body)


def test_statuses_that_envoy_gives_have_types_too() -> None:
    assert [error_type(status) for status in (401, 403, 413, 415, 502)] == [
        "authentication_error",
        "permission_error",
        "request_too_large",
        "invalid_request_error",
        "api_error",
    ]


def test_overflow_is_told_in_the_words_that_harnesses_look_for() -> None:
    told = failure(errors.ContextLengthExceededError("m", prompt_tokens=513, context_length=512))
    message = json.loads(AnthropicMessages().error_body(told))["error"]["message"]
    assert message == "prompt is too long: 513 tokens > 512 maximum"
