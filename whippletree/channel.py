"""Channels to other services, with the limits and keep-alives that `serve.py` expects, and the one automatic retry."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

from whippletree import errors
from whippletree.access import Key, KeyedChannel
from whippletree.settings import AccessSettings
from whippletree.tls import channel_credentials

MESSAGE_LIMIT = 256 << 20
"""Largest message, bytes, on both sides."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
)

T = TypeVar("T")


def connect(address: str, access: AccessSettings | None = None) -> grpc.aio.Channel:
    """An asynchronous channel to `host:port`. Make it after any fork. OSError where a file of `access` is missing."""
    if access is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    credentials = channel_credentials(access.tls)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    else:
        name = access.tls.server_name
        named = (("grpc.ssl_target_name_override", name),) if name else ()
        channel = grpc.aio.secure_channel(address, credentials, options=(*OPTIONS, *named))
    return KeyedChannel(channel, Key(access))


async def call(attempt: Callable[[], Awaitable[T]], *, patience: float, clock: Callable[[], float] | None = None) -> T:
    """Await `attempt()`, again after UNAVAILABLE until `patience` seconds have passed; other errors are raised at once.

    The rpc must be idempotent (same request_id every time) and carry its own deadline. Raises WhippletreeError.
    """
    now = clock or asyncio.get_running_loop().time
    deadline, pause = now() + patience, 0.05
    while True:
        try:
            return await _try(attempt)
        except errors.WhippletreeError as error:
            if error.code != grpc.StatusCode.UNAVAILABLE or now() + pause > deadline:
                raise
        await asyncio.sleep(pause * (0.5 + random.random() / 2))  # spread the callers
        pause = min(2 * pause, 2.0)


async def _try(attempt: Callable[[], Awaitable[T]]) -> T:
    """Raises WhippletreeError; within one process (`local.py`) it is raised already."""
    try:
        return await attempt()
    except grpc.aio.AioRpcError as error:
        raise errors.from_rpc_error(error) from error
