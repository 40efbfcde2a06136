"""The model's own chat template, rendered exactly as transformers does it: a sandboxed Jinja, its filters, its names.

In: messages, tools, further variables. Out: the prompt's text. Equality with `apply_chat_template` is tested.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

FAILURES = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template may raise over a conversation that it was not written for."""

DICT_ATTRIBUTES = frozenset(dir(dict))

PROBE = '{"probe":  1}'
"""Arguments whose odd spacing no serialiser writes."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks the assistant's part in some templates: here just its body."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own way to name them

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that reads the keys of messages, three quarters of what templates do, without raising and catching."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What `obj.attribute` means in a template: an attribute first, then a key."""
        if type(obj) is not dict or attribute in DICT_ATTRIBUTES:
            return super().getattr(obj, attribute)
        return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)


class ChatTemplate:
    """One compiled template. Invariant: `source` never changes, so results may be kept."""

    def __init__(
        self, source: str, *, variables: Mapping[str, Any], now: Callable[[], datetime] = datetime.now
    ) -> None:
        """`variables` are the tokenizer's special tokens (bos_token, eos_token, ...)."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self._template = environment.from_string(source)
        self._variables = dict(variables)
        self.source = source
        self.takes_text_arguments = self._takes_text_arguments()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text. Raises one of FAILURES."""
        return self._template.render(
            messages=messages,
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **{**self._variables, **(variables or {})},
        )

    def _takes_text_arguments(self) -> bool:
        """Whether a call's arguments given as text appear as they are, not quoted a second time."""
        call = {"id": "call0", "type": "function", "function": {"name": "probe", "arguments": PROBE}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "probe"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "probe", "tool_call_id": "call0"},
        ]
        try:
            return PROBE in self.render(messages)
        except FAILURES:
            return False


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
