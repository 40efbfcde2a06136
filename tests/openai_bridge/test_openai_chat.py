import json
from typing import Any

import pytest

from openai_bridge.dialects.openai_chat import parse
from openai_bridge.settings import LimitSettings
from openai_bridge.types import ChatRequest
from whippletree.errors import InvalidFieldError

USER = {"role": "user", "content": "hi"}


def understood(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    return parse(json.dumps(body).encode(), LimitSettings(choices=4))


def refused(data: bytes) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        parse(data, LimitSettings(choices=4))
    return caught.value


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "body"),
        (b"{bad", "body"),
        (b"[1]", "body"),
        (b'"text"', "body"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', "body"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', "body"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "body"),
        (b'{"model":"m","messages":[{"role":"user"}],"x":' + b'{"a":' * 500 + b"1" + b"}" * 501, "body"),
        (b'{"model":"m"}', "messages"),
        (b'{"messages":[{"role":"user","content":"hi"}]}', "model"),
        (b'{"model":"m","messages":[]}', "messages"),
        (b'{"model":"m","messages":[{"content":"hi"}]}', "messages.0.role"),
        (b'{"model":"m","messages":[{"role":"robot"}]}', "messages.0.role"),
        (b'{"model":"m","messages":[{"role":"user","content":7}]}', "messages.0.content"),
        (b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}', "messages.0.content.0"),
        (b'{"model":"m","messages":[{"role":"user"},{"role":"assistant","content":"So:"}]}', "messages"),
        (b'{"model":"m","messages":[{"role":"assistant"}]}', "messages"),
        (b'{"model":"m","messages":[{"role":"user"}],"n":0}', "n"),
        (b'{"model":"m","messages":[{"role":"user"}],"n":5}', "n"),
        (b'{"model":"m","messages":[{"role":"user"}],"n":1000000000000}', "n"),
        (b'{"model":"m","messages":[{"role":"user"}],"max_tokens":0}', "max_tokens"),
        (b'{"model":"m","messages":[{"role":"user"}],"top_logprobs":3}', "top_logprobs"),
        (b'{"model":"m","messages":[{"role":"user"}],"response_format":{"type":"json_object"}}', "response_format"),
        (b'{"model":"m","messages":[{"role":"user"}],"functions":[{"name":"f"}]}', "functions"),
    ],
)
def test_bad_body_is_refused_and_the_field_is_named(data: bytes, field: str) -> None:
    assert refused(data).metadata["field"] == field


@pytest.mark.parametrize("body", [{"messages": [USER]}, {"messages": [USER], "model": "other"}], ids=str)
def test_a_model_of_the_path_takes_the_place_of_the_bodys_and_is_the_same_request(body: dict[str, Any]) -> None:
    assert parse(json.dumps(body).encode(), LimitSettings(), "m") == understood(messages=[USER])


def test_stop_with_an_empty_word_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="stop"):
        understood(stop=["a", ""])


@pytest.mark.parametrize("message", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_missing_content_in_every_spelling_is_the_same_message(message: dict[str, Any]) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = understood(messages=[USER, {"role": "assistant", "tool_calls": [call], **message}, USER])
    assert request.messages[1].content == ""
    assert request.messages[1].tool_calls[0].name == "f"


def test_all_text_parts_are_kept_in_order() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}, "c"]
    assert understood(messages=[{"role": "tool", "content": parts}]).messages[0].content == "a\nb\nc"


def test_developer_reads_as_system_and_unknown_fields_are_dropped() -> None:
    request = understood(messages=[{"role": "developer", "content": "d", "foo": 1}], foo=1, bar={"a": [1]})
    assert (request.messages[0].role, request.messages[0].content) == ("system", "d")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ('{ "a":  1}', '{ "a":  1}'),
        ('{"cmd": "ls', '{"cmd": "ls'),
        ({"a": 1}, {"a": 1}),
        ([1], "[1]"),
        (None, "{}"),
    ],
)
def test_tool_arguments_are_kept_as_they_came(given: Any, kept: Any) -> None:
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": given}}]}
    assert understood(messages=[message, USER]).messages[0].tool_calls[0].arguments == kept


def test_tool_arguments_that_cannot_be_written_again_are_refused() -> None:
    nested: Any = 1
    for _ in range(900):
        nested = [nested]
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": nested}}]}
    with pytest.raises(InvalidFieldError) as caught:
        understood(messages=[message, USER])
    assert caught.value.metadata["field"] == "messages.0.tool_calls.0.function.arguments"


