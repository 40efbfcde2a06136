"""The agent against a scripted OpenAI server."""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from examples.quickstart import agent

Reply = Callable[[list[dict[str, Any]]], dict[str, Any]]
Run = Callable[..., Awaitable[None]]


class Server:
    """Answers chat completions by `reply(messages)`, takes rewards; keeps what it was asked."""

    def __init__(self) -> None:
        self.reply: Reply = lambda messages: said("The answer is 1.")
        self.chats: list[dict[str, Any]] = []
        self.rewards: list[dict[str, Any]] = []
        self.refusals = 0
        """So many posted rewards are answered with 503 first."""
        self.url = ""

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.chats.append(body)
        choice = {"index": 0, "finish_reason": "stop", "message": self.reply(body["messages"])}
        return web.json_response(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
        )

    async def event(self, request: web.Request) -> web.Response:
        self.rewards.append(await request.json())
        if len(self.rewards) <= self.refusals:
            return web.json_response({"error": {"message": "away"}}, status=503)
        return web.json_response({"event": {"sequence": "1"}})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_post("/proxy/openai/v1/chat/completions", made.chat)
    app.router.add_post("/api/rollouts/r-7/attempt/2/events", made.event)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield made
    await runner.cleanup()


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def called(arguments: str) -> dict[str, Any]:
    function = {"name": "calculator", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c0", "type": "function", "function": function}]}


def two_steps(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """3*4, then its result + 5, then the answer."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if len(results) == 2:
        return said(f"The answer is {results[1]}.")
    return called(json.dumps({"expression": f"{results[0]}+5" if results else "3*4"}))


def variables(server: Server, folder: Path, task: dict[str, Any]) -> dict[str, str]:
    """The agent's environment; its task is written."""
    (folder / "input.json").write_text(json.dumps({"question": "How many?", "truth": "17", **task}))
    return {
        "OPENAI_BASE_URL": f"{server.url}/proxy/openai/v1",
        "OPENAI_API_KEY": "none",
        "WHIPPLETREE_API": server.url,
        "WHIPPLETREE_ROLLOUT": "r-7",
        "WHIPPLETREE_ATTEMPT": "2",
        "WHIPPLETREE_INPUT": str(folder / "input.json"),
    }


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[None]]:
    """Run the agent in a thread of ours: an interpreter of its own takes a second to import the client."""

    async def begin(task: dict[str, Any], **environment: str) -> None:
        monkeypatch.delenv("CALCULATOR", raising=False)
        for name, value in (variables(server, tmp_path, task) | environment).items():
            monkeypatch.setenv(name, value)
        await asyncio.to_thread(agent.main)

    return begin


async def test_agent_program_calls_the_tool_and_posts_its_reward(server: Server, tmp_path: Path) -> None:
    server.reply = two_steps
    environment = {"PATH": os.environ["PATH"], **variables(server, tmp_path, {})}
    process = await asyncio.create_subprocess_exec(sys.executable, agent.__file__, env=environment, cwd=tmp_path)
    assert await process.wait() == 0
    assert len(server.chats) == 3
    assert [m["role"] for m in server.chats[2]["messages"]] == ["system", "user", *["assistant", "tool"] * 2]
    assert server.chats[2]["messages"][5]["content"] == "17"
    (reward,) = server.rewards
    assert reward["reward"] == {"value": 1.0}
    assert uuid.UUID(reward["request_id"]).version == 4


async def test_wrong_answer_is_worth_nothing(server: Server, run: Run) -> None:
    server.reply = lambda messages: said("The answer is 18.")
    await run({})
    assert [r["reward"]["value"] for r in server.rewards] == [0.0]


@pytest.mark.parametrize(
    ("task", "environment"),
    [({"calculator": "nonsense"}, {}), ({}, {"CALCULATOR": "nonsense"})],
    ids=["by the task", "by the environment"],
)
async def test_nonsense_calculator_misleads_a_right_plan(
    server: Server, run: Run, task: dict[str, Any], environment: dict[str, str]
) -> None:
    server.reply = two_steps
    await run(task, **environment)
    assert server.chats[1]["messages"][3]["content"] != "12"
    assert [r["reward"]["value"] for r in server.rewards] == [0.0]


@pytest.mark.parametrize("arguments", ['{"expression": "os"}', "[1]", "{}", '{"expression": null}'])
async def test_senseless_call_is_answered_with_error(server: Server, run: Run, arguments: str) -> None:
    server.reply = lambda messages: said("17") if messages[-1]["role"] == "tool" else called(arguments)
    await run({})
    assert server.chats[1]["messages"][3]["content"] == "error"


async def test_agent_gives_up_after_four_turns(server: Server, run: Run) -> None:
    server.reply = lambda messages: called('{"expression": "1+1"}')
    await run({})
    assert len(server.chats) == 4
    assert [r["reward"]["value"] for r in server.rewards] == [0.0]


async def test_reward_is_posted_again_under_the_same_id(server: Server, run: Run) -> None:
    server.refusals = 1
    await run({})
    assert len(server.rewards) == 2
    assert server.rewards[0] == server.rewards[1]


def test_agent_is_under_60_lines() -> None:
    assert len(Path(agent.__file__).read_text().splitlines()) < 60
