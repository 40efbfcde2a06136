"""The layer that lets a call through or not. It lies within `serve.mapping`, which tells the refusal.

In: the rpc's name, its metadata, its request. Out: the call goes on, or UnauthenticatedError, PermissionDeniedError.
What no rule names is for operators alone.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc

from whippletree.errors import PermissionDeniedError, UnauthenticatedError
from whippletree.identity.claims import Caller, Claims, Operator, presented
from whippletree.identity.operator_keys import PREFIX, OperatorKey, check
from whippletree.identity.tokens import TokenVerifier
from whippletree.log import about
from whippletree.methods import Handler, wrapped

Rule = Callable[[Any, Claims], None]
"""Raises PermissionDeniedError where a token's claims do not allow a request."""


CLAIMS: ContextVar[Claims | None] = ContextVar("claims", default=None)
"""Of the token by which the current rpc was let in; None = by an operator's key, or nobody is asked for one."""


def ordinal() -> int:
    """Which rollout the current rpc's token is for: only that one may be touched. 0 = whichever has the id now."""
    claims = CLAIMS.get()
    return claims.ordinal if claims else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Who may call what. Names are `/package.Service/Method`, or `/package.Service/` for all of a service."""

    public: frozenset[str] = frozenset()
    """For everybody."""
    scoped: Mapping[str, Rule] = field(default_factory=dict)
    """For tokens that the rule allows, and for operators."""

    def __or__(self, other: "Rules") -> "Rules":
        """Both, for one server of two services."""
        return Rules(public=self.public | other.public, scoped={**self.scoped, **other.scoped})


class Authenticator(Protocol):
    """Says who calls."""

    async def caller(self, credential: str) -> Caller:
        """The bearer of a key or token. UnauthenticatedError."""


class ByKeyOrToken:
    """Operators' keys and tokens. Without `operators` keys are refused: this service serves attempts alone."""

    def __init__(self, tokens: TokenVerifier, operators: Callable[[], Mapping[str, OperatorKey]] | None = None) -> None:
        self._tokens, self._operators = tokens, operators

    async def caller(self, credential: str) -> Caller:
        """The bearer. UnauthenticatedError."""
        if not credential.startswith(PREFIX):
            return await self._tokens.claims(credential)
        if self._operators is None:
            raise UnauthenticatedError("an attempt's token is needed here, not an operator's key")
        return check(credential, self._operators())


PUBLIC = frozenset(
    {
        "/grpc.health.v1.Health/",
        "/grpc.reflection.v1alpha.ServerReflection/",
        "/grpc.reflection.v1.ServerReflection/",
    }
)
"""Health, and the contract, which is no secret."""


class Guard:
    """Asks every call for its key or token."""

    def __init__(self, rules: Rules, authenticator: Authenticator) -> None:
        self.rules, self._authenticator = rules, authenticator
        self._public = rules.public | PUBLIC

    def also(self, other: "Guard") -> "Guard":
        """This one, with the rules of another besides."""
        return Guard(self.rules | other.rules, self._authenticator)

    def layer(self, method: str, handler: Handler) -> Handler:
        """A `methods.Layer`. ValueError for a method that takes a stream of requests: no rule could look at them."""
        service = method[: method.rindex("/") + 1]
        if method in self._public or service in self._public:
            return handler
        if handler.request_streaming:
            raise ValueError(f"{method} takes a stream of requests, and no rule is known for one")
        rule = self.rules.scoped.get(method) or self.rules.scoped.get(service)
        return wrapped(handler, partial(self._unary, rule=rule), partial(self._stream, rule=rule))

    async def admit(self, rule: Rule | None, request: Any, headers: Any) -> None:
        """Return where the caller may do this."""
        caller = await self._authenticator.caller(presented(headers or ()))
        if isinstance(caller, Operator):
            return
        if rule is None:
            raise PermissionDeniedError("an operator's key is needed here, not an attempt's token", needs="operator")
        rule(request, caller)
        CLAIMS.set(caller)
        about(rollout=caller.rollout, attempt=caller.attempt, run=caller.run)

    def _unary(self, method: Callable[..., Awaitable[Any]], rule: Rule | None) -> Callable[..., Awaitable[Any]]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self.admit(rule, request, context.invocation_metadata())
            return await method(request, context)

        return guarded

    def _stream(
        self, method: Callable[..., AsyncIterator[Any]], rule: Rule | None
    ) -> Callable[..., AsyncIterator[Any]]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            await self.admit(rule, request, context.invocation_metadata())
            messages = method(request, context)
            del request  # a call may be held for long, and its body be large
            async for message in messages:
                yield message

        return guarded
