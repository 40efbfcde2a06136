"""All methods of a server in one table, and a method put into another by an interceptor.

The generated code registers every method with the server by itself. grpc.aio then keeps one pending accept per method
and looks through all of them at every call: with our 50 methods a tenth of what a call costs. Given as one generic
handler, there is one pending accept, and a method is found by its name.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

Unary = Callable[..., Awaitable[Any]]
Stream = Callable[..., AsyncIterator[Any]]


def wrapped(
    handler: Any,
    unary: Callable[[Unary], Unary],
    stream: Callable[[Stream], Stream],
    decoder: Callable[[Callable[[bytes], Any]], Callable[[bytes], Any]] = lambda decode: decode,
) -> Any:
    """A handler whose method is what `unary` or `stream` make of it; one that takes a stream of requests stays."""
    coders = (decoder(handler.request_deserializer), handler.response_serializer)
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary), *coders)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream), *coders)
    return handler


class Methods(grpc.GenericRpcHandler):
    """What the generated code is given instead of a server, and what the server is given then."""

    def __init__(self) -> None:
        self._by_path: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by the generated code with every method of a servicer."""
        self._by_path.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Called by the generated code with the same methods in an older form."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Called by the server at every call."""
        return self._by_path.get(handler_call_details.method)
