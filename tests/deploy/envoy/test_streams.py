"""A stream that dies never looks like one that ended."""

import asyncio
import json
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from openai_bridge.convert import KEEP_ALIVE
from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import BODY, sampled
from tests.fakes.chat_model import write_chat_model
from tests.fakes.policy import FakePolicy, Request, Sampled, serving
from tests.fakes.stack import Service, envoy, service
from whippletree import errors

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES = [ChatCompletionUserMessageParam(role="user", content="hello")]
CHAT = f"{ROLLOUT}/openai/v1/chat/completions"


async def never(_: Request) -> Sampled:
    await asyncio.Event().wait()
    raise AssertionError


async def test_keep_alives_reach_the_harness_one_by_one(front: Front, client: httpx.AsyncClient) -> None:
    go = asyncio.Event()

    async def waits(_: Request) -> Sampled:
        await go.wait()
        return sampled("done")

    front.policy.reply = waits
    async with client.stream("POST", front.openai + "/chat/completions", json={**BODY, "stream": True}) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b": keep-alive\n\n"  # before anything was sampled
        go.set()
        rest = b"".join([part async for part in parts])
    assert rest.endswith(b"data: [DONE]\n\n")


def streamed(front: Front, dialect: str) -> tuple[str, dict[str, Any]]:
    """(address, body) of a stream in a dialect."""
    address = {"openai": f"{front.openai}/chat/completions", "anthropic": f"{front.anthropic}/v1/messages"}[dialect]
    return address, {**BODY, "max_tokens": 9, "stream": True}


@pytest.mark.parametrize(("headers", "kept_alive"), [({}, True), ({KEEP_ALIVE: "Off"}, False)], ids=["default", "off"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_harness_turns_keep_alives_off_for_itself(
    front: Front, client: httpx.AsyncClient, dialect: str, headers: dict[str, str], kept_alive: bool
) -> None:
    async def waits(_: Request) -> Sampled:
        await asyncio.sleep(1)  # for five of them
        return sampled("done")

    front.policy.reply = waits
    address, body = streamed(front, dialect)
    answer = await client.post(address, json=body, headers=headers)
    assert "done" in answer.text
    assert (": keep-alive" in answer.text or "ping" in answer.text) is kept_alive


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_keep_alives_can_only_be_turned_off(front: Front, client: httpx.AsyncClient, dialect: str) -> None:
    address, body = streamed(front, dialect)
    for value in ("on", "5", "false"):
        answer = await client.post(address, json=body, headers={KEEP_ALIVE: value})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert KEEP_ALIVE in answer.json()["error"]["message"]
    assert not front.policy.asked
    assert (await client.post(address, json=body, headers={KEEP_ALIVE: ""})).status_code == 200


async def test_failure_after_the_first_byte_is_an_error_of_the_client(front: Front, client: httpx.AsyncClient) -> None:
    go = asyncio.Event()

    async def fails(_: Request) -> Sampled:
        await go.wait()
        raise errors.InternalError("bug")

    front.policy.reply = fails
    async with AsyncOpenAI(base_url=front.openai, api_key="none") as harness:
        stream = await harness.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        go.set()  # the answer has begun: its first keep-alive is here
        with pytest.raises(openai.APIError) as caught:
            async for _ in stream:
                pass
    assert caught.value.code == "internal_error"


async def test_death_of_the_bridge_is_seen_and_its_restart_costs_only_time(tmp_path: Path) -> None:
    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=never)
    settings = ("--stream.keep_alive", "0.05", "--grace", "0.1")
    patient = ("num_retries: 30", "num_retries: 1000")  # however slow the machine
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway, *settings) as first,
        envoy(gateway=gateway, bridge=first.bridge, folder=tmp_path, replacing=(patient,)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        with pytest.raises(httpx.RemoteProtocolError):
            await read_while_ending(client, first, signal.SIGKILL, policy.until(lambda: len(policy.asked) == 1))
        calling = asyncio.create_task(client.post(CHAT, json=BODY))  # finds nobody: Envoy tries again
        async with service(
            "openai_bridge", "--gateway", gateway, "--http", first.http, *settings, listen=first.address
        ) as second:
            await policy.until(lambda: len(policy.asked) == 2)
            asked = policy.until(lambda: len(policy.asked) == 3)
            rest = await read_while_ending(client, second, signal.SIGTERM, asked)
            last = rest.removesuffix(b"\n\n").split(b"\n\n")[-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
            assert b"[DONE]" not in rest
            assert (await calling).json()["error"]["code"] == "shutting_down"


async def read_while_ending(
    client: httpx.AsyncClient, bridge: Service, number: signal.Signals, asked: Awaitable[None]
) -> bytes:
    """What a stream still says when the bridge gets a signal after the first bytes."""
    async with client.stream("POST", CHAT, json={**BODY, "stream": True}) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b": keep-alive\n\n"
        await asked
        await bridge.end(number)
        return b"".join([part async for part in parts])


async def test_dead_bridge_is_a_503_in_openais_shape(tmp_path: Path) -> None:
    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=never)
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway) as bridge,
        envoy(
            gateway=gateway,
            bridge=bridge.bridge,
            folder=tmp_path,
            replacing=(("base_interval: 0.1s, max_interval: 2s", "base_interval: 0.01s, max_interval: 0.01s"),),
        ) as url,
        httpx.AsyncClient(timeout=60) as client,
    ):
        await bridge.end(signal.SIGKILL)
        answer = await client.post(url + CHAT, json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["retry-after"] == "1"
