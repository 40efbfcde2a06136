"""A channel to servicers of this process: the generated stubs, with the same meaning and without a wire.

In: services. Out: what a stub is made with instead of a channel. A call is awaited in its caller's task: its deadline
and its cancellation reach the servicer as they would over gRPC, and a WhippletreeError comes back as it was raised.
Messages are handed over, not copied: neither side changes one afterwards. A server's layers are not passed: within
one process there is nobody to keep out. Streams go over the wire; what one process asks itself is unary.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc

from whippletree.errors import DeadlineError, WhippletreeError
from whippletree.serve import Service, known

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class LocalContext:
    """What a servicer may ask of its call."""

    metadata: Metadata

    def invocation_metadata(self) -> Metadata:
        """What the caller sent beside the message."""
        return self.metadata


class LocalChannel:
    """Made by `to`. It takes servicers as a server does and makes callables as a channel does."""

    def __init__(self) -> None:
        self._methods: dict[str, Callable[[Any, Any], Awaitable[Any]]] = {}

    @classmethod
    def to(cls, services: Sequence[Service]) -> grpc.aio.Channel:
        """A channel to these services."""
        made = cls()
        for service in services:
            service.register(cast(grpc.aio.Server, made))
        return cast(grpc.aio.Channel, made)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by the generated code with every method of a servicer."""
        for name, handler in handlers.items():
            if handler.unary_unary is not None:
                self._methods[f"/{service}/{name}"] = handler.unary_unary

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Called by the generated code with the same methods in an older form."""

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        """Called by the generated stub: what carries out one method."""
        handler = self._methods[method]

        async def call(request: Any, *, metadata: Metadata = (), timeout: float | None = None) -> Any:  # noqa: ASYNC109  # a stub's
            try:
                async with asyncio.timeout(timeout) as deadline:
                    return await handler(request, LocalContext(metadata))
            except WhippletreeError:
                raise
            except Exception as error:
                if deadline.expired():
                    raise DeadlineError(f"{method} took longer than {timeout} s") from error
                raise known(error, method) from error

        return call

    def unary_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        """Called by the generated stub."""

        def call(*_: Any, **__: Any) -> Any:
            raise NotImplementedError(f"{method} is a stream: ask for it over the wire")

        return call
