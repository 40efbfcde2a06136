"""A `Completion` as Anthropic writes it: one JSON body, or server-sent events; and its models. Pure.

Events in order: message_start (usage of the prompt); for every block (thinking, text, tool_use) its start with nothing
in it, its deltas, its stop; message_delta with the stop reason and the usage of the reply; message_stop. The deltas put
together are the unstreamed reply.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from openai_bridge.types import Choice, Completion, Finish, Model, ToolCall

DELTA = 256
"""Characters of one delta."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One block of a reply, in both ways to write it."""

    whole: Json
    empty: Json
    """As it starts in a stream."""
    deltas: Sequence[Json]


def body(completion: Completion) -> bytes:
    """The unstreamed answer."""
    (choice,) = completion.choices
    reason, sequence = stop_reason(choice)
    content = [block.whole for block in _blocks(completion)]
    message = _message(completion, content, output_tokens=choice.response_count)
    return orjson.dumps({**message, "stop_reason": reason, "stop_sequence": sequence})


def events(completion: Completion) -> Iterator[bytes]:
    """The streamed answer, one event at a time."""
    (choice,) = completion.choices
    yield event({"type": "message_start", "message": _message(completion, [], output_tokens=0)})
    for index, block in enumerate(_blocks(completion)):
        yield event({"type": "content_block_start", "index": index, "content_block": block.empty})
        for delta in block.deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    reason, sequence = stop_reason(choice)
    end = {"stop_reason": reason, "stop_sequence": sequence}
    yield event({"type": "message_delta", "delta": end, "usage": {"output_tokens": choice.response_count}})
    yield event({"type": "message_stop"})


def event(value: Json) -> bytes:
    """One server-sent event, named after its type."""
    return f"event: {value['type']}\n".encode() + b"data: " + orjson.dumps(value) + b"\n\n"


def stop_reason(choice: Choice) -> tuple[str, str | None]:
    """(reason, the stop sequence that was met); a reply cut short says so even where it holds tool calls."""
    if choice.finish is not Finish.STOP:
        return "max_tokens", None
    if choice.reply.tool_calls:
        return "tool_use", None
    return ("end_turn", None) if choice.stop is None else ("stop_sequence", choice.stop)


def token_count(count: int) -> bytes:
    """The answer of count_tokens."""
    return orjson.dumps({"input_tokens": count})


def models(found: Sequence[Model]) -> bytes:
    """A list of models: all of them on one page."""
    data = [_model(model) for model in found]
    ends = {"first_id": found[0].name, "last_id": found[-1].name} if found else {"first_id": None, "last_id": None}
    return orjson.dumps({"data": data, "has_more": False, **ends})


def model(found: Model) -> bytes:
    """One model."""
    return orjson.dumps(_model(found))


def _message(completion: Completion, content: list[Json], *, output_tokens: int) -> Json:
    return {
        "id": completion.id,
        "type": "message",
        "role": "assistant",
        "model": completion.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": completion.prompt_count,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
        },
    }


def _blocks(completion: Completion) -> Iterator[_Block]:
    reply = completion.choices[0].reply
    if reply.reasoning is not None:
        yield _thinking(reply.reasoning, base64.b64encode(completion.id.encode()).decode())
    if reply.content:
        yield _text(reply.content)
    for call in reply.tool_calls:
        yield _tool_use(call)


def _thinking(text: str, signature: str) -> _Block:
    """The signature proves nothing: clients want one, and send it back with the thinking."""
    block = {"type": "thinking", "thinking": text, "signature": signature}
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(text)]
    deltas.append({"type": "signature_delta", "signature": signature})
    return _Block(whole=block, empty={**block, "thinking": "", "signature": ""}, deltas=deltas)


def _text(text: str) -> _Block:
    block = {"type": "text", "text": text}
    deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(text)]
    return _Block(whole=block, empty={**block, "text": ""}, deltas=deltas)


def _tool_use(call: ToolCall) -> _Block:
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
    text = _object(str(call.arguments))
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(text)]
    return _Block(whole={**block, "input": orjson.Fragment(text)}, empty=block, deltas=deltas)


def _object(arguments: str) -> str:
    """Arguments as they were sampled. Text that is no object is kept under one key: clients parse it unasked."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        value = None
    return arguments if isinstance(value, dict) else orjson.dumps({"arguments": arguments}).decode()


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + DELTA] for start in range(0, len(text), DELTA))


def _model(found: Model) -> Json:
    return {
        "type": "model",
        "id": found.name,
        "display_name": found.name,
        "created_at": datetime.fromtimestamp(found.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": found.context_length,
    }
