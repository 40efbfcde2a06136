import json
from typing import Any

import pytest

from openai_bridge.reply import DONE, body, events
from openai_bridge.types import Choice, Completion, Finish, Reply, TokenLogprob, ToolCall

ARGUMENTS = '{ "cmd":  "' + "x" * 700 + '"}'
CALLS = (
    ToolCall(id="calla0", name="bash", arguments=ARGUMENTS),
    ToolCall(id="calla1", name="read", arguments='{"path": "/é😀"}'),
)


def completion(*replies: Reply, finish: Finish = Finish.STOP, logprobs: bool = False) -> Completion:
    tokens = (TokenLogprob(text="é", logprob=float("-inf")),) if logprobs else None
    choices = tuple(Choice(reply=reply, finish=finish, response_count=7, logprobs=tokens) for reply in replies)
    return Completion(id="chatcmpl-a", created=5, model="m", weight_version="v3", prompt_count=11, choices=choices)


def text(content: str, reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Reply:
    return Reply(content=content, reasoning=reasoning, tool_calls=calls)


def chunks(answer: Completion, *, include_usage: bool = False) -> list[dict[str, Any]]:
    sent = list(events(answer, include_usage=include_usage))
    assert sent[-1] == DONE
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in sent)
    return [json.loads(event[6:]) for event in sent[:-1]]


REPLIES = [
    text("hello " * 200),
    text("", calls=CALLS),
    text("look\n", reasoning="why " * 100, calls=CALLS),
    text(""),
    text("漢字😀" * 100),
]


@pytest.mark.parametrize("reply", REPLIES)
def test_deltas_put_together_are_the_unstreamed_message(reply: Reply) -> None:
    answer = completion(reply)
    message = json.loads(body(answer))["choices"][0]["message"]
    content, reasoning = "", ""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks(answer):
        delta = chunk["choices"][0]["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for part in delta.get("tool_calls", ()):
            if part["index"] not in calls:
                calls[part["index"]] = {"id": part["id"], "name": part["function"]["name"], "arguments": ""}
            else:
                assert "id" not in part
                assert "type" not in part
                assert "name" not in part["function"]
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    assert content == (message["content"] or "")
    assert reasoning == message.get("reasoning_content", "")
    assert list(calls.values()) == [{"id": c["id"], **c["function"]} for c in message.get("tool_calls", [])]


@pytest.mark.parametrize("reply", REPLIES)
def test_every_choice_has_a_finish_reason_and_only_the_last_chunk_a_value(reply: Reply) -> None:
    sent = chunks(completion(reply))
    assert [chunk["choices"][0]["finish_reason"] for chunk in sent[:-1]] == [None] * (len(sent) - 1)
    assert sent[-1]["choices"][0]["finish_reason"] == ("tool_calls" if reply.tool_calls else "stop")
    assert sent[-1]["choices"][0]["delta"] == {}
    assert sent[0]["choices"][0]["delta"]["role"] == "assistant"


def test_usage_chunk_comes_only_when_asked_for() -> None:
    assert all(chunk["choices"] for chunk in chunks(completion(text("a"))))
    sent = chunks(completion(text("a")), include_usage=True)
    assert sent[-1]["choices"] == []
    assert sent[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in sent[:-1])


def test_a_reply_cut_by_length_says_so_even_with_calls() -> None:
    assert (
        json.loads(body(completion(text("", calls=CALLS), finish=Finish.LENGTH)))["choices"][0]["finish_reason"]
        == "length"
    )


def test_content_is_null_only_beside_calls() -> None:
    assert json.loads(body(completion(text("", calls=CALLS))))["choices"][0]["message"]["content"] is None
    assert json.loads(body(completion(text(""))))["choices"][0]["message"]["content"] == ""


def test_several_choices_count_all_sampled_tokens() -> None:
    answer = json.loads(body(completion(text("a"), text("b"))))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 14
    assert {chunk["choices"][0]["index"] for chunk in chunks(completion(text("a"), text("b")))} == {0, 1}


def test_impossible_token_is_still_valid_json() -> None:
    answer = completion(text("é"), logprobs=True)
    (token,) = json.loads(body(answer))["choices"][0]["logprobs"]["content"]
    assert chunks(answer)[-1]["choices"][0]["logprobs"]["content"] == [token]
    assert token == {"token": "é", "logprob": -9999.0, "bytes": [195, 169], "top_logprobs": []}
