"""A weight update as harnesses see it, with the ordinary clients at their default settings: a slow call, nothing else.

Everything is real but the engine, whose update lasts as long as a test wants.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from whippletree.v1 import model_call_pb2, model_pb2, phase_pb2

from openai_bridge.settings import StreamSettings
from tests.fakes.bridge import TEXT
from tests.fakes.chat_model import END
from tests.fakes.engine_generation import Reply
from tests.fakes.system import System, system

OFTEN = StreamSettings(keep_alive=0.05)
PATIENCE = 120.0
"""Seconds; only a fault ever takes that long."""
CALLS = 5


def words(text: str) -> Reply:
    return Reply(list(TEXT.encode(text + END, add_special_tokens=False).ids))


@asynccontextmanager
async def harnesses(running: System, rollout: str) -> AsyncIterator[tuple[AsyncOpenAI, AsyncAnthropic]]:
    """Both clients, nothing set but address and key."""
    async with (
        AsyncOpenAI(base_url=running.openai(rollout), api_key="none") as one,
        AsyncAnthropic(base_url=running.anthropic(rollout), api_key="none") as other,
    ):
        yield one, other


async def openai_text(client: AsyncOpenAI, question: str, *, stream: bool) -> str:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": question}]}
    if not stream:
        return str((await client.chat.completions.create(**asked)).choices[0].message.content)
    chunks = await client.chat.completions.create(**asked, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


async def anthropic_text(client: AsyncAnthropic, question: str, *, stream: bool) -> str:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 99, "messages": [{"role": "user", "content": question}]}
    if not stream:
        return str((await client.messages.create(**asked)).content[0].text)
    async with client.messages.stream(**asked) as events:
        return await events.get_final_text()


def publish(running: System) -> asyncio.Future[model_pb2.PublishWeightsResponse]:
    request = model_pb2.PublishWeightsRequest(name="models/tiny", weight_version="v2", weights_path="weights/v2")
    return asyncio.ensure_future(running.gateway.models.PublishWeights(request))


async def update(running: System) -> asyncio.Future[model_pb2.PublishWeightsResponse]:
    """An update that the engine has begun and that lasts until its `loading` is set."""
    running.engine.loading.clear()
    publishing = publish(running)
    await running.engine.wait_received("/update_weights_from_disk")
    return publishing


async def held(running: System, run: str, count: int) -> None:
    """Return once so many generations of a run are held."""
    async with asyncio.timeout(PATIENCE):
        while True:
            phase = await running.gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run=f"runs/{run}"))
            if phase.held_count == count:
                assert not phase.in_flight_count
                return
            await asyncio.sleep(0.02)


async def recorded(running: System, rollout: str, count: int) -> list[model_call_pb2.ModelCall]:
    """The recorded calls once there are so many and all are delivered: that is told after the reply."""
    async with asyncio.timeout(PATIENCE):
        while True:
            events = await running.gateway.list_events(rollout)
            calls = [event.model_call for event in events if event.HasField("model_call")]
            if len(calls) >= count and all(call.delivered for call in calls):
                return calls
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("joint", "seconds"),
    [
        pytest.param(False, 0, id="separate"),
        pytest.param(True, 0, id="together"),
        pytest.param(False, 60, id="a-minute", marks=pytest.mark.e2e),
    ],
)
async def test_an_update_costs_a_harness_only_time(tmp_path: Path, joint: bool, seconds: int) -> None:
    async with system(tmp_path, joint=joint, stream=None if seconds else OFTEN) as running:
        await running.gateway.create_run("u")
        await running.gateway.create_rollout("u-1", "u")
        running.engine.reply = lambda _: words("Hi")
        async with harnesses(running, "u-1") as (one, other):
            publishing = await update(running)
            calls: list[Awaitable[str]] = [
                openai_text(one, "a", stream=False),
                openai_text(one, "b", stream=True),
                anthropic_text(other, "c", stream=False),
                anthropic_text(other, "d", stream=True),
                anthropic_text(other, "d", stream=True),  # an equal call is a sibling, not a retry
            ]
            answering = asyncio.gather(*calls)
            await held(running, "u", CALLS)
            await asyncio.sleep(seconds)
            assert not running.engine.requests("/generate"), "a call reached the engine while its weights changed"
            assert not answering.done()
            running.engine.loading.set()
            assert await answering == ["Hi"] * CALLS
            assert (await publishing).model.weight_version == "v2"
        found = await recorded(running, "u-1", CALLS)
        assert len(found) == len(running.engine.requests("/generate")) == CALLS
        for call in found:
            assert [span.weight_version for span in call.weight_versions] == ["v2"]
            assert call.hold_duration.ToTimedelta().total_seconds() >= seconds
    lines = [json.loads(line) for line in (tmp_path / "access.log").read_text().splitlines()]
    posts = [line for line in lines if line["method"] == "POST"]
    assert [line["status"] for line in posts] == [200] * CALLS, "a client came twice"


async def test_a_call_in_flight_ends_under_the_old_weights_before_they_change(tmp_path: Path) -> None:
    async with system(tmp_path, stream=OFTEN) as running:
        await running.gateway.create_run("u")
        await running.gateway.create_rollout("u-1", "u")
        gate = asyncio.Event()
        running.engine.reply = lambda _: Reply(words("old").token_ids, gates={1: gate})
        async with harnesses(running, "u-1") as (one, other):
            early = asyncio.ensure_future(openai_text(one, "a", stream=True))
            await running.engine.wait_received("/generate")
            publishing = publish(running)
            running.engine.reply = lambda _: words("new")
            late = asyncio.ensure_future(anthropic_text(other, "b", stream=True))
            await asyncio.wait({late}, timeout=0.2)  # time to slip through, if it could
            assert len(running.engine.requests("/generate")) == 1
            assert not running.engine.requests("/update_weights_from_disk")
            gate.set()
            assert (await early, await late) == ("old", "new")
            await publishing
        first, second = await recorded(running, "u-1", 2)
        assert [span.weight_version for span in second.weight_versions] == ["v2"]
        assert [span.weight_version for span in first.weight_versions] != ["v2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hold_that_is_too_long_is_a_503_after_which_the_clients_come_again(
    tmp_path: Path, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients wait as long as they are told: here that wait is as long as the update."""
    pauses: list[float] = []
    async with system(tmp_path) as running:
        await running.gateway.create_run("u", max_hold_s=1)
        await running.gateway.create_rollout("u-1", "u")
        running.engine.reply = lambda _: words("Hi")
        publishing = await update(running)

        async def pause(asked: float) -> None:
            pauses.append(asked)
            if len(pauses) == 2:
                running.engine.loading.set()
            await publishing

        async with harnesses(running, "u-1") as (one, other):
            monkeypatch.setattr(anyio, "sleep", pause)
            asked = openai_text(one, "a", stream=stream), anthropic_text(other, "b", stream=stream)
            assert list(await asyncio.gather(*asked)) == ["Hi", "Hi"]
        assert pauses == [10, 10]
        assert len(await recorded(running, "u-1", 2)) == len(running.engine.requests("/generate")) == 2


