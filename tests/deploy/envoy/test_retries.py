"""What a harness repeats, with the ordinary OpenAI client through Envoy, bridge and gateway, and a wire that is cut."""

import asyncio
import contextlib
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from anthropic import APIConnectionError, AsyncAnthropic
from anthropic.types import TextBlockParam
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionUserMessageParam
from whippletree.v1 import model_call_pb2

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.bridge import BODY, TEXT
from tests.fakes.chat_model import END, write_chat_model
from tests.fakes.engine import Failure, FakeEngine
from tests.fakes.engine_generation import Reply
from tests.fakes.gateway import RunningGateway, gateway_process
from tests.fakes.stack import Bridge, envoy
from tests.fakes.system import System, system
from tests.fakes.wire import Wire

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = ChatCompletionUserMessageParam(role="user", content="hello")
PATIENCE = 60.0
"""Seconds; only a fault ever takes that long."""


def words(text: str) -> Reply:
    return Reply(list(TEXT.encode(text + END, add_special_tokens=False).ids))


def gated(text: str, gate: asyncio.Event) -> Reply:
    return Reply(words(text).token_ids, gates={0: gate})


@pytest.fixture(scope="session", params=[False, True], ids=["separate", "together"])
def joint(request: pytest.FixtureRequest) -> bool:
    """Whether gateway and bridge are one process."""
    return bool(request.param)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, joint: bool) -> Path:
    """Where the record of `running` lies."""
    return tmp_path_factory.mktemp("retries")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def running(folder: Path, joint: bool) -> AsyncIterator[System]:
    """A system whose gateway waits long enough for a retry, however slow the machine is."""
    async with system(folder, joint=joint, retry_grace=PATIENCE) as made:
        await made.gateway.create_run("retries")
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def rollout(running: System, request: pytest.FixtureRequest) -> str:
    """A rollout of this test alone, and an engine that has heard nothing."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    await running.gateway.create_rollout(name, "retries")
    running.engine.received.clear()
    running.engine.reply = lambda _: words("Hi")
    return name


async def calls(running: System, rollout: str) -> list[model_call_pb2.ModelCall]:
    events = await running.gateway.list_events(rollout)
    return [event.model_call for event in events if event.HasField("model_call")]


async def all_delivered(running: System, rollout: str) -> list[model_call_pb2.ModelCall]:
    """The recorded calls once all are delivered: that is told after the reply."""
    async with asyncio.timeout(PATIENCE):
        while not ((found := await calls(running, rollout)) and all(call.delivered for call in found)):
            await asyncio.sleep(0.02)
    return found


async def test_a_reply_cut_on_the_wire_is_replayed_to_the_clients_own_retry(running: System, rollout: str) -> None:
    async with (
        Wire(f"127.0.0.1:{running.port}") as wire,
        AsyncOpenAI(base_url=through(wire, running.openai(rollout)), api_key="none") as harness,
    ):
        wire.cut_after = 40
        answer = await harness.chat.completions.create(model="tiny", messages=[HELLO])
    assert wire.cuts == 1
    (call,) = await all_delivered(running, rollout)
    assert (answer.id, answer.choices[0].message.content) == (f"chatcmpl-{call.call_id}", "Hi")
    assert len(running.engine.requests("/generate")) == 1


@pytest.mark.parametrize("billing", ["cch=1;", "cch=2;"])
async def test_a_cut_anthropic_stream_is_replayed_to_a_plain_repeat(
    running: System, rollout: str, billing: str
) -> None:
    """The same request again without `stream`, with or without another line in it that changes with every call."""
    asked: Any = {"model": "tiny", "max_tokens": 9, "messages": [HELLO]}
    first, second = (
        [TextBlockParam(type="text", text=f"x-anthropic-billing-header: {line}")] for line in ("cch=1;", billing)
    )
    async with (
        Wire(f"127.0.0.1:{running.port}") as wire,
        AsyncAnthropic(base_url=through(wire, running.anthropic(rollout)), api_key="none", max_retries=0) as harness,
    ):
        wire.cut_after = 40
        with pytest.raises(APIConnectionError):
            async with harness.messages.stream(**asked, system=first) as stream:
                await stream.get_final_message()
        answer = await harness.messages.create(**asked, system=second, extra_headers={"x-stainless-retry-count": "1"})
    assert wire.cuts == 1
    (call,) = await all_delivered(running, rollout)
    assert answer.id == f"msg_{call.call_id}"
    assert len(running.engine.requests("/generate")) == 1


async def test_a_client_that_timed_out_joins_the_generation_again(running: System, rollout: str) -> None:
    """The first try times out for certain; a later one has all the time it needs."""
    gate = asyncio.Event()
    running.engine.reply = lambda _: gated("Hi", gate)
    tries: list[str] = []

    async def sent(request: Any) -> None:
        tries.append(request.headers["x-stainless-retry-count"])
        seconds = 0.2 if len(tries) < 3 else PATIENCE
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        if len(tries) == 3:
            gate.set()

    async with (
        DefaultAsyncHttpxClient(event_hooks={"request": [sent]}) as http,
        AsyncOpenAI(base_url=running.openai(rollout), api_key="none", http_client=http) as harness,
    ):
        answer = await harness.chat.completions.create(model="tiny", messages=[HELLO])
    assert tries == ["0", "1", "2"]
    (call,) = await all_delivered(running, rollout)
    assert answer.id == f"chatcmpl-{call.call_id}"
    assert len(running.engine.requests("/generate")) == 1
    assert not running.engine.requests("/abort_request")


async def test_a_harness_that_says_nothing_of_a_retry_gets_the_reply_that_it_did_not_wait_for(
    running: System, rollout: str, folder: Path, tmp_path: Path
) -> None:
    """Claude Code's way: a stream, cut while it waits; then the same body as a plain request, retry count 0."""
    async with (
        Wire(running.gateway.address) as wire,
        server.serving(BridgeSettings(gateway=wire.address, grace=0, insecure_dev=True)) as ports,
        envoy(gateway=running.gateway.address, bridge=Bridge.at(ports), folder=tmp_path) as front,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        path = running.openai(rollout).replace(running.url, front)
        await client.get(f"{path}/models/tiny")  # the bridge knows the model: only the generation is to come
        gate = asyncio.Event()
        running.engine.reply = lambda _: gated("Hi", gate)
        streaming = asyncio.create_task(client.post(f"{path}/chat/completions", json={**BODY, "stream": True}))
        await running.engine.wait_received("/generate")
        wire.open.clear()  # no answer reaches the bridge
        gate.set()
        await some_call(running.gateway, rollout)
        streaming.cancel()
        await asyncio.wait([streaming])
        await lost(folder / "record.db")
        wire.open.set()
        answer = (await client.post(f"{path}/chat/completions", json=BODY)).json()
    (call,) = await all_delivered(running, rollout)
    assert answer["id"] == f"chatcmpl-{call.call_id}"
    assert len(running.engine.requests("/generate")) == 1


async def some_call(gateway: RunningGateway, rollout: str) -> None:
    """Return once a call is recorded."""
    async with asyncio.timeout(PATIENCE):
        while not await gateway.list_events(rollout):
            await asyncio.sleep(0.01)


async def lost(record: Path) -> None:
    """Return once a call waits for its retry: the gateway tells nobody."""
    with contextlib.closing(sqlite3.connect(f"file:{record}?mode=ro", uri=True)) as connection:
        async with asyncio.timeout(PATIENCE):
            while not connection.execute("SELECT count(*) FROM turns WHERE lost").fetchone()[0]:
                await asyncio.sleep(0.02)


async def test_equal_requests_side_by_side_and_one_after_the_other_are_siblings(running: System, rollout: str) -> None:
    async with AsyncOpenAI(base_url=running.openai(rollout), api_key="none") as harness:

        async def ask(**more: Any) -> str:
            answer = await harness.chat.completions.create(model="tiny", messages=[HELLO], **more)
            return str(answer.id).removeprefix("chatcmpl-")

        found = [*await asyncio.gather(ask(), ask()), await ask(), await ask(extra_headers={"Idempotency-Key": "k"})]
        again = await ask(extra_headers={"Idempotency-Key": "k"})
        other = await ask(extra_headers={"Idempotency-Key": "l"})
    assert again == found[-1]
    assert sorted([*found, other]) == sorted(call.call_id for call in await all_delivered(running, rollout))
    assert len({*found, other}) == 5


async def test_each_choice_of_a_cut_reply_comes_again(running: System, rollout: str) -> None:
    async with (
        Wire(f"127.0.0.1:{running.port}") as wire,
        AsyncOpenAI(base_url=through(wire, running.openai(rollout)), api_key="none") as harness,
    ):
        wire.cut_after = 40
        answer = await harness.chat.completions.create(model="tiny", messages=[HELLO], n=3)
    assert wire.cuts == 1
    assert [choice.message.content for choice in answer.choices] == ["Hi"] * 3
    assert len(await all_delivered(running, rollout)) == len(running.engine.requests("/generate")) == 3


def through(wire: Wire, url: str) -> str:
    """The same URL by way of the wire."""
    return str(httpx.URL(url).copy_with(port=int(wire.address.rpartition(":")[2])))


@pytest.mark.parametrize("times", [1, 5], ids=["once", "longer than the gateway tries"])
async def test_an_engine_that_fails_in_the_middle_costs_the_harness_only_time(
    running: System, rollout: str, times: int
) -> None:
    running.engine.fail("/generate", Failure(drop=True), times=times)
    async with AsyncOpenAI(base_url=running.openai(rollout), api_key="none", max_retries=0) as harness:
        answer = await harness.chat.completions.create(model="tiny", messages=[HELLO])
    assert len(running.engine.requests("/generate")) == times + 1
    (call,) = await all_delivered(running, rollout)
    assert answer.id == f"chatcmpl-{call.call_id}"


async def test_a_harness_that_goes_away_for_good_ends_the_generation(whole: System) -> None:
    await whole.gateway.create_run("gone")
    await whole.gateway.create_rollout("gone-1", "gone")
    whole.engine.reply = lambda _: gated("Hi", asyncio.Event())
    seen = len(whole.engine.received)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        calling = asyncio.create_task(client.post(whole.openai("gone-1") + "/chat/completions", json=BODY))
        sent = (await whole.engine.wait_received("/generate", len(whole.engine.requests("/generate")) + 1))[-1]
        calling.cancel()
        await asyncio.wait([calling])
        aborts = len([one for one in whole.engine.received[:seen] if one.path == "/abort_request"])
        assert (await whole.engine.wait_received("/abort_request", aborts + 1))[-1].body == {"rid": sent.body["rid"]}
    assert not await whole.gateway.list_events("gone-1")


async def test_a_gateway_killed_between_record_and_reply_gives_the_recorded_reply(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model")
    async with FakeEngine() as engine, gateway_process(tmp_path) as (first, process):
        engine.reply = lambda _: words("Hi")
        await first.register_model(engine.url, tokenizer_path=str(model))
        await first.create_run("k")
        await first.create_rollout("k-1", "k")
        async with (
            Wire(first.address) as wire,
            server.serving(BridgeSettings(gateway=wire.address, grace=0, insecure_dev=True)) as ports,
            envoy(gateway=first.address, bridge=Bridge.at(ports), folder=tmp_path) as url,
            httpx.AsyncClient(timeout=2 * PATIENCE) as client,
        ):
            path = f"{url}/proxy/rollout/k-1/attempt/1/mode/train/openai/v1"
            await client.get(f"{path}/models/tiny")  # the bridge knows the model: only the generation is to come
            calling = asyncio.create_task(client.post(f"{path}/chat/completions", json=BODY))
            await engine.wait_received("/generate")
            wire.open.clear()
            await some_call(first, "k-1")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            wire.open.set()
            async with gateway_process(tmp_path, "--listen", first.address) as (second, _):
                answer = json.loads((await calling).content)
                (event,) = await second.list_events("k-1")
    assert answer["id"] == f"chatcmpl-{event.model_call.call_id}"
    assert len(engine.requests("/generate")) == 1
