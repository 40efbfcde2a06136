"""Rpcs by plain HTTP, to a real server in its layers."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import grpc
import httpx
import pytest
from google.api.httpbody_pb2 import HttpBody
from whippletree.v1 import bridge_pb2, bridge_pb2_grpc

from whippletree.errors import InvalidFieldError, ShuttingDownError
from whippletree.http_door import CODE, TOLD, HttpDoor
from whippletree.serve import Service, listening

NAME = "whippletree.v1.OpenAIBridgeService"
CHAT = "/openai/v1/chat/completions"
SEEN: ContextVar[str] = ContextVar("seen", default="")
Script = Callable[[Any, Any], AsyncIterator[HttpBody]]


class Scripted(bridge_pb2_grpc.OpenAIBridgeServiceServicer):
    """Answers as a test says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def ChatCompletions(self, request: Any, context: Any) -> AsyncIterator[HttpBody]:
        return self._script(request, context)


def service_of(script: Script) -> Service:
    servicer = Scripted(script)  # type: ignore[abstract]  # the other methods are not asked
    return Service(
        full_name=NAME,
        register=lambda server: bridge_pb2_grpc.add_OpenAIBridgeServiceServicer_to_server(servicer, server),
    )


@contextlib.asynccontextmanager
async def serving(script: Script, limit: int = 1 << 20, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server with this script."""
    door = HttpDoor([NAME], "127.0.0.1:0", limit=limit)
    given: dict[str, Any] = {"grace": 0, "doors": [door]} | more
    async with (
        listening([service_of(script)], "127.0.0.1:0", **given),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}", timeout=60) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def connected(client: httpx.AsyncClient) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection to the same server, aborted at the end."""
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def json_body(data: bytes) -> HttpBody:
    return HttpBody(content_type="application/json", data=data)


def event(data: bytes) -> HttpBody:
    return HttpBody(content_type="text/event-stream", data=data)


async def echo(request: Any, context: Any) -> AsyncIterator[HttpBody]:
    yield json_body(request.body.data)


async def test_a_json_body_is_one_answer_with_its_length() -> None:
    async with serving(echo) as client:
        answer = await client.post(CHAT, content=b'{"a":1}')
        assert (answer.status_code, answer.content) == (200, b'{"a":1}')
        assert (answer.headers["content-type"], answer.headers["content-length"]) == ("application/json", "7")
        assert (await client.post(CHAT, content=b"")).content == b""


async def test_events_come_as_they_are_yielded() -> None:
    go = asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield event(b"data: 1\n\n")
        await go.wait()
        yield event(b"data: 2\n\n")

    async with serving(script) as client, client.stream("POST", CHAT) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b"data: 1\n\n"
        go.set()
        assert [part async for part in parts] == [b"data: 2\n\n"]
        assert answer.headers["content-type"] == "text/event-stream"


async def test_initial_metadata_is_status_and_headers() -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        await context.send_initial_metadata(((CODE, "429"), ("retry-after", "3")))
        yield json_body(b"{}")
        raise InvalidFieldError("told already")

    async with serving(script) as client:
        answer = await client.post(CHAT)
    assert (answer.status_code, answer.headers[CODE], answer.headers["retry-after"]) == (429, "429", "3")
    assert answer.content == b"{}"


async def test_an_answer_that_is_whole_leaves_its_connection_open_whatever_its_status() -> None:
    """Envoy may have sent the next call on it."""

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield json_body(b"{}")
        raise InvalidFieldError("told already")

    async with serving(script) as client, connected(client) as (reader, writer):
        for _ in range(3):
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    ("sent", "seen"), [(b"caf\xe9", "café"), ("café".encode(), "café"), (b"\xf0\x9f\x98\x80", "😀"), (b"a", "a")]
)
async def test_headers_may_hold_other_bytes_than_ascii(sent: bytes, seen: str) -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield json_body(f"{dict(context.invocation_metadata())['x-a']} {request.body.content_type}".encode())

    async with serving(script) as client:
        answer = await client.post(CHAT, headers={b"x-a": sent, b"content-type": sent})
    assert answer.text == f"{seen} {seen}"


