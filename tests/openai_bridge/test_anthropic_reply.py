import json
from typing import Any

import pytest

from openai_bridge.dialects.anthropic_reply import body, events, model, models
from openai_bridge.types import Choice, Completion, Finish, Model, Reply, ToolCall

ARGUMENTS = '{ "cmd":  "' + "x" * 700 + '", "big": 123456789012345678901234567890}'
CALLS = (
    ToolCall(id="calla0", name="bash", arguments=ARGUMENTS),
    ToolCall(id="calla1", name="read", arguments='{"path": "/é😀"}'),
)
ODD = ("not json", "[1]", '"text"', "", '{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 3000)


def completion(reply: Reply, finish: Finish = Finish.STOP, stop: str | None = None) -> Completion:
    choice = Choice(reply=reply, finish=finish, stop=stop, response_count=7, logprobs=None)
    return Completion(id="msg_a", created=5, model="m", weight_version="v3", prompt_count=11, choices=(choice,))


def text(content: str, reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Reply:
    return Reply(content=content, reasoning=reasoning, tool_calls=calls)


def sent(answer: Completion) -> list[dict[str, Any]]:
    found = []
    for event in events(answer):
        name, data, *rest = event.decode().split("\n")
        assert rest == ["", ""]
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found


def put_together(answer: Completion) -> dict[str, Any]:
    """What a client makes of the events; asserts that they come in Anthropic's order."""
    start, *blocks, end, stop = sent(answer)
    assert (start["type"], end["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = {**start["message"], **end["delta"]}
    message["usage"] = {**message["usage"], **end["usage"]}
    inputs: list[str] = []
    open_block = False
    for event in blocks:
        assert event["index"] == len(message["content"]) - open_block
        match event["type"]:
            case "content_block_start":
                assert not open_block
                open_block = True
                message["content"].append(event["content_block"])
                inputs.append("")
            case "content_block_stop":
                open_block = False
                if inputs[-1]:
                    message["content"][-1]["input"] = json.loads(inputs[-1])
            case _:
                kind, value = [event["delta"][key] for key in ("type", *(set(event["delta"]) - {"type"}))]
                if kind == "input_json_delta":
                    inputs[-1] += value
                else:
                    message["content"][-1][kind.removesuffix("_delta")] += value
    assert not open_block
    return message


@pytest.mark.parametrize(
    "reply",
    [
        text("hello " * 200),
        text("", calls=CALLS),
        text("look\n", reasoning="why " * 100, calls=CALLS),
        text("", reasoning="cut off"),
        text(""),
        text("漢字😀" * 100),
        *(text("", calls=(ToolCall(id="a", name="f", arguments=odd),)) for odd in ODD),
    ],
)
def test_deltas_put_together_are_the_unstreamed_message(reply: Reply) -> None:
    answer = completion(reply)
    whole = json.loads(body(answer))
    assert put_together(answer) == whole
    kinds = [block["type"] for block in whole["content"]]
    texts = ["text"] if reply.content else []
    assert kinds == [*(["thinking"] if reply.reasoning else []), *texts, *["tool_use"] * len(reply.tool_calls)]


def test_arguments_are_written_as_they_were_sampled() -> None:
    answer = completion(text("", calls=CALLS))
    assert ARGUMENTS.encode() in body(answer)
    deltas = [event["delta"]["partial_json"] for event in sent(answer) if event.get("index") == 0 and "delta" in event]
    assert "".join(deltas) == ARGUMENTS


@pytest.mark.parametrize("odd", ODD)
def test_arguments_that_are_no_object_are_kept_in_one(odd: str) -> None:
    (block,) = json.loads(body(completion(text("", calls=(ToolCall(id="a", name="f", arguments=odd),)))))["content"]
    assert block["input"] == {"arguments": odd}


@pytest.mark.parametrize(
    ("reply", "finish", "stop", "reason"),
    [
        (text("a"), Finish.STOP, None, "end_turn"),
        (text("a"), Finish.STOP, "END", "stop_sequence"),
        (text("", calls=CALLS), Finish.STOP, None, "tool_use"),
        (text("a"), Finish.LENGTH, None, "max_tokens"),
        (text("", calls=CALLS), Finish.LENGTH, None, "max_tokens"),
    ],
)
def test_the_stop_reason_is_exact(reply: Reply, finish: Finish, stop: str | None, reason: str) -> None:
    whole = json.loads(body(completion(reply, finish, stop)))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)


def test_usage_of_the_prompt_is_known_at_the_start() -> None:
    start, *_, end, _ = sent(completion(text("a")))
    assert (start["message"]["usage"]["input_tokens"], start["message"]["usage"]["output_tokens"]) == (11, 0)
    assert end["usage"] == {"output_tokens": 7}


def test_a_thinking_block_has_a_signature_that_clients_keep() -> None:
    (block, _) = json.loads(body(completion(text("a", reasoning="why"))))["content"]
    assert block["signature"]
    start = next(
        event for event in sent(completion(text("a", reasoning="why"))) if event["type"] == "content_block_start"
    )
    assert (start["content_block"]["thinking"], start["content_block"]["signature"]) == ("", "")


def test_models_are_one_page() -> None:
    found = [Model(name=name, tokenizer_path="/x", context_length=512, created=5) for name in ("a", "b")]
    page = json.loads(models(found))
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", False)
    assert page["data"][0] == json.loads(model(found[0]))
    assert page["data"][0]["created_at"] == "1970-01-01T00:00:05Z"
    assert json.loads(models([]))["first_id"] is None
