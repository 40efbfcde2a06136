"""Anthropic's Messages: the harness's body, as loose as harnesses write it, to a `ChatRequest`; errors in its shape.

Unknown fields, betas and cache marks are ignored at every level, and what asked for something is noted (`ignored.py`);
what cannot be honoured is refused and named. Answers: `anthropic_reply.py`. Blocks become messages in their order: a
tool's result is a message of the tool, and thinking is the assistant's reasoning, so that a reply which comes back
renders to the tokens that were sampled.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from openai_bridge.dialects import anthropic_fields, anthropic_reply, ignored
from openai_bridge.dialects.body import INT32, Loose, Stops, digest, json_object, refuse_prefill, validated
from openai_bridge.errors import Failure
from openai_bridge.settings import LimitSettings
from openai_bridge.types import ChatRequest, Completion, Message, Sampling, ToolCall
from whippletree.errors import InvalidFieldError

DIALECT = "anthropic.messages"
STREAM_SETTINGS = frozenset({"stream"})
"""A harness may repeat a cut stream as a plain request."""
BILLING = "x-anthropic-billing-header:"
"""Begins a system block that Claude Code fills anew for each call: it says nothing to a model, and no two prompts would
have a beginning in common. It is left out of the prompt and of the digest."""

Json = Mapping[str, Any]


class _Message(Loose):
    role: str
    content: Any = None


class _Tool(Loose):
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class _Kind(Loose):
    type: str | None = None


class _OutputConfig(Loose):
    format: dict[str, Any] | None = None


class _Body(Loose):
    model: str = Field(min_length=1)
    messages: list[_Message] = Field(min_length=1)
    system: Any = None
    tools: list[_Tool] | None = None
    tool_choice: _Kind | None = None
    thinking: _Kind | None = None
    output_config: _OutputConfig | None = None
    stream: bool | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    stop_sequences: Stops | None = None
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT32)


class AnthropicMessages:
    """The dialect."""

    name = DIALECT
    id_prefix = "msg_"
    keep_alive = anthropic_reply.event({"type": "ping"})

    def parse(self, data: bytes, limits: LimitSettings) -> ChatRequest:
        """See `Dialect`."""
        return parse(data, limits)

    def body(self, completion: Completion) -> bytes:
        """See `Dialect`."""
        return anthropic_reply.body(completion)

    def events(self, completion: Completion, request: ChatRequest) -> Iterator[bytes]:
        """See `Dialect`."""
        return anthropic_reply.events(completion)

    def error_body(self, failure: Failure) -> bytes:
        """`{"type": "error", "error": {type, message, details}}`."""
        return orjson.dumps(_error(failure))

    def error_event(self, failure: Failure) -> bytes:
        """An event of type error, without `message_stop`."""
        return anthropic_reply.event(_error(failure))


ERROR_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_type(status: int) -> str:
    """Anthropic's word for a status: in a stream it alone says whether a repeat makes sense."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _error(failure: Failure) -> dict[str, Any]:
    message = failure.message
    if failure.overflow is not None:  # the words by which harnesses recognise it
        message = f"prompt is too long: {failure.overflow[0]} tokens > {failure.overflow[1]} maximum"
    details = {"error_code": failure.code, "param": failure.field}
    return {"type": "error", "error": {"type": error_type(failure.status), "message": message, "details": details}}


def parse(data: bytes, limits: LimitSettings) -> ChatRequest:
    """The request in a body. Raises InvalidFieldError, `field=` naming the place."""
    whole = json_object(data, limits)
    body = validated(_Body, whole)
    if body.output_config is not None and body.output_config.format is not None:
        raise InvalidFieldError("'output_config.format' is not supported.", field="output_config.format")
    system = _system(body.system)
    turns = [one for index, message in enumerate(body.messages) for one in _turn(message, f"messages.{index}")]
    refuse_prefill(turns)
    found: set[str] = set()
    ignored.note(whole, anthropic_fields.BODY, found)
    return ChatRequest(
        model=body.model,
        messages=[*system, *turns],
        tools=_tools(body.tools or ()) if body.tool_choice is None or body.tool_choice.type != "none" else (),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            max_tokens=None if body.max_tokens is None else min(body.max_tokens, INT32),
            stop=tuple(body.stop_sequences or ()),
        ),
        stream=bool(body.stream),
        template_arguments=_thinking(body.thinking),
        digest=digest(DIALECT, {**whole, "system": [message.content for message in system]}, without=STREAM_SETTINGS),
        ignored=ignored.names(found),
    )


