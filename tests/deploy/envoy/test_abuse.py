"""Hostile requests through Envoy: encodings, floods of headers, readers that do not read."""

import asyncio
import gzip
import json
import socket
from typing import Any

import httpx
import pytest

from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import BODY, TEXT
from tests.fakes.policy import Request, Sampled

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATHS = {"openai": "/openai/v1/chat/completions", "anthropic": "/anthropic/v1/messages"}
dialects = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


def told(answer: httpx.Response) -> dict[str, Any]:
    """The error of an answer; both dialects keep it there."""
    found: dict[str, Any] = answer.json()["error"]
    assert found["message"]
    return found


@dialects
@pytest.mark.parametrize(
    ("data", "coding", "status"),
    [
        (gzip.compress(json.dumps(BODY).encode()), "gzip", 200),
        (json.dumps(BODY).encode(), "gzip", 400),
        (json.dumps(BODY).encode(), "br", 415),
        (gzip.compress(bytes(65 << 20)), "gzip", 413),
    ],
    ids=["gzip", "broken", "unknown", "bomb"],
)
async def test_encoded_bodies(
    front: Front, client: httpx.AsyncClient, path: str, data: bytes, coding: str, status: int
) -> None:
    headers = {"content-encoding": coding, "content-type": "application/json"}
    answer = await client.post(front.url + ROLLOUT + path, content=data, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert told(answer)["type"] in {"invalid_request_error", "request_too_large"}
        assert not front.policy.asked


@pytest.mark.parametrize("headers", [{"x-flood": "x" * 200_000}, {f"x-flood-{n}": "x" for n in range(500)}])
async def test_a_flood_of_headers_is_refused_and_others_are_served(
    front: Front, client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    async with httpx.AsyncClient() as hostile:
        answer = await hostile.post(front.openai + "/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 431
    assert (await client.post(front.openai + "/chat/completions", json=BODY)).status_code == 200


@dialects
async def test_readers_that_do_not_read_hold_up_nobody(front: Front, client: httpx.AsyncClient, path: str) -> None:
    mark = TEXT.token_to_id("<tool_response>") or 0

    async def long(request: Request) -> Sampled:
        return Sampled(ids=[mark] * (200_000 if request.sampling.max_tokens == 1 else 1))

    front.policy.reply = long
    url = front.url + ROLLOUT + path
    slow = [await unread(front, ROLLOUT + path, {**BODY, "max_tokens": 1, "stream": True}) for _ in range(4)]
    await front.policy.until(lambda: len(front.policy.asked) == len(slow))
    try:
        answers = await asyncio.gather(*(client.post(url, json={**BODY, "max_tokens": 9}) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
    finally:
        for one in slow:
            one.close()


async def unread(front: Front, path: str, body: dict[str, Any]) -> socket.socket:
    """A connection that has asked and reads nothing; its buffer is small."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", front.port))
    await asyncio.get_running_loop().sock_sendall(made, head.encode() + data)
    return made
