"""Messages -> what the chat template sees -> the prompt's text. Pure.

A harness's words reach the template unchanged wherever it takes them: tool arguments stay the text that was echoed
unless the template wants an object. Where a template refuses a system message that is late or repeated, all of them are
put together at the front; every word then still appears once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from openai_bridge.template import FAILURES, ChatTemplate
from openai_bridge.types import ChatRequest, Message, ToolCall
from whippletree.errors import InvalidFieldError


def render(template: ChatTemplate, request: ChatRequest) -> str:
    """The prompt's text, the generation prompt included. InvalidFieldError with the template's own words."""
    try:
        return _render(template, request.messages, request)
    except FAILURES as error:
        merged = system_first(request.messages)
        if merged == list(request.messages) or merged[-1].role == "assistant":  # it would begin a second reply
            raise _refused(error) from error
    try:
        return _render(template, merged, request)
    except FAILURES as error:
        raise _refused(error) from error


def system_first(messages: Sequence[Message]) -> list[Message]:
    """All system messages as one, at the front; the others in their order."""
    system = [message.content for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    return [Message(role="system", content="\n\n".join(system)), *others] if system else others


def template_message(message: Message, *, text_arguments: bool) -> dict[str, Any]:
    """A message as chat templates know it: keys that are not given are absent."""
    values: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        values["reasoning_content"] = message.reasoning
    if message.name is not None:
        values["name"] = message.name
    if message.tool_call_id is not None:
        values["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        values["tool_calls"] = [_call(call, text_arguments=text_arguments) for call in message.tool_calls]
    return values


def _render(template: ChatTemplate, messages: Sequence[Message], request: ChatRequest) -> str:
    values = [template_message(message, text_arguments=template.takes_text_arguments) for message in messages]
    return template.render(values, tools=request.tools, variables=request.template_arguments)


def _call(call: ToolCall, *, text_arguments: bool) -> dict[str, Any]:
    arguments = call.arguments if text_arguments or isinstance(call.arguments, Mapping) else _object(call.arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _object(text: str) -> Mapping[str, Any]:
    """Arguments as an object; text that is none is kept under one key, so that the template has what to walk over."""
    try:
        value = json.loads(text)
        if "\\u" in text:
            orjson.loads(text)  # refuses an escaped half of a surrogate pair, which no tokenizer takes
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def _refused(error: Exception) -> InvalidFieldError:
    return InvalidFieldError(f"The model's chat template cannot render these messages: {error}", field="messages")
