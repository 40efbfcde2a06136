"""All methods of a server in one table.

The generated code registers every method with the server by itself. grpc.aio then keeps one pending accept per method
and looks through all of them at every call: with our 50 methods a tenth of what a call costs. Given as one generic
handler, there is one pending accept, and a method is found by its name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import grpc


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
