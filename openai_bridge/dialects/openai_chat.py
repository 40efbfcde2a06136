"""OpenAI chat completions: the harness's body, as loose as harnesses write it, to a `ChatRequest`.

Unknown fields are ignored at every level; what cannot be honoured is refused and named. Raises InvalidFieldError alone.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from openai_bridge.types import ChatRequest, Message, Sampling, ToolCall
from whippletree.errors import InvalidFieldError

DIALECT = "openai.chat"
ROLES: Mapping[str, str] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
STREAM_SETTINGS = frozenset({"stream", "stream_options"})
"""A harness may repeat a cut stream as a plain request."""
INT32 = 2**31 - 1
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Template variables that a request may not set."""

Stop = Annotated[str, Field(min_length=1)]


class _Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Function(_Loose):
    name: str
    arguments: Any = None


class _ToolCall(_Loose):
    id: str | None = None
    function: _Function


class _Message(_Loose):
    role: str
    content: Any = None
    reasoning: str | None = Field(default=None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _StreamOptions(_Loose):
    include_usage: bool | None = None


class _Body(_Loose):
    model: str = Field(min_length=1)
    messages: list[_Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    functions: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None


OTHER_SAMPLING = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "logit_bias")


def parse(data: bytes, *, max_choices: int) -> ChatRequest:
    """The request in a body. Raises InvalidFieldError, `field=` naming the place."""
    whole = _json_object(data)
    body = _validated(whole)
    _refuse(body, max_choices)
    limit = body.max_completion_tokens or body.max_tokens
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    other = {name: value for name in OTHER_SAMPLING if (value := getattr(body, name)) is not None}
    return ChatRequest(
        model=body.model,
        messages=[_message(message, f"messages.{index}") for index, message in enumerate(body.messages)],
        tools=body.tools or () if body.tool_choice != "none" else (),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            max_tokens=None if limit is None else min(limit, INT32),
            stop=stop,
            seed=body.seed,
            other=orjson.dumps(other).decode() if other else "",
        ),
        choices=body.n or 1,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        template_arguments={k: v for k, v in (body.chat_template_kwargs or {}).items() if k not in RESERVED},
        digest=digest(whole),
    )


def digest(body: Mapping[str, Any]) -> bytes:
    """128 bits that equal requests have in common; how they want their answer written makes no difference.

    Raises InvalidFieldError where it is nested too deeply.
    """
    kept = {name: value for name, value in body.items() if name not in STREAM_SETTINGS}
    try:
        text = orjson.dumps([DIALECT, kept], option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise InvalidFieldError("The body is nested too deeply.", field="body") from None
    return blake2b(text, digest_size=16).digest()


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidFieldError(f"The body could not be parsed as JSON: {error}", field="body") from None
    if not isinstance(value, dict):
        raise InvalidFieldError("The body must be a JSON object.", field="body")
    return value


def _validated(value: dict[str, Any]) -> _Body:
    try:
        return _Body.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise InvalidFieldError(f"Missing required parameter: '{field}'.", field=field) from None
        raise InvalidFieldError(f"Invalid '{field}': {first['msg']}.", field=field) from None


def _refuse(body: _Body, max_choices: int) -> None:
    """Raise for what would otherwise be dropped in silence."""
    if body.n is not None and body.n > max_choices:
        raise InvalidFieldError(f"Invalid 'n': at most {max_choices} choices are sampled at once.", field="n")
    if body.top_logprobs:
        raise InvalidFieldError("'top_logprobs' is not supported: only sampled tokens have one.", field="top_logprobs")
    if body.response_format is not None and body.response_format.get("type", "text") != "text":
        raise InvalidFieldError("'response_format' other than text is not supported.", field="response_format")
    if body.functions:
        raise InvalidFieldError("'functions' is not supported: use 'tools'.", field="functions")


def _message(message: _Message, place: str) -> Message:
    role = ROLES.get(message.role)
    if role is None:
        known = ", ".join(ROLES)
        raise InvalidFieldError(f"Invalid '{place}.role': '{message.role}' is none of {known}.", field=f"{place}.role")
    return Message(
        role=role,
        content=_text(message.content, f"{place}.content"),
        reasoning=message.reasoning,
        name=message.name,
        tool_calls=tuple(
            _tool_call(call, f"{place}.tool_calls.{index}") for index, call in enumerate(message.tool_calls or ())
        ),
        tool_call_id=message.tool_call_id,
    )


def _text(content: Any, place: str) -> str:
    """A text, nothing, or parts (joined by newlines) to text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidFieldError(f"Invalid '{place}': neither text nor a list of parts.", field=place)
    return "\n".join(_part(part, f"{place}.{index}") for index, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InvalidFieldError(f"Invalid '{place}': parts of type '{kind}' are not supported, only text.", field=place)
    return text


def _tool_call(call: _ToolCall, place: str) -> ToolCall:
    arguments = call.function.arguments
    if arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str | Mapping):
        try:
            arguments = orjson.dumps(arguments).decode()
        except orjson.JSONEncodeError:
            field = f"{place}.function.arguments"
            raise InvalidFieldError(f"Invalid '{field}': nested too deep.", field=field) from None
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments)
