"""What Envoy answers by itself has the shape of the dialect that asked, found by path; where no path was read yet, all
shapes at once. Bodies that are too large or too slow are in test_limits.py, identity is in test_identity.py."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.deploy.envoy.conftest import Front, limited
from tests.deploy.envoy.shapes import ANTHROPIC, OPENAI, PATHS, assert_unavailable, expected, kind_of
from tests.fakes.bridge import BODY, sampled
from tests.fakes.policy import FakePolicy, Request, Sampled, serving
from tests.fakes.stack import Bridge, Envoy, running_envoy

FEW = (
    "max_pending_requests: 100000, max_requests: 100000",
    "max_pending_requests: 100000, max_requests: 1",
)
"""Of requests to a service at once."""
SOON = ("num_retries: 30", "num_retries: 0")
"""A bridge that is away is not waited for."""


async def raw(port: int, request: str) -> tuple[int, dict[str, str], Any]:
    """(status, headers, JSON) of what is answered to these bytes, to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.transport.abort()
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), json.loads(body)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("suffix", "headers", "status", "openai", "kind", "code"),
    [
        pytest.param("/none", {}, 404, ("invalid_request_error", "unknown_url"), "not_found_error", 5, id="no route"),
        pytest.param(
            "",
            {"origin": "http://example.test"},
            403,
            ("permission_error", "permission_denied"),
            "permission_error",
            7,
            id="web page",
        ),
    ],
)
async def test_what_no_service_is_asked_for(
    front: Front,
    client: httpx.AsyncClient,
    path: str,
    suffix: str,
    headers: dict[str, str],
    status: int,
    openai: tuple[str, str],
    kind: str,
    code: int,
) -> None:
    answer = await client.post(front.url + path + suffix + "/none" * bool(suffix), json=BODY, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert kind_of(path, answer.json()) == expected(path, openai, kind, code)
    assert "URL" in answer.text or "web pages" in answer.text
    assert not front.policy.asked


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", PATHS)
async def test_a_request_without_host_is_a_400(front: Front, path: str) -> None:
    """Refused before any filter sees it, by its path nevertheless."""
    status, headers, body = await raw(front.port, f"POST {path} HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert (status, headers["content-type"]) == (400, "application/json")
    assert kind_of(path, body) == expected(path, ("invalid_request_error", "error"), "invalid_request_error", 3)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("more", "status"),
    [
        pytest.param("".join(f"x-{number}: 1\r\n" for number in range(120)), 431, id="too many headers"),
        pytest.param(f"x-large: {'x' * 70_000}\r\n", 431, id="too large headers"),
        pytest.param("content-length: one\r\n", 400, id="no HTTP"),
        pytest.param("content-length: 2\r\ntransfer-encoding: chunked\r\n", 400, id="ambiguous length"),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_headers_that_are_not_read_to_their_end_are_refused_in_all_shapes(
    front: Front, path: str, more: str, status: int
) -> None:
    """Envoy has no path then."""
    request = f"POST {path} HTTP/1.1\r\nhost: x\r\n{more}connection: close\r\n\r\n"
    found, headers, body = await raw(front.port, request)
    assert (found, headers["content-type"]) == (status, "application/json")
    assert_all_shapes(body)


def assert_all_shapes(body: dict[str, Any]) -> None:
    """What OpenAI's and Anthropic's clients and readers of google.rpc.Status look for."""
    assert set(body) == {"type", "error", "code", "message", "details"}
    assert (body["type"], body["code"], body["details"]) == ("error", 3, [])
    assert body["error"]["type"] == "invalid_request_error"
    assert set(body["error"]) == {"type", "code", "param", "message"}
    assert body["error"]["message"] == body["message"]
    assert body["message"]


@pytest.mark.asyncio(loop_scope="session")
async def test_official_clients_read_all_shapes(front: Front) -> None:
    large = {"x-large": "x" * 70_000}
    async with openai.AsyncOpenAI(base_url=front.openai, api_key="k", default_headers=large) as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.models.list()
    assert (caught.value.status_code, caught.value.code) == (431, "invalid_request")
    async with anthropic.AsyncAnthropic(base_url=front.anthropic, api_key="k", default_headers=large) as other:
        with pytest.raises(anthropic.APIStatusError) as raised:
            await other.models.list()
    assert (raised.value.status_code, raised.value.type) == (431, "invalid_request_error")


async def test_headers_that_trickle_are_a_408_in_all_shapes(policy: FakePolicy, tmp_path: Path) -> None:
    limit = ("request_headers_timeout: 10s", "request_headers_timeout: 1s")
    async with limited(policy, tmp_path, limit) as envoy:
        status, headers, body = await raw(port_of(envoy), f"POST {OPENAI} HTTP/1.1\r\nhost: x\r\n")
    assert (status, headers["content-type"]) == (408, "application/json")
    assert_all_shapes(body)


async def test_more_requests_than_a_circuit_breaker_allows_are_a_503_to_be_repeated(
    policy: FakePolicy, tmp_path: Path
) -> None:
    go = asyncio.Event()

    async def waits(_: Request) -> Sampled:
        await go.wait()
        return sampled("at last")

    policy.reply = waits
    async with limited(policy, tmp_path, FEW) as envoy, httpx.AsyncClient(base_url=envoy.url, timeout=60) as client:
        first = asyncio.create_task(client.post(OPENAI, json=BODY))
        await policy.until(lambda: len(policy.asked) == 1)
        for path in PATHS[:-1]:
            await assert_unavailable(client, path)
        go.set()
        assert (await first).status_code == 200


async def test_without_a_bridge_answers_are_a_503_to_be_repeated(policy: FakePolicy, tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving(policy))
        settings = BridgeSettings(gateway=gateway, grace=0, insecure_dev=True)
        async with server.serving(settings) as ports:
            starting = running_envoy(gateway=gateway, bridge=Bridge.at(ports), folder=tmp_path, replacing=(SOON,))
            envoy = await stack.enter_async_context(starting)
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=envoy.url, timeout=60))
        for path in PATHS[:-1]:
            await assert_unavailable(client, path)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
async def test_a_deadline_of_the_callers_own_is_a_504(front: Front, client: httpx.AsyncClient, path: str) -> None:
    async def never(_: Request) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError

    front.policy.reply = never
    answer = await client.post(front.url + path, json=BODY, headers={"grpc-timeout": "1S"})
    assert (answer.status_code, answer.headers["content-type"]) == (504, "application/json")
    assert kind_of(path, answer.json()) == expected(path, ("server_error", "timeout"), "timeout_error", 4)


def port_of(envoy: Envoy) -> int:
    """Its one port."""
    return int(envoy.url.rpartition(":")[2])
