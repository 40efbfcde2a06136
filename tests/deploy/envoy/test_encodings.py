"""Encoded bodies through Envoy, which lets them pass. Its own limits: test_limits.py."""

import gzip
import json
from typing import Any

import httpx
import pytest

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
