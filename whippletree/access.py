"""How a client shows who it is: its key goes as `authorization` with every call of a channel.

In: an API key, or a file that holds one. Out: a channel like the one given, whose calls carry the key. A file is read
again when it changes, so that a new key needs no new start.
"""

import time
from collections.abc import Callable
from typing import Any

import grpc

from whippletree.settings import AccessSettings

LOOK_EVERY = 1.0
"""Seconds between two looks at a key's file."""
Metadata = tuple[tuple[str, str], ...]


class Key:
    """The key as metadata, now. OSError where its file cannot be read at first."""

    def __init__(self, access: AccessSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = access.api_key_file, clock
        self._metadata = _metadata(access.api_key.get_secret_value())
        self._looked, self._changed = float("-inf"), -1
        if self._file is not None:
            self._metadata = _metadata(self._file.read_text())

    def __call__(self) -> Metadata:
        """`authorization`, or nothing where there is no key."""
        if self._file is not None and self._clock() - self._looked >= LOOK_EVERY:
            self._look()
        return self._metadata

    def _look(self) -> None:
        assert self._file is not None
        self._looked = self._clock()
        try:
            if (changed := self._file.stat().st_mtime_ns) != self._changed:
                self._metadata, self._changed = _metadata(self._file.read_text()), changed
        except OSError:
            return  # it is being replaced; the key of before may still do


class KeyedChannel(grpc.aio.Channel):
    """A channel whose calls carry a key."""

    def __init__(self, channel: grpc.aio.Channel, key: Callable[[], Metadata]) -> None:
        self._channel, self._key = channel, key

    async def __aenter__(self) -> "KeyedChannel":
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    async def close(self, grace: float | None = None) -> None:
        """As the channel's."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """As the channel's."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """As the channel's."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """As the channel's."""
        await self._channel.channel_ready()

    def unary_unary(self, *given: Any, **named: Any) -> Any:
        """As the channel's, with the key."""
        return self._keyed(self._channel.unary_unary(*given, **named))

    def unary_stream(self, *given: Any, **named: Any) -> Any:
        """As the channel's, with the key."""
        return self._keyed(self._channel.unary_stream(*given, **named))

    def stream_unary(self, *given: Any, **named: Any) -> Any:
        """As the channel's, with the key."""
        return self._keyed(self._channel.stream_unary(*given, **named))

    def stream_stream(self, *given: Any, **named: Any) -> Any:
        """As the channel's, with the key."""
        return self._keyed(self._channel.stream_stream(*given, **named))

    def _keyed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def keyed(*given: Any, metadata: Any = (), **named: Any) -> Any:
            return call(*given, metadata=(*self._key(), *(metadata or ())), **named)

        return keyed


def _metadata(key: str) -> Metadata:
    key = key.strip()
    return (("authorization", f"Bearer {key}"),) if key else ()