def _system(given: Any) -> list[Message]:
    """The system prompt as one message, or none."""
    blocks = _blocks(given, "system")
    texts = [_text(block, f"system.{index}") for index, block in enumerate(blocks)]
    kept = [text for text in texts if not text.startswith(BILLING)]
    return [Message(role="system", content="\n".join(kept))] if kept else []


def _thinking(asked: _Kind | None) -> dict[str, Any]:
    """The variable by which templates switch thinking. Not asked: whatever the template does by itself."""
    return {} if asked is None or asked.type is None else {"enable_thinking": asked.type != "disabled"}


def _tools(given: Sequence[_Tool]) -> list[dict[str, Any]]:
    """Tools in the form that chat templates know. One without a schema is Anthropic's own and is left out."""
    found: list[dict[str, Any]] = []
    for tool in given:
        if tool.name is not None and tool.input_schema is not None:
            named = {"name": tool.name} | ({} if tool.description is None else {"description": tool.description})
            found.append({"type": "function", "function": {**named, "parameters": tool.input_schema}})
    return found


def _turn(message: _Message, place: str) -> list[Message]:
    blocks = _blocks(message.content, f"{place}.content")
    places = [f"{place}.content.{index}" for index in range(len(blocks))]
    match message.role:
        case "assistant":
            return [_assistant(blocks, places)]
        case "user":
            return _user(blocks, places)
        case "system" | "developer":
            return [Message(role="system", content="\n".join(map(_text, blocks, places)))]
    raise InvalidFieldError(
        f"Invalid '{place}.role': '{message.role}' is none of user, assistant, system.", field=f"{place}.role"
    )


def _user(blocks: Sequence[Json], places: Sequence[str]) -> list[Message]:
    """Results of tools and texts, in their order; neighbouring texts are one message."""
    found: list[Message] = []
    texts: list[str] = []
    for block, place in zip(blocks, places, strict=True):
        if block.get("type") != "tool_result":
            texts.append(_text(block, place))
            continue
        if texts:
            found.append(Message(role="user", content="\n".join(texts)))
            texts = []
        result = _blocks(block.get("content"), f"{place}.content")
        text = "\n".join(_text(part, f"{place}.content.{index}") for index, part in enumerate(result))
        found.append(Message(role="tool", content=text, tool_call_id=_string(block, "tool_use_id", place)))
    if texts or not found:
        found.append(Message(role="user", content="\n".join(texts)))
    return found


def _assistant(blocks: Sequence[Json], places: Sequence[str]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block, place in zip(blocks, places, strict=True):
        match block.get("type"):
            case "thinking":  # whatever its signature: ours has nothing to prove
                thoughts.append(_string(block, "thinking", place))
            case "redacted_thinking":  # says nothing to any other model
                pass
            case "tool_use":
                arguments = block.get("input")
                if arguments is not None and not isinstance(arguments, Mapping):
                    raise InvalidFieldError(f"Invalid '{place}.input': no object.", field=f"{place}.input")
                name, call_id = _string(block, "name", place), _string(block, "id", place)
                calls.append(ToolCall(id=call_id, name=name, arguments=arguments or {}))
            case _:
                texts.append(_text(block, place))
    return Message(
        role="assistant",
        content="\n".join(texts),
        reasoning="\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
    )


def _blocks(content: Any, place: str) -> list[Json]:
    """Content as blocks: a text is one block, nothing is none."""
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence) or not all(isinstance(block, Mapping) for block in content):
        raise InvalidFieldError(f"Invalid '{place}': neither text nor a list of blocks.", field=place)
    return list(content)


def _text(block: Json, place: str) -> str:
    if block.get("type") != "text":
        kind = str(block.get("type"))[:100]
        raise InvalidFieldError(f"Invalid '{place}': blocks of type '{kind}' are not supported here.", field=place)
    return _string(block, "text", place)


def _string(block: Json, name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidFieldError(f"Invalid '{place}.{name}': no text.", field=f"{place}.{name}")
    return value
