from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from openai_bridge.render import render, system_first
from openai_bridge.template import ChatTemplate
from openai_bridge.types import ChatRequest, Message, Sampling, ToolCall
from tests.fakes.chat_model import CHATML, QWEN, QWEN_OBJECTS
from whippletree.errors import InvalidFieldError

USER = Message(role="user", content="hi")


def request(*messages: Message, **variables: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=messages, sampling=Sampling(), template_arguments=variables, digest=b"")


def template(source: str = QWEN) -> ChatTemplate:
    return ChatTemplate(source, variables={})


def called(arguments: Any) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments=arguments),))


def test_whether_a_template_takes_argument_text_is_found_by_trying() -> None:
    assert template(QWEN).takes_text_arguments
    assert not template(QWEN_OBJECTS).takes_text_arguments
    assert not template(CHATML).takes_text_arguments


def test_argument_text_reaches_a_template_that_takes_it_unchanged() -> None:
    assert '"arguments": { "a":  1}}\n</tool_call>' in render(template(), request(USER, called('{ "a":  1}')))


def test_argument_text_becomes_an_object_where_the_template_walks_over_it() -> None:
    assert "a=1;" in render(template(QWEN_OBJECTS), request(USER, called('{ "a":  1}')))
    assert "a=1;" in render(template(QWEN_OBJECTS), request(USER, called({"a": 1})))


@pytest.mark.parametrize("broken", ['{"cmd": "ls', "[1]", "null", "", "7", "{" * 9000, '{"a": "\\ud800"}'])
@pytest.mark.parametrize("source", [QWEN, QWEN_OBJECTS, CHATML])
def test_broken_arguments_in_the_history_are_rendered(source: str, broken: str) -> None:
    assert render(template(source), request(USER, called(broken))).encode(), "Unicode that a tokenizer takes"


def test_late_system_message_goes_to_the_front_where_the_template_refuses_it() -> None:
    system, developer = Message(role="system", content="one"), Message(role="system", content="two")
    text = render(template(), request(system, USER, developer))
    assert text.startswith("<|im_start|>system\none\n\ntwo<|im_end|>")
    assert (text.count("one"), text.count("two")) == (1, 1)
    assert render(template(CHATML), request(system, USER, developer)).count("<|im_start|>system") == 2


def test_a_late_system_message_does_not_leave_the_last_word_to_the_assistant() -> None:
    system, answer = Message(role="system", content="one"), Message(role="assistant", content="a")
    with pytest.raises(InvalidFieldError, match="cannot render"):
        render(template(), request(USER, answer, system))
    assert render(template(CHATML), request(USER, answer, system)).endswith("one<|im_end|>\n<|im_start|>assistant\n")


def test_system_first_keeps_the_order_of_the_rest() -> None:
    answer = Message(role="assistant", content="a")
    assert system_first([USER, answer]) == [USER, answer]


def test_the_templates_own_refusal_is_told() -> None:
    refusing = template("{{ raise_exception('no such role') }}")
    with pytest.raises(InvalidFieldError, match="no such role"):
        render(refusing, request(USER))


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(InvalidFieldError):
        render(template("{{ ().__class__.__base__.__subclasses__() }}"), request(USER))


def test_template_arguments_are_variables_of_the_template() -> None:
    assert render(template(), request(USER, enable_thinking=False)).endswith("<think>\n\n</think>\n\n")
    assert render(template(), request(USER)).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages[0].role }}{{ messages[0].nothing is defined }}", "userFalse"),
        ("{% for key, value in messages[0].items() %}{{ key }}{% endfor %}", "rolecontentitems"),
        ("{{ messages[0]['items'] }}{{ messages[0].get('content') }}", "keyhello"),
        ("{{ messages[0].__class__ is defined }}", "False"),
        ("{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", "21"),
    ],
    ids=["keys", "methods-first", "key-beside-method", "sandbox", "generation-has-its-own-variables"],
)
def test_names_in_a_template_mean_what_they_mean_in_jinja(source: str, expected: str) -> None:
    template = ChatTemplate(source, variables={})
    assert template.render([{"role": "user", "content": "hello", "items": "key"}]) == expected


def test_a_template_cannot_change_its_messages() -> None:
    template = ChatTemplate("{{ messages[0].pop('role') }}", variables={})
    with pytest.raises(SecurityError):
        template.render([{"role": "user"}])


def test_results_stand_behind_their_own_round_also_where_ids_come_again() -> None:
    rounds = [(called(f'{{"n": {n}}}'), Message(role="tool", content=f"result{n}", tool_call_id="c")) for n in (1, 2)]
    text = render(template(), request(USER, *(message for turn in rounds for message in turn)))
    words = ['{"n": 1}', "result1", '{"n": 2}', "result2"]
    assert sorted(words, key=text.index) == words
    assert [text.count(word) for word in words] == [1] * 4
