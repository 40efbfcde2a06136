"""Harnesses whose bridge reaches several gateways through Envoy: one of them may be killed, and they see slow calls."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam
from whippletree.v1 import event_pb2, model_call_pb2

from gateway_svc import archive
from tests.fakes.bridge import TEXT
from tests.fakes.chat_model import END, write_chat_model
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, gateway_process, record_of
from tests.fakes.stack import envoy, service, taken_for_a_bridge

DATABASES = ("postgresql",)
TURNS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Envoy for harnesses, a bridge behind it, Envoy again, two gateways."""

    url: str
    gateways: tuple[RunningGateway, RunningGateway]
    processes: tuple[Process, Process]


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Front]:
    """With the run `r` of `models/tiny`, which says hi."""
    hi = list(TEXT.encode("Hi" + END, add_special_tokens=False).ids)
    engine.reply = lambda ids: Reply(hi)
    for name in ("inner", "outer"):
        (tmp_path / name).mkdir()
    async with (
        gateway_process(tmp_path) as (one, first),
        gateway_process(tmp_path) as (two, second),
        taken_for_a_bridge() as none,
        envoy(gateway=f"{one.address},{two.address}", bridge=none, folder=tmp_path / "inner") as inner,
        service("openai_bridge", "--gateway", inner.removeprefix("http://")) as bridge,
        envoy(gateway=one.address, bridge=bridge.bridge, folder=tmp_path / "outer") as outer,
    ):
        await one.register_model(engine.url, tokenizer_path=str(write_chat_model(tmp_path / "model")))
        await one.create_run("r")
        yield Front(url=outer, gateways=(one, two), processes=(first, second))


async def play(front: Front, rollout: str, each: asyncio.Semaphore) -> None:
    """A dialogue of a harness that repeats nothing; `each` is released after every turn."""
    base = f"{front.url}/proxy/rollout/{rollout}/attempt/1/mode/train/openai/v1"
    messages: list[ChatCompletionMessageParam] = []
    async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0, timeout=120) as harness:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"{rollout} {turn}"})
            answer = await harness.chat.completions.create(model="tiny", messages=messages)
            assert answer.choices[0].message.content == "Hi"
            messages.append({"role": "assistant", "content": "Hi"})
            each.release()


async def calls(gateway: RunningGateway, rollout: str) -> list[model_call_pb2.ModelCall]:
    """The recorded calls once all are delivered: that is told after the reply."""
    async with asyncio.timeout(60):
        while True:
            events = await gateway.list_events(rollout, event_pb2.EVENT_VIEW_BASIC)
            found = [event.model_call for event in events]
            if all(call.delivered for call in found):
                return found
            await asyncio.sleep(0.02)


async def test_a_killed_replica_costs_the_harnesses_behind_a_bridge_only_time(front: Front, tmp_path: Path) -> None:
    names = [f"a{number}" for number in range(8)]
    for name in names:
        await front.gateways[1].create_rollout(name)
    turns = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(play(front, name, turns))
        for _ in names:
            await turns.acquire()
        front.processes[0].kill()
    for name in names:
        found = await calls(front.gateways[1], name)
        assert len(found) == TURNS, "each call is there, once"
        for before, after in pairwise(found):
            assert after.parent_call_id == before.call_id
            assert after.shared_token_count == before.prompt_token_count + before.response_token_count
    assert archive.look_through(record_of(tmp_path)).faults == []
