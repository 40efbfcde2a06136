"""Which rpc a plain HTTP request asks for, by the rules that the contract gives its methods (google.api.http).

In: full names of services. Out: verb and path -> rpc and request. Only what carries bodies unread has a place here:
the request's body, where there is one, is a `google.api.HttpBody` field, and the answer a stream of them. Everything
else is JSON, and a matter of Envoy's transcoder.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

from google.api import annotations_pb2, http_pb2
from google.api.httpbody_pb2 import HttpBody
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor

from whippletree.errors import InvalidFieldError

VERBS = ("get", "put", "post", "delete", "patch")
_VARIABLE = re.compile(r"\{(\w+)(=\*\*)?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way to ask for an rpc."""

    rpc: str
    """`/package.Service/Method`."""
    pattern: re.Pattern[str]
    """Of the whole path; its groups are fields of the request."""
    kind: type[Any]
    """Of the request."""
    body: str
    """The request's field that the body becomes; empty = none."""

    def request(self, found: re.Match[str], data: bytes, content_type: str) -> Any:
        """The rpc's request. InvalidFieldError where the path is not UTF-8."""
        try:
            made = self.kind(**{name: unquote(value, errors="strict") for name, value in found.groupdict().items()})
        except UnicodeDecodeError:
            raise InvalidFieldError("The path is not UTF-8.") from None
        if self.body:
            given: HttpBody = getattr(made, self.body)
            given.content_type, given.data = content_type, data
        return made


class HttpRules:
    """All ways to ask for the rpcs of some services."""

    def __init__(self, services: Sequence[str]) -> None:
        """ValueError for a service whose messages are not raw bodies."""
        self._rules: dict[str, list[Rule]] = {}
        for name in services:
            for method in descriptor_pool.Default().FindServiceByName(name).methods:
                for verb, rule in _rules(method):
                    self._rules.setdefault(verb, []).append(rule)

    def find(self, verb: str, path: str) -> tuple[Rule, re.Match[str]] | None:
        """The rule for a request whose path is still percent-encoded; None = there is none."""
        for rule in self._rules.get(verb, ()):
            if found := rule.pattern.fullmatch(path):
                return rule, found
        return None


def _rules(method: MethodDescriptor) -> Iterator[tuple[str, Rule]]:
    given = cast(http_pb2.HttpRule, method.GetOptions().Extensions[annotations_pb2.http])
    kind = message_factory.GetMessageClass(method.input_type)
    for rule in (given, *given.additional_bindings):
        verb = rule.WhichOneof("pattern")
        if verb is None:
            continue
        field = method.input_type.fields_by_name.get(rule.body)
        raw = not rule.body or (field is not None and field.message_type is HttpBody.DESCRIPTOR)
        if not raw or method.output_type is not HttpBody.DESCRIPTOR or verb not in VERBS:
            raise ValueError(f"{method.full_name}: only google.api.HttpBody goes in and out as plain HTTP")
        pattern = pattern_of(getattr(rule, verb))
        rpc = f"/{method.containing_service.full_name}/{method.name}"
        yield verb.upper(), Rule(rpc=rpc, pattern=pattern, kind=kind, body=rule.body)


def pattern_of(template: str) -> re.Pattern[str]:
    """A path template (google/api/http.proto) as a pattern: `{name}` is one segment, `{name=**}` all that are left.

    ValueError for what the contract's raw bodies have no use for: other patterns of variables, verbs after a colon.
    """
    parts, at = [], 0
    for found in _VARIABLE.finditer(template):
        parts += [re.escape(template[at : found.start()]), f"(?P<{found[1]}>{'.+' if found[2] else '[^/]+'})"]
        at = found.end()
    parts.append(re.escape(template[at:]))
    if any(sign in _VARIABLE.sub("", template) for sign in "{}*:"):
        raise ValueError(f"cannot be matched: {template}")
    return re.compile("".join(parts))
