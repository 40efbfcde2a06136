"""What the bridge's parts hand to one another; nothing here knows HTTP, gRPC or a dialect.

Shapes: P prompt tokens, R response tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from whippletree.tokens import Floats, TokenIds


class Mode(StrEnum):
    """Which sampling of the run holds."""

    TRAIN = "train"
    EVAL = "eval"


class Finish(StrEnum):
    """Why a response ended, as the engine said."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whose call it is: the path that the harness was given, and its token."""

    rollout: str
    """Bare id."""
    attempt: int
    mode: Mode
    ordinal: int = 0
    """Of the rollout that its token is for; 0 = whichever has the id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What a harness's headers say of a repeated request."""

    key: str = ""
    """Its `Idempotency-Key`; empty = none."""
    is_retry: bool = False
    """`x-stainless-retry-count` is above 0: its client library has sent this request before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool, in a harness's history or in a reply."""

    id: str
    name: str
    arguments: str | Mapping[str, Any]
    """Text as it was sampled or echoed (perhaps no JSON at all), or an object where a harness sent one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. `role` is system, user, assistant or tool; `content` is never missing."""

    role: str
    content: str = ""
    reasoning: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What the harness asked for; None = not asked."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    other: str = ""
    """Sampling that has no field here, as JSON; recorded, never used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A dialect's body, understood."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas as the harness wrote them, key order included; empty = tool calls are not looked for."""
    sampling: Sampling
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    template_arguments: Mapping[str, Any]
    """Further variables of the chat template, such as enable_thinking."""
    digest: bytes
    """Of the body without its stream settings: equal bodies have equal ones, however they are written."""
    ignored: tuple[str, ...] = ()
    """Fields that asked for something and were not used; see `dialects/ignored.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that a rollout may call."""

    name: str
    """Bare id."""
    tokenizer_path: str
    context_length: int
    """Tokens of prompt and response together."""
    created: int
    """Unix time, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What goes to the engine."""

    ids: TokenIds
    """[P]."""
    in_reasoning: bool
    """The prompt ends inside a reasoning block that it opened itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One recorded response."""

    call_id: str
    prompt_count: int
    """P."""
    ids: TokenIds
    """[R] as sampled, end token and stop string included."""
    logprobs: Floats
    """[R]."""
    finish: Finish
    weight_version: str
    """Of the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response in the words of a harness."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One sampled token, for a harness that asks for log-probabilities."""

    text: str
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A reply with what a dialect says beside it."""

    reply: Reply
    finish: Finish
    stop: str | None = None
    """The stop string at which the text was cut."""
    response_count: int
    """R."""
    logprobs: tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to one request: what a dialect writes out."""

    id: str
    created: int
    """Unix time, seconds."""
    model: str
    weight_version: str
    prompt_count: int
    """P."""
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes for the harness; the first part's content type is the answer's."""

    content_type: str
    data: bytes