async def test_what_cannot_be_read_is_not_quoted_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo) as client, connected(client) as (reader, writer):
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer\r\n secret\r\n\r\n".encode())
        assert b" 400 " in await reader.readline()
    assert "secret" not in caplog.text


async def test_headers_are_metadata_in_small_letters() -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        found = [value for name, value in context.invocation_metadata() if name == "x-a"]
        yield json_body(",".join(found).encode())

    async with serving(script) as client:
        assert (await client.post(CHAT, headers=[("X-A", "1"), ("x-a", "2")])).content == b"1,2"


async def test_an_error_without_a_message_is_its_status() -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        if request.body.data == b"known":
            raise InvalidFieldError('Not "this".')
        if request.body.data:
            raise RuntimeError("secret")
        return
        yield

    async with serving(script) as client:
        known, unforeseen, silent = [await client.post(CHAT, content=data) for data in (b"known", b"x", b"")]
    assert (known.status_code, known.json()) == (400, {"code": 3, "message": 'Not "this".', "details": []})
    assert (unforeseen.status_code, unforeseen.json()["code"]) == (500, 13)
    assert "secret" not in unforeseen.text
    assert (silent.status_code, silent.json()["code"]) == (500, 13)


async def test_an_answer_that_fails_after_its_beginning_does_not_look_whole_unless_it_says_so_itself() -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield event(b"data: 1\n\n")
        if request.body.data == b"told":
            context.set_trailing_metadata((TOLD,))
            yield event(b"data: error\n\n")
        raise ShuttingDownError("cut")

    async with serving(script) as client:
        assert (await client.post(CHAT, content=b"told")).content == b"data: 1\n\ndata: error\n\n"
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await client.post(CHAT, content=b"")
        assert (await client.post(CHAT, content=b"told")).status_code == 200  # the next one gets a new connection


@pytest.mark.parametrize("begun", [False, True])
async def test_a_call_whose_caller_goes_away_is_cancelled_and_tells_who_asked_to_know(begun: bool) -> None:
    started, cancelled, told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        context.add_done_callback(lambda _: told.set())
        if begun:
            yield event(b": first\n\n")
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serving(script, grace=60) as client:
        calling = asyncio.create_task(client.post(CHAT))
        await started.wait()
        calling.cancel()
        await cancelled.wait()
        await told.wait()


async def test_a_method_goes_on_only_when_its_message_has_been_written() -> None:
    """Or a reply that nobody reads would be reported as delivered."""
    large, left = b"x" * (64 << 20), asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        context.add_done_callback(lambda _: left.set())
        yield json_body(large)
        written.append(True)

    written: list[bool] = []
    async with serving(script, grace=60) as client:
        async with connected(client) as (reader, writer):
            writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await left.wait()
        assert not written
        assert len((await client.post(CHAT)).content) == len(large)
        assert written


async def test_calls_of_one_connection_know_nothing_of_each_other() -> None:
    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        yield json_body(SEEN.get().encode())
        SEEN.set("another's")

    async with serving(script) as client:
        for _ in range(3):
            assert (await client.post(CHAT)).content == b""


async def test_a_body_over_the_limit_is_refused() -> None:
    async with serving(echo, limit=10) as client:
        assert (await client.post(CHAT, content=b"x" * 10)).status_code == 200
        assert (await client.post(CHAT, content=b"x" * 11)).status_code == 413


async def test_compressed_bodies_are_not_touched() -> None:
    async with serving(echo) as client:
        answer = await client.post(CHAT, content=b"\x1f\x8b\x08", headers={"content-encoding": "gzip"})
    assert answer.content == b"\x1f\x8b\x08"


