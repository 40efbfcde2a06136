import json

import pytest

from openai_bridge.parse import cut_at_stop, parse, split_reasoning
from openai_bridge.types import Reply


def parsed(text: str, *, tools: bool = True, reasoning: bool = True, in_reasoning: bool = False) -> Reply:
    return parse(text, call_id="a1b2", tools=tools, reasoning=reasoning, in_reasoning=in_reasoning)


def call(arguments: str, name: str = "bash") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.mark.parametrize(
    "arguments",
    ['{"cmd": "ls"}', '{ "cmd":  "a\\u00e9b" , "n":1.50}', "{}", '{"x": {"y": [1, 2, {"z": null}]}}', "{\n}"],
)
def test_argument_text_is_exactly_what_was_sampled(arguments: str) -> None:
    reply = parsed(call(arguments))
    assert reply.content == ""
    assert [(c.name, c.arguments) for c in reply.tool_calls] == [("bash", arguments)]


def test_parallel_calls_have_ids_of_letters_and_digits() -> None:
    reply = parsed("Let me look.\n" + call('{"a": 1}') + "\n" + call('{"b": 2}', "read"))
    assert reply.content == "Let me look."
    assert [(c.id, c.name) for c in reply.tool_calls] == [("calla1b2n0", "bash"), ("calla1b2n1", "read")]
    assert all(c.id.isalnum() for c in reply.tool_calls)


def test_arguments_written_as_text_are_that_text() -> None:
    assert parsed(call(json.dumps('{"a": 1}'))).tool_calls[0].arguments == '{"a": 1}'


def test_fields_in_any_order_and_a_call_without_arguments() -> None:
    text = '<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>'
    assert [(c.name, c.arguments) for c in parsed(text).tool_calls] == [("f", '{"a": "}"}')]
    assert parsed('<tool_call>{"name": "f"}</tool_call>').tool_calls[0].arguments == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": 1}',
        '<tool_call>{"name": "f", "arguments": {"a": 1}}} </tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f",}</tool_call>',
        '<tool_call>{"name": "f" "arguments": {}}</tool_call>',
        "<tool_call></tool_call>",
        '<tool_call>{5: "f"}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 3000 + "</tool_call>",
        call('{"a": 1}') + '\n<tool_call>{"na',
    ],
)
def test_malformed_call_stays_text(text: str) -> None:
    reply = parsed(text)
    assert (reply.content, reply.tool_calls) == (text, ())


def test_text_after_a_call_is_not_lost() -> None:
    reply = parsed("before\n" + call("{}") + "\nafter")
    assert reply.content == "before\nafter"
    assert len(reply.tool_calls) == 1


def test_calls_are_looked_for_only_where_tools_were_given() -> None:
    assert parsed(call("{}"), tools=False).content == call("{}")


@pytest.mark.parametrize(
    ("text", "in_reasoning", "expected"),
    [
        ("plain", False, (None, "plain")),
        ("<think>\nwhy\n</think>\n\nanswer", False, ("why", "answer")),
        ("\n<think>a</think>b", False, ("a", "b")),
        ("<think>\ncut off", False, ("cut off", "")),
        ("why\n</think>\n\nanswer", True, ("why", "answer")),
        ("cut off", True, ("cut off", "")),
        ("say <think> aloud", False, (None, "say <think> aloud")),
    ],
)
def test_reasoning(text: str, in_reasoning: bool, expected: tuple[str | None, str]) -> None:
    assert split_reasoning(text, in_reasoning=in_reasoning) == expected


def test_reasoning_of_a_model_that_knows_none_stays_text() -> None:
    text = "<think>a</think>b"
    assert parsed(text, reasoning=False).content == text


def test_a_call_inside_reasoning_is_not_a_call() -> None:
    reply = parsed("<think>maybe " + call("{}") + "</think>no")
    assert (reply.content, reply.tool_calls) == ("no", ())


def test_text_ends_before_the_first_stop_string() -> None:
    assert cut_at_stop("a b c", ("c", "b")) == ("a ", "b")
    assert cut_at_stop("a b c", ("d",)) == ("a b c", None)
    assert cut_at_stop("a b c", ()) == ("a b c", None)