async def test_a_hold_that_is_too_long_has_each_dialects_shape(tmp_path: Path) -> None:
    async with system(tmp_path) as running, httpx.AsyncClient(timeout=PATIENCE) as client:
        await running.gateway.create_run("u", max_hold_s=1)
        await running.gateway.create_rollout("u-1", "u")
        publishing = await update(running)
        body = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
        chat, message = await asyncio.gather(
            client.post(running.openai("u-1") + "/chat/completions", json=body),
            client.post(running.anthropic("u-1") + "/v1/messages", json=body),
        )
        for answer in (chat, message):
            assert answer.status_code == 503
            assert (answer.headers["retry-after"], answer.headers["x-should-retry"]) == ("10", "true")
        assert chat.json()["error"]["code"] == message.json()["error"]["details"]["error_code"] == "held_too_long"
        assert (chat.json()["error"]["type"], message.json()["error"]["type"]) == ("server_error", "overloaded_error")
        running.engine.loading.set()
        await publishing


async def test_a_hold_that_is_too_long_after_keep_alives_is_an_error_and_no_clean_end(tmp_path: Path) -> None:
    async with system(tmp_path, stream=OFTEN) as running:
        await running.gateway.create_run("u", max_hold_s=1)
        await running.gateway.create_rollout("u-1", "u")
        publishing = await update(running)
        async with harnesses(running, "u-1") as (one, other):
            told = await asyncio.gather(
                openai_text(one, "a", stream=True), anthropic_text(other, "b", stream=True), return_exceptions=True
            )
        assert isinstance(told[0], openai.APIError)
        assert told[0].code == "held_too_long"
        assert getattr(told[1], "type", None) == "overloaded_error"
        running.engine.loading.set()
        await publishing