@pytest.mark.parametrize(("verb", "path"), [("GET", CHAT), ("POST", "/openai/v1/none"), ("POST", "/healthz")])
async def test_what_is_not_there_is_not_found(verb: str, path: str) -> None:
    async with serving(echo) as client:
        answer = await client.request(verb, path)
    assert (answer.status_code, answer.json()["code"]) == (404, 5)
    assert "URL" in answer.json()["message"]


async def test_a_name_that_is_not_utf8_is_a_400() -> None:
    async with serving(echo) as client:
        assert (await client.get("/openai/v1/models/%ff")).status_code == 400


async def test_a_server_that_stops_says_so_and_a_call_in_flight_may_end() -> None:
    begun, go, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        begun.set()
        await go.wait()
        yield json_body(b"whole")

    async def drain() -> None:  # called when new calls are refused
        stopping.set()
        await go.wait()

    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(serving(script, grace=60, drain=drain))
        assert (await client.get("/healthz")).status_code == 200
        async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as other:  # which the stack does not close
            calling = asyncio.create_task(other.post(CHAT))
            await begun.wait()
            ending = asyncio.create_task(stack.aclose())
            await stopping.wait()
            assert (await other.get("/healthz")).status_code == 503
            refused = await other.post(CHAT)
            assert (refused.status_code, refused.headers["whippletree-refused"]) == (503, "stopping")
            assert refused.headers["connection"] == "close"  # or the next one would be sent while it closes
            go.set()
            assert (await calling).content == b"whole"
            await ending
            with pytest.raises(httpx.ConnectError):
                await other.get("/healthz")


async def test_a_call_that_does_not_end_is_cut_with_an_error() -> None:
    begun = asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        begun.set()
        await asyncio.Event().wait()
        yield json_body(b"never")

    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(serving(script))
        async with httpx.AsyncClient(base_url=client.base_url, timeout=60) as other:
            calling = asyncio.create_task(other.post(CHAT))
            await begun.wait()
            await stack.aclose()
            assert ((await calling).status_code, (await calling).json()["code"]) == (503, 14)


async def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            async with listening([], "127.0.0.1:0", grace=0, doors=[HttpDoor([NAME], address)]):
                pass


async def test_all_addresses_are_those_of_both_families() -> None:
    door = HttpDoor([NAME], "[::]:0")
    async with listening([], "127.0.0.1:0", grace=0, doors=[door]), httpx.AsyncClient() as client:
        for host in ("127.0.0.1", "[::1]"):
            assert (await client.get(f"http://{host}:{door.port}/healthz")).status_code == 200


async def test_a_stream_that_nobody_reads_any_more_is_no_failure_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def script(request: Any, context: Any) -> AsyncIterator[HttpBody]:
        context.add_done_callback(lambda _: gone.set())
        yield event(b"data: 1\n\n")
        begun.set()
        while True:
            yield event(b"x" * 65_536)

    async with serving(script, grace=60) as client:
        for _ in range(20):
            begun.clear()
            gone.clear()
            async with connected(client) as (_, writer):
                writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
                await begun.wait()
            await gone.wait()
    assert "unforeseen" not in caplog.text


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:abc", "127.0.0.1", "127.0.0.1:-1"])
async def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {address}"):
        async with listening([], "127.0.0.1:0", notice=600, grace=600, doors=[HttpDoor([NAME], address)]):
            pass


async def test_the_same_rpc_is_there_by_grpc() -> None:
    async with (
        listening([service_of(echo)], "127.0.0.1:0", grace=0, doors=[HttpDoor([NAME], "127.0.0.1:0")]) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub: Any = bridge_pb2_grpc.OpenAIBridgeServiceStub(channel)
        request = bridge_pb2.ChatCompletionsRequest(body=json_body(b"1"))
        (answer,) = [part async for part in stub.ChatCompletions(request)]
    assert answer.data == b"1"