def test_the_newer_limit_wins() -> None:
    assert understood(max_tokens=5).sampling.max_tokens == 5
    assert understood(max_completion_tokens=8).sampling.max_tokens == 8
    assert understood(max_tokens=5, max_completion_tokens=8).sampling.max_tokens == 8
    assert understood(max_tokens=10**12).sampling.max_tokens == 2**31 - 1
    assert understood().sampling.max_tokens is None


def test_stop_is_one_word_or_several() -> None:
    assert understood(stop="x").sampling.stop == ("x",)
    assert understood(stop=["x", "y"]).sampling.stop == ("x", "y")
    assert understood(stop=None).sampling.stop == ()


def test_sampling_without_a_field_is_recorded_as_json() -> None:
    sampling = understood(frequency_penalty=0.5, logit_bias={"5": -100}, temperature=0.2).sampling
    assert json.loads(sampling.other) == {"frequency_penalty": 0.5, "logit_bias": {"5": -100}}
    assert (sampling.temperature, sampling.seed) == (0.2, None)


def test_both_names_of_reasoning_are_read() -> None:
    for name in ("reasoning_content", "reasoning"):
        assert understood(messages=[{"role": "assistant", name: "why"}, USER]).messages[0].reasoning == "why"


def test_tools_keep_key_order_and_tool_choice_none_leaves_them_out() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"z": 1, "a": 2.5, "n": None}}}
    assert json.dumps(understood(tools=[tool]).tools[0]) == json.dumps(tool)
    assert understood(tools=[tool], tool_choice="none").tools == ()


def test_a_request_may_not_replace_what_the_bridge_gives_the_template() -> None:
    given = {"messages": [], "tools": [], "add_generation_prompt": True, "enable_thinking": False}
    assert understood(chat_template_kwargs=given).template_arguments == {"enable_thinking": False}


@pytest.mark.parametrize("name", ["continue_final_message", "add_generation_prompt"])
@pytest.mark.parametrize("last", [USER, {"role": "assistant", "content": "So:"}], ids=["user", "prefill"])
def test_another_end_of_the_prompt_than_a_new_reply_is_refused_by_name(name: str, last: dict[str, str]) -> None:
    served = name == "add_generation_prompt"
    for fields, field in (
        ({name: not served}, name),
        ({"chat_template_kwargs": {name: not served}}, f"chat_template_kwargs.{name}"),
    ):
        with pytest.raises(InvalidFieldError, match=field) as caught:
            understood(messages=[USER, last], **fields)
        assert caught.value.metadata["field"] == field
    assert understood(**{name: served}, chat_template_kwargs={name: served}).template_arguments == {}
    assert understood(**{name: None}, chat_template_kwargs={name: None}).template_arguments == {}


def test_a_prefilled_reply_is_refused_with_what_to_do() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for last in ({"content": "So:"}, {"content": ""}, {"tool_calls": [call]}):
        with pytest.raises(InvalidFieldError, match=r"'messages'.*Add a user message or a tool's result"):
            understood(messages=[USER, {"role": "assistant", **last}])
    result = {"role": "tool", "tool_call_id": "c1", "content": "1"}
    assert understood(messages=[USER, {"role": "assistant", "tool_calls": [call]}, result]).messages[-1].content == "1"


def test_stream_options() -> None:
    assert understood(stream=True, stream_options={"include_usage": True}).include_usage
    assert not understood(stream=True, stream_options=None).include_usage


def test_the_digest_is_that_of_the_body_without_its_stream_settings() -> None:
    one = understood(stream=True, stream_options={"include_usage": True}, seed=1, metadata={"a": 1, "b": [2]})
    same = {"metadata": {"b": [2], "a": 1}, "messages": [USER], "model": "m", "seed": 1}
    assert parse(json.dumps(same, indent=1).encode(), LimitSettings(choices=4)).digest == one.digest
    others = [understood(seed=2), understood(seed=1, metadata={"a": 1}), understood(), understood(n=2)]
    assert len({one.digest, *(other.digest for other in others)}) == 5, "fields that are not used count too"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("hi", "messages.1"),
        ({"content": "hi"}, "messages.1.role"),
        ({"role": 1, "content": "hi"}, "messages.1.role"),
        ({"role": "user", "content": "hi", "tool_calls": [{"function": {}}]}, "messages.1.tool_calls.0.function.name"),
    ],
    ids=["no-object", "no-role", "role-is-no-text", "call-without-a-name"],
)
def test_what_is_wrong_with_a_message_is_told_with_its_place(message: Any, field: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}, message]}
    with pytest.raises(InvalidFieldError) as caught:
        parse(json.dumps(body).encode(), LimitSettings())
    assert caught.value.metadata["field"] == field
    assert field in caught.value.message
