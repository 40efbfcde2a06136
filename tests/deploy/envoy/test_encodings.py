"""Encoded bodies through Envoy, which lets them pass. Its own limits: test_limits.py."""

import gzip
import json
import random
from typing import Any

import httpx
import pytest
import zstandard

from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import BODY

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
        (zstandard.compress(json.dumps(BODY).encode()), "zstd", 200),
        (zstandard.compress(json.dumps(BODY | {"x": random.Random(1).randbytes(30_000).hex()}).encode()), "zstd", 200),
        (zstandard.compress(json.dumps(BODY).encode())[:-1], "zstd", 400),
        (zstandard.compress(bytes(65 << 20)), "zstd", 413),
        (zstandard.compress(gzip.compress(json.dumps(BODY).encode())), "gzip, zstd", 200),
    ],
    ids=["gzip", "broken", "unknown", "bomb", "zstd", "zstd of 60 KB", "cut", "zstd bomb", "stacked"],
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


async def test_codings_in_two_lines_are_one_list(front: Front, client: httpx.AsyncClient) -> None:
    data = zstandard.compress(gzip.compress(json.dumps(BODY).encode()))
    headers = [("content-encoding", "gzip"), ("content-encoding", "zstd"), ("content-type", "application/json")]
    assert (await client.post(f"{front.openai}/chat/completions", content=data, headers=headers)).status_code == 200
