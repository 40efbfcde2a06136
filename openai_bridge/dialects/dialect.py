"""What a harness's dialect is to the rest of the bridge: how it asks, how it is answered, how it is told of failures.

One request's way is the same in every dialect (`completion.py`, `servicers/answers.py`); whatever differs is here.
"""

from collections.abc import Iterator
from typing import Protocol

from openai_bridge.errors import Failure
from openai_bridge.settings import LimitSettings
from openai_bridge.types import ChatRequest, Completion


class Dialect(Protocol):
    """One dialect. Pure and without state: requests share it."""

    @property
    def name(self) -> str:
        """Recorded with each call."""

    @property
    def id_prefix(self) -> str:
        """Stands before the call id in a completion's id."""

    @property
    def keep_alive(self) -> bytes:
        """What its clients skip in an event stream, before the first event too."""

    def parse(self, data: bytes, limits: LimitSettings) -> ChatRequest:
        """The request in a body. Raises InvalidFieldError, `field=` naming the place."""

    def body(self, completion: Completion) -> bytes:
        """The unstreamed answer."""

    def events(self, completion: Completion, request: ChatRequest) -> Iterator[bytes]:
        """The streamed answer, one event at a time; its end included."""

    def error_body(self, failure: Failure) -> bytes:
        """JSON for an answer with the failure's status."""

    def error_event(self, failure: Failure) -> bytes:
        """The event that ends a stream which has begun: no client takes it for a clean end."""
