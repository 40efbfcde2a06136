"""The shapes of errors: OpenAI's, Anthropic's, and google.rpc.Status."""

from collections.abc import Mapping
from typing import Any

import httpx

from tests.deploy.envoy.conftest import ROLLOUT
from tests.fakes.bridge import BODY

OPENAI, ANTHROPIC = f"{ROLLOUT}/openai/v1/chat/completions", f"{ROLLOUT}/anthropic/v1/messages"
PATHS = (OPENAI, "/openai/v1/chat/completions", ANTHROPIC, "/anthropic/v1/messages", "/api/rollouts")


def kind_of(path: str, answer: Mapping[str, Any]) -> tuple[str, str] | int:
    """(type, code) of an error that has exactly its dialect's shape; elsewhere google.rpc.Status's code."""
    if "/openai/" in path:
        (error,) = answer.values()
        assert (set(error), error["param"]) == ({"type", "code", "param", "message"}, None)
        return error["type"], error["code"]
    if "/anthropic/" in path:
        assert (set(answer), answer["type"]) == ({"type", "error"}, "error")
        error = answer["error"]
        assert set(error) == {"type", "details", "message"}
        return error["type"], error["details"]["error_code"]
    assert (set(answer), answer["details"]) == ({"code", "message", "details"}, [])
    code: int = answer["code"]
    return code


def expected(path: str, openai: tuple[str, str], anthropic: str, status: int) -> tuple[str, str] | int:
    """Of these three, what `path` wants; Anthropic's details carry OpenAI's code."""
    return openai if "/openai/" in path else (anthropic, openai[1]) if "/anthropic/" in path else status


async def assert_unavailable(client: httpx.AsyncClient, path: str) -> None:
    """A call is answered with the 503 of its dialect, which says when to come again."""
    answer = await client.post(path, json=BODY)
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/json")
    assert answer.headers.get_list("retry-after") == ["1"]
    wanted = expected(path, ("server_error", "service_unavailable"), "overloaded_error", 14)
    assert kind_of(path, answer.json()) == wanted
