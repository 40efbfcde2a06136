"""Who asks too much, too slowly or too often is told so and costs nobody else anything; limits are made small here."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2_grpc

from tests.deploy.envoy.conftest import ROLLOUT, limited
from tests.deploy.envoy.shapes import PATHS, assert_unavailable
from tests.fakes.bridge import BODY, sampled
from tests.fakes.policy import FakePolicy, Request, Sampled
from tests.fakes.stack import Envoy, running_envoy, taken_for_a_bridge
from whippletree.serve import Service

CHAT = f"{ROLLOUT}/openai/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@contextlib.asynccontextmanager
async def opened(url: str, count: int = 1) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Raw connections, closed at the end."""
    host, _, port = url.removeprefix("http://").partition(":")
    made = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    try:
        yield made
    finally:
        for _, writer in made:
            writer.transport.abort()


async def answered(envoy: Envoy, *, times: int = 1) -> None:
    """Calls of others succeed, each on a connection of its own."""
    for _ in range(times):
        async with httpx.AsyncClient(timeout=60) as client:
            assert (await client.post(envoy.url + CHAT, json=BODY)).status_code == 200


def error_of(answer: bytes) -> tuple[str, str]:
    """(status line, code) of an error in OpenAI's shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0].decode(), json.loads(body)["error"]["code"]


async def test_a_body_that_trickles_is_a_408_and_a_slow_answer_is_not(policy: FakePolicy, tmp_path: Path) -> None:
    go = asyncio.Event()

    async def waits(_: Request) -> Sampled:
        await go.wait()
        return sampled("at last")

    policy.reply = waits
    async with limited(policy, tmp_path, ("request_timeout: 300s", "request_timeout: 1s")) as envoy:
        slow = asyncio.create_task(answered(envoy))
        await policy.until(lambda: len(policy.asked) == 1)
        async with opened(envoy.url) as [(reader, writer)]:
            writer.write(f"{HEAD}content-length: 1000\r\nconnection: close\r\n\r\n".encode() + b" ")
            assert error_of(await reader.read()) == ("HTTP/1.1 408 Request Timeout", "request_timeout")
        assert not slow.done(), "its answer has taken longer than that"
        go.set()
        await slow


async def test_connections_over_the_limit_are_closed_and_others_go_on(policy: FakePolicy, tmp_path: Path) -> None:
    few = ("max_active_downstream_connections: 20000", "max_active_downstream_connections: 8")
    async with limited(policy, tmp_path, few) as envoy, httpx.AsyncClient(timeout=60) as early:
        assert (await early.post(envoy.url + CHAT, json=BODY)).status_code == 200
        async with opened(envoy.url, 20) as flood:
            ended = [asyncio.create_task(reader.read()) for reader, _ in flood]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            assert (await early.post(envoy.url + CHAT, json=BODY)).status_code == 200
        await asyncio.gather(*ended, return_exceptions=True)
        await envoy.until("http.whippletree.downstream_cx_active", 1)
        await answered(envoy)


async def test_uploads_that_fill_the_memory_keep_new_requests_out_until_they_are_gone(
    policy: FakePolicy, tmp_path: Path
) -> None:
    active = "overload.envoy.overload_actions.stop_accepting_requests.active"
    little = ("max_heap_size_bytes: 4294967296", "max_heap_size_bytes: 268435456")
    async with limited(policy, tmp_path, little) as envoy:
        async with opened(envoy.url, 8) as flood, httpx.AsyncClient(base_url=envoy.url, timeout=60) as client:
            for _, writer in flood:
                writer.write(f"{HEAD}content-length: 60000000\r\n\r\n".encode() + b" " * 40_000_000)
            await envoy.until(active, 1)
            for path in PATHS:
                await assert_unavailable(client, path)
            assert not policy.asked
        await envoy.until(active, 0)
        await answered(envoy)


class LongWinded(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """A bridge with long answers for one kind of calls."""

    async def ChatCompletions(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        for _ in range(400 if request.mode == "eval" else 1):
            yield HttpBody(content_type="text/event-stream", data=b"x" * 65_536)


async def test_slow_readers_of_long_answers_stop_nobody_else(tmp_path: Path) -> None:
    """Their answers are larger than the window of a connection is by default."""
    servicer = LongWinded()  # type: ignore[abstract]  # the other methods are not asked
    bridge = Service(
        full_name="whippletree.v1.OpenAIBridgeService",
        register=lambda made: bridge_pb2_grpc.add_OpenAIBridgeServiceServicer_to_server(servicer, made),
    )
    head = HEAD.replace("mode/train", "mode/eval")
    async with contextlib.AsyncExitStack() as stack:
        both = await stack.enter_async_context(taken_for_a_bridge(bridge))
        envoy = await stack.enter_async_context(running_envoy(gateway=both.grpc, bridge=both, folder=tmp_path))
        for reader, writer in await stack.enter_async_context(opened(envoy.url, 8)):
            writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"  # and little more is read
        await answered(envoy, times=3)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def test_a_connection_that_resets_what_it_asks_is_closed(policy: FakePolicy, tmp_path: Path) -> None:
    """A rapid reset: requests that are begun and taken back at once."""
    path = CHAT.encode()
    headers = b"\x83\x86\x04" + bytes([len(path)]) + path + b"\x41\x01x"  # POST, http, :path, :authority x
    flood = b"".join(
        frame(1, 4, stream, headers) + frame(3, 0, stream, (8).to_bytes(4)) for stream in range(1, 2400, 2)
    )
    async with limited(policy, tmp_path) as envoy:
        async with opened(envoy.url) as [(reader, writer)]:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + flood)
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
        await answered(envoy)
