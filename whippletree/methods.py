"""All methods of a server in one table, each within the layers that a server lays around its methods.

The generated code registers every method with the server by itself. grpc.aio then keeps one pending accept per method
and looks through all of them at every call: with our 50 methods a tenth of what a call costs. Given as one generic
handler, there is one pending accept, and a method is found by its name. Layers do what interceptors do, but once for
each method, where grpc.aio asks its interceptors for a handler at every call.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

Unary = Callable[..., Awaitable[Any]]
Stream = Callable[..., AsyncIterator[Any]]

Handler = Any
"""A `grpc.RpcMethodHandler`, whose types know nothing of grpc.aio."""
Layer = Callable[[str, Handler], Handler]
"""(`/package.Service/Method`, its handler) -> the handler that is asked instead of it, or the same."""


def wrapped(
    handler: Handler,
    unary: Callable[[Unary], Unary],
    stream: Callable[[Stream], Stream],
    decoder: Callable[[Callable[[bytes], Any]], Callable[[bytes], Any]] = lambda decode: decode,
) -> Handler:
    """A handler whose method is what `unary` or `stream` make of it; one that takes a stream of requests stays."""
    coders = (decoder(handler.request_deserializer), handler.response_serializer)
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(unary(handler.unary_unary), *coders)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(stream(handler.unary_stream), *coders)
    return handler


class Methods(grpc.GenericRpcHandler):
    """What the generated code is given instead of a server, and what the server is given then."""

    def __init__(self, layers: Sequence[Layer] = ()) -> None:
        """`layers` lie around every method, the outermost first."""
        self._layers = layers
        self._by_path: dict[str, Handler] = {}

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by the generated code with every method of a servicer."""
        for name, handler in handlers.items():
            path = f"/{service}/{name}"
            for layer in reversed(self._layers):
                handler = layer(path, handler)
            self._by_path[path] = handler

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Called by the generated code with the same methods in an older form."""

    def find(self, path: str) -> Handler:
        """The method `/package.Service/Method`, in its layers. KeyError."""
        return self._by_path[path]

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler:
        """Called by the server at every call; None = there is no such method."""
        return self._by_path.get(handler_call_details.method)
