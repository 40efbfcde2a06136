"""OpenAI chat completions: the harness's body, as loose as harnesses write it, to a `ChatRequest`; errors in its shape.

Unknown fields are ignored at every level and noted (`ignored.py`), also in tools, of which a template sees only what
OpenAI defines; what cannot be honoured is refused and named. Answers: `reply.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import AliasChoices, Field

from openai_bridge import reply
from openai_bridge.dialects import ignored, openai_fields
from openai_bridge.dialects.body import INT32, Loose, Stops, digest, json_object, json_text, refuse_prefill, validated
from openai_bridge.errors import Failure
from openai_bridge.settings import LimitSettings
from openai_bridge.types import ChatRequest, Completion, Message, Sampling, ToolCall
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
PLAIN = frozenset({"role", "content"})
STREAM_SETTINGS = frozenset({"stream", "stream_options"})
"""A harness may repeat a cut stream as a plain request."""
END: Mapping[str, bool] = {"continue_final_message": False, "add_generation_prompt": True}
"""Fields of other servers that say how a prompt ends, with the value that is served."""
RESERVED = frozenset({"messages", "tools", "documents", *END})
"""Template variables that a request may not set."""
FUNCTION, TOOL = openai_fields.SHOWN_FUNCTION, openai_fields.SHOWN_TOOL


class _Function(Loose):
    name: str
    arguments: Any = None


class _ToolCall(Loose):
    id: str | None = None
    function: _Function


class _Message(Loose):
    role: str
    content: Any = None
    reasoning: str | None = Field(default=None, validation_alias=AliasChoices("reasoning_content", "reasoning"))
    name: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _StreamOptions(Loose):
    include_usage: bool | None = None


class _Body(Loose):
    model: str = Field(min_length=1)
    messages: list[Any] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: Stops | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT32)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    functions: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1_000)


OTHER_SAMPLING = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_p", "logit_bias")


class OpenAIChat:
    """The dialect."""

    name = DIALECT
    id_prefix = "chatcmpl-"
    keep_alive = b": keep-alive\n\n"

    def __init__(self, *, model: str = "") -> None:
        """`model`: as an Azure client's path says, whatever its bodies say; empty = as they say."""
        self._model = model

    def parse(self, data: bytes, limits: LimitSettings) -> ChatRequest:
        """See `Dialect`."""
        return parse(data, limits, self._model)

    def body(self, completion: Completion) -> bytes:
        """See `Dialect`."""
        return reply.body(completion)

    def events(self, completion: Completion, request: ChatRequest) -> Iterator[bytes]:
        """See `Dialect`."""
        return reply.events(completion, include_usage=request.include_usage)

    def error_body(self, failure: Failure) -> bytes:
        """`{"error": {message, type, param, code}}`."""
        error = {
            "message": _words(failure),
            "type": error_type(failure.status),
            "param": failure.field,
            "code": failure.code,
        }
        return orjson.dumps({"error": error})

    def error_event(self, failure: Failure) -> bytes:
        """The error as data, without `[DONE]`: the official clients raise it."""
        return b"data: " + self.error_body(failure) + b"\n\n"


def _words(failure: Failure) -> str:
    if failure.overflow is None:
        return failure.message
    return (
        f"This model's maximum context length is {failure.overflow[1]} tokens. However, your messages resulted in "
        f"{failure.overflow[0]} tokens. Please reduce the length of the messages."
    )


