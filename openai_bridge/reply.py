"""A `Completion` as OpenAI writes it: one JSON body, or server-sent events. Pure.

Chunks in order, for every choice: role, reasoning, content, tool calls (id, type and name in the first delta alone), a
chunk of its own with the finish reason; then usage where it was asked for, then `[DONE]`. Every choice of every chunk
has the key finish_reason. The deltas put together are the unstreamed reply.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from openai_bridge.types import Choice, Completion, Finish, Model, TokenLogprob, ToolCall

DELTA = 256
"""Characters of one delta."""
LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot say."""
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]


def body(completion: Completion) -> bytes:
    """The unstreamed answer."""
    choices = [_choice(index, choice) for index, choice in enumerate(completion.choices)]
    head = _head(completion, "chat.completion")
    return orjson.dumps({**head, "choices": choices, "usage": _usage(completion)})


def events(completion: Completion, *, include_usage: bool) -> Iterator[bytes]:
    """The streamed answer, one event at a time."""
    head = _head(completion, "chat.completion.chunk")
    extra: Json = {"usage": None} if include_usage else {}
    for index, choice in enumerate(completion.choices):
        for delta, finish, logprobs in _deltas(choice):
            entry = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
            yield event({**head, "choices": [entry], **extra})
    if include_usage:
        yield event({**head, "choices": [], "usage": _usage(completion)})
    yield DONE


def event(value: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def models(found: Sequence[Model]) -> bytes:
    """A list of models."""
    return orjson.dumps({"object": "list", "data": [_model(model) for model in found]})


def model(found: Model) -> bytes:
    """One model."""
    return orjson.dumps(_model(found))


def finish_reason(choice: Choice) -> str:
    """The convention's word; a reply that was cut short says `length` even where it holds tool calls."""
    if choice.finish is not Finish.STOP:
        return "length"
    return "tool_calls" if choice.reply.tool_calls else "stop"


def _deltas(choice: Choice) -> Iterator[tuple[Json, str | None, Json | None]]:
    """(delta, finish reason, logprobs); the log-probabilities of the whole reply come with the finish reason."""
    yield {"role": "assistant", "content": ""}, None, None
    for piece in _pieces(choice.reply.reasoning or ""):
        yield {"reasoning_content": piece}, None, None
    for piece in _pieces(choice.reply.content):
        yield {"content": piece}, None, None
    for index, call in enumerate(choice.reply.tool_calls):
        for delta in _call_deltas(index, call):
            yield {"tool_calls": [delta]}, None, None
    yield {}, finish_reason(choice), _logprobs(choice.logprobs)


def _call_deltas(index: int, call: ToolCall) -> Iterator[Json]:
    function = {"name": call.name, "arguments": ""}
    yield {"index": index, "id": call.id, "type": "function", "function": function}
    for piece in _pieces(str(call.arguments)):
        yield {"index": index, "function": {"arguments": piece}}


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + DELTA] for start in range(0, len(text), DELTA))


def _choice(index: int, choice: Choice) -> Json:
    reply = choice.reply
    message: Json = {
        "role": "assistant",
        "content": reply.content or (None if reply.tool_calls else ""),
        "refusal": None,
    }
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(choice.logprobs),
        "finish_reason": finish_reason(choice),
    }


def _logprobs(tokens: Sequence[TokenLogprob] | None) -> Json | None:
    if tokens is None:
        return None
    content = [
        {
            "token": token.text,
            "logprob": max(token.logprob, LOGPROB_FLOOR),
            "bytes": list(token.text.encode()),
            "top_logprobs": [],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _head(completion: Completion, kind: str) -> Json:
    return {
        "id": completion.id,
        "object": kind,
        "created": completion.created,
        "model": completion.model,
        "system_fingerprint": completion.weight_version or None,
    }


def _usage(completion: Completion) -> Json:
    sampled = sum(choice.response_count for choice in completion.choices)
    return {
        "prompt_tokens": completion.prompt_count,
        "completion_tokens": sampled,
        "total_tokens": completion.prompt_count + sampled,
    }


def _model(found: Model) -> Json:
    return {"id": found.name, "object": "model", "created": found.created, "owned_by": "whippletree"}
