"""Decoded text -> content, reasoning and tool calls. Pure.

Hermes/Qwen form: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, reasoning in `<think>...</think>`.
Argument text is kept exactly as it was sampled, so that an echo renders to the sampled tokens again. One malformed call
leaves the whole text as content: nothing is repaired and nothing is lost.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from openai_bridge.types import Reply, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def parse(text: str, *, call_id: str, tools: bool, reasoning: bool, in_reasoning: bool) -> Reply:
    """A reply's parts.

    `tools`: tool calls are looked for; `reasoning`: the model's template knows reasoning blocks; `in_reasoning`: the
    prompt ended inside one. Tool call ids are `call_id` and a number: letters and digits, unique over the gateway.
    """
    thought, rest = split_reasoning(text, in_reasoning=in_reasoning) if reasoning else (None, text)
    found = tool_calls(rest) if tools else None
    if not found:
        return Reply(content=rest, reasoning=thought, tool_calls=())
    content, calls = found
    named = tuple(
        ToolCall(id=f"call{call_id}n{index}", name=name, arguments=arguments)
        for index, (name, arguments) in enumerate(calls)
    )
    return Reply(content=content, reasoning=thought, tool_calls=named)


def cut_at_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    """(the text before the first of the stop strings that were asked for, that string); all of it and None without."""
    place, word = min(((place, word) for word in stop if (place := text.find(word)) >= 0), default=(len(text), None))
    return text[:place], word


def split_reasoning(text: str, *, in_reasoning: bool) -> tuple[str | None, str]:
    """(reasoning, the rest). A block that was not closed is all reasoning; newlines at the seams are the template's."""
    opened = text.lstrip()
    if not in_reasoning and not opened.startswith(THINK):
        return None, text
    inner = opened.removeprefix(THINK) if opened.startswith(THINK) else text
    thought, closed, rest = inner.partition(END_THINK)
    return thought.strip("\n"), rest.lstrip("\n") if closed else ""


def tool_calls(text: str) -> tuple[str, list[tuple[str, str]]] | None:
    """(text outside the calls, [(name, argument text)]); None where there is no call or one is malformed."""
    if OPEN not in text:
        return None
    head, *rest = text.split(OPEN)
    calls: list[tuple[str, str]] = []
    outside = [head.removesuffix("\n")]
    for piece in rest:
        body, closed, after = piece.partition(CLOSE)
        call = _call(body) if closed else None
        if call is None:
            return None
        calls.append(call)
        outside.append(after)
    if any(piece.strip() for piece in outside[1:]):
        return "".join(outside), calls
    return outside[0], calls


def _call(body: str) -> tuple[str, str] | None:
    """(name, argument text) of one call's JSON; None where it is malformed."""
    try:
        fields = dict(_fields(body))
    except (ValueError, RecursionError):
        return None
    name, _ = fields.get("name", (None, ""))
    arguments, raw = fields.get("arguments", ({}, "{}"))
    if not isinstance(name, str) or not name or not _writable(name):
        return None
    if isinstance(arguments, str):
        return (name, arguments) if _writable(arguments) else None
    return (name, raw) if isinstance(arguments, dict) else None


def _writable(text: str) -> bool:
    """Whether it is Unicode: an escaped half of a surrogate pair is none, and no JSON can hold it as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fields(text: str) -> Iterator[tuple[str, tuple[Any, str]]]:
    """(key, (value, its text as written)) of a JSON object. ValueError where the text is anything else."""
    at = _expect(text, _space(text, 0), "{")
    at = _space(text, at)
    if text[at : at + 1] == "}":
        at += 1
    else:
        while True:
            _expect(text, at, '"')
            key, at = _DECODER.raw_decode(text, at)
            start = _space(text, _expect(text, _space(text, at), ":"))
            value, end = _DECODER.raw_decode(text, start)
            yield key, (value, text[start:end])
            at = _space(text, end)
            if text[at : at + 1] == "}":
                at += 1
                break
            at = _space(text, _expect(text, at, ","))
    if _space(text, at) != len(text):
        raise ValueError("text after the object")


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"{sign} expected at {at}")
    return at + 1