def error_type(status: int) -> str:
    """OpenAI's word for a status."""
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def parse(data: bytes, limits: LimitSettings, model: str = "") -> ChatRequest:
    """The request in a body, `model` in place of its own. Raises InvalidFieldError, `field=` naming the place."""
    whole = json_object(data, limits)
    if model:
        whole["model"] = model
    body = validated(_Body, whole)
    _refuse(body, limits)
    found: set[str] = set()
    ignored.note(whole, openai_fields.BODY, found)
    messages = [_message(message, f"messages.{index}", found) for index, message in enumerate(body.messages)]
    refuse_prefill(messages)
    limit = body.max_completion_tokens or body.max_tokens
    other = {name: value for name in OTHER_SAMPLING if (value := getattr(body, name)) is not None}
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=_tools(body.tools or (), found) if body.tool_choice != "none" else (),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            max_tokens=None if limit is None else min(limit, INT32),
            stop=tuple(body.stop or ()),
            seed=body.seed,
            other=orjson.dumps(other).decode() if other else "",
        ),
        choices=body.n or 1,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        logprobs=bool(body.logprobs),
        template_arguments=_template_arguments(body.chat_template_kwargs or {}, found),
        digest=digest(DIALECT, whole, without=STREAM_SETTINGS),
        ignored=ignored.names(found),
    )


def _refuse(body: _Body, limits: LimitSettings) -> None:
    """Raise for what would otherwise be dropped in silence."""
    if body.n is not None and body.n > limits.choices:
        raise InvalidFieldError(f"Invalid 'n': at most {limits.choices} choices are sampled at once.", field="n")
    if body.top_logprobs:
        raise InvalidFieldError("'top_logprobs' is not supported: only sampled tokens have one.", field="top_logprobs")
    if body.response_format is not None and body.response_format.get("type", "text") != "text":
        raise InvalidFieldError("'response_format' other than text is not supported.", field="response_format")
    if body.functions:
        raise InvalidFieldError("'functions' is not supported: use 'tools'.", field="functions")
    _refuse_other_end(body)


def _refuse_other_end(body: _Body) -> None:
    """Raise where the prompt is to end elsewhere than at the beginning of a new reply."""
    variables = body.chat_template_kwargs or {}
    for name, served in END.items():
        for field, value in ((name, getattr(body, name)), (f"chat_template_kwargs.{name}", variables.get(name))):
            if value not in (None, served):
                other = f"'{field}' other than {str(served).lower()} is not supported"
                raise InvalidFieldError(f"{other}: a prompt ends where a new reply begins.", field=field)


def _template_arguments(given: Mapping[str, Any], found: set[str]) -> Mapping[str, Any]:
    """The template's variables without those that a request may not set."""
    if not given.keys() & RESERVED:
        return given
    ignored.note({k: v for k, v in given.items() if k in RESERVED}, openai_fields.VARIABLES, found)
    return {k: v for k, v in given.items() if k not in RESERVED}


def _tools(given: Sequence[dict[str, Any]], found: set[str]) -> list[dict[str, Any]]:
    """Tools with what OpenAI defines of them. One without a name is of another kind and is left out."""
    kept: list[dict[str, Any]] = []
    for tool in given:
        function = tool.get("function")
        if type(function) is dict and FUNCTION.issuperset(function) and TOOL.issuperset(tool):
            kept.append(tool)  # as most are
        elif type(function) is dict or type(tool.get("name")) is str:
            ignored.note(tool, openai_fields.TOOL, found)
            kept.append(_shown(tool))
        else:
            ignored.note(tool, openai_fields.LEFT_OUT, found)
    return kept


def _shown(tool: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in tool.items() if name in TOOL}
    if type(function := shown.get("function")) is dict:
        shown["function"] = {name: value for name, value in function.items() if name in FUNCTION}
    return shown


def _message(value: Any, place: str, found: set[str]) -> Message:
    if type(value) is dict and value.keys() == PLAIN:  # nearly all are, and a long conversation has hundreds
        role, content = ROLES.get(value["role"]) if isinstance(value["role"], str) else None, value["content"]
        if role is not None and isinstance(content, str):
            return Message(role=role, content=content)
    ignored.note(value, openai_fields.MESSAGE, found)
    message = validated(_Message, value, place)
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
        arguments = json_text(arguments, f"{place}.function.arguments")
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments)
