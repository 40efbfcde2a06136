"""The same conversation in every dialect is the same prompt."""

from typing import Any

import httpx
import pytest

from tests.deploy.envoy.conftest import Front
from tests.fakes.bridge import TEXT
from whippletree.tokens import unpack_ids

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = {"role": "user", "content": "hello"}


async def asked(front: Front, client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[Any, list[int]]:
    """(the answer, the prompt that it was sampled from)."""
    answer = await client.post(path, json={"model": "tiny", "max_tokens": 9, **body})
    assert answer.status_code == 200, answer.text
    return answer.json(), unpack_ids(front.policy.asked[-1].prompt_token_ids).tolist()


async def both(
    front: Front, client: httpx.AsyncClient, openai: dict[str, Any], anthropic: dict[str, Any]
) -> tuple[Any, Any, str]:
    """(OpenAI's answer, Anthropic's, the text of the one prompt that both had)."""
    one, prompt = await asked(front, client, f"{front.openai}/chat/completions", openai)
    other, again = await asked(front, client, f"{front.anthropic}/v1/messages", anthropic)
    assert prompt == again
    return one, other, str(TEXT.decode(prompt, skip_special_tokens=False))


async def test_thinking_switched_off_is_one_prompt_and_its_reply_is_text(
    front: Front, client: httpx.AsyncClient
) -> None:
    one, other, prompt = await both(
        front,
        client,
        {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [HELLO], "thinking": {"type": "disabled"}},
    )
    assert prompt.endswith("</think>\n\n")
    message = one["choices"][0]["message"]
    assert (message["content"], "reasoning_content" in message) == ("Hi 😀", False)
    assert other["content"] == [{"type": "text", "text": "Hi 😀"}]


async def test_a_round_of_tools_is_one_prompt(front: Front, client: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"cmd": {}}}
    function = {"name": "bash", "arguments": '{"cmd": "ls"}'}
    await both(
        front,
        client,
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                HELLO,
                {
                    "role": "assistant",
                    "content": "Look.",
                    "reasoning_content": "why",
                    "tool_calls": [{"id": "c0", "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": "c0", "content": [{"type": "text", "text": "a"}]},
            ],
            "tools": [{"type": "function", "function": {"name": "bash", "description": "d", "parameters": schema}}],
        },
        {
            "system": "Be kind.",
            "messages": [
                HELLO,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "why", "signature": ""},
                        {"type": "text", "text": "Look."},
                        {"type": "tool_use", "id": "c0", "name": "bash", "input": {"cmd": "ls"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c0", "content": "a"}]},
            ],
            "tools": [{"name": "bash", "description": "d", "input_schema": schema}],
        },
    )


async def test_a_prefilled_reply_is_refused_on_every_path_and_asks_no_engine(
    front: Front, client: httpx.AsyncClient
) -> None:
    body = {"model": "tiny", "max_tokens": 9, "messages": [HELLO, {"role": "assistant", "content": "So:"}]}
    before = len(front.policy.asked)
    paths = ("chat/completions", "v1/messages", "v1/messages/count_tokens")
    for base, path in zip((front.openai, front.anthropic, front.anthropic), paths, strict=True):
        answer = await client.post(f"{base}/{path}", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert error.get("param", error.get("details", {}).get("param")) == "messages"
        assert "Add a user message" in error["message"]
    assert len(front.policy.asked) == before
