"""A harness's calls through Envoy, bridge and gateway to the engine and into the record."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam
from whippletree.v1 import model_call_pb2, rollout_pb2

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.bridge import BODY, TEXT
from tests.fakes.chat_model import END, write_chat_model
from tests.fakes.engine import FakeEngine
from tests.fakes.engine_generation import Reply
from tests.fakes.gateway import gateway_process
from tests.fakes.stack import Bridge, envoy
from tests.fakes.system import System

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO = ChatCompletionUserMessageParam(role="user", content="hello")
PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def ids(text: str) -> list[int]:
    return list(TEXT.encode(text, add_special_tokens=False).ids)


async def calls(whole: System, rollout: str, count: int) -> list[model_call_pb2.ModelCall]:
    """The recorded calls, once there are `count` and all are delivered: that is told after the reply."""
    async with asyncio.timeout(60):
        while True:
            events = await whole.gateway.list_events(rollout)
            found = [event.model_call for event in events if event.HasField("model_call")]
            if len(found) >= count and all(call.delivered for call in found):
                return found
            await asyncio.sleep(0.02)


async def test_what_is_recorded_is_what_was_rendered_and_sampled(whole: System) -> None:
    await whole.gateway.create_run("loop")
    await whole.gateway.create_rollout("loop-1", "loop")
    whole.engine.reply = lambda _: Reply(ids("Hi 😀" + END))
    async with AsyncOpenAI(base_url=whole.openai("loop-1"), api_key="none") as harness:
        plain = await harness.chat.completions.create(model="tiny", messages=[HELLO], temperature=0.1)
        stream = await harness.chat.completions.create(model="tiny", messages=[HELLO], stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert plain.choices[0].message.content == text == "Hi 😀"
    first, second = await calls(whole, "loop-1", 2)
    assert plain.id == f"chatcmpl-{first.call_id}"
    for call in (first, second):
        assert list(call.prompt_token_ids) == ids(PROMPT)
        assert list(call.response_token_ids) == ids("Hi 😀" + END)
        assert (call.dialect, call.mode) == ("openai.chat", model_call_pb2.CALL_MODE_TRAIN)
    assert first.sampling.temperature == 1  # train mode: the harness's own is noted and not used
    assert "0.1" in first.asked_sampling


async def test_what_was_ignored_of_a_request_is_read_in_the_record(whole: System) -> None:
    await whole.gateway.create_run("ignored")
    await whole.gateway.create_rollout("ignored-1", "ignored")
    whole.engine.reply = lambda _: Reply(ids("Hi" + END))
    turn = {**HELLO, "foo": "SEEN"}
    async with httpx.AsyncClient(timeout=60) as client:
        url = whole.openai("ignored-1") + "/chat/completions"
        answer = await client.post(url, json={**BODY, "messages": [turn], "foo": 1, "user": "u"})
        assert answer.status_code == 200, answer.text
    (call,) = await calls(whole, "ignored-1", 1)
    assert list(call.ignored_fields) == ["foo", "messages.foo"]
    assert list(call.prompt_token_ids) == ids(PROMPT)


async def test_second_turn_extends_the_first_token_by_token(whole: System) -> None:
    await whole.gateway.create_run("turns")
    await whole.gateway.create_rollout("turns-1", "turns")
    whole.engine.reply = lambda _: Reply(ids('<tool_call>\n{"name": "f", "arguments": { "a":  1}}\n</tool_call>' + END))
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    async with httpx.AsyncClient(timeout=60) as client:
        url = whole.openai("turns-1") + "/chat/completions"
        answer = await client.post(url, json={**BODY, "tools": [tool]})
        message = answer.json()["choices"][0]["message"]
        turn = [*BODY["messages"], message, {"role": "tool", "content": "1", "tool_call_id": "x"}]
        await client.post(url, json={**BODY, "tools": [tool], "messages": turn})
    first, second = await calls(whole, "turns-1", 2)
    whole_first = [*first.prompt_token_ids, *first.response_token_ids]
    assert list(second.prompt_token_ids)[: len(whole_first)] == whole_first
    assert second.parent_call_id == first.call_id


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_was_cut_behind_a_call_is_told_and_recorded_as_cut(whole: System, stream: bool) -> None:
    rollout = f"cut-{int(stream)}"
    await whole.gateway.create_run(rollout)
    await whole.gateway.create_rollout(rollout, rollout)
    call = ids('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    whole.engine.reply = lambda _: Reply([*call, *ids("and then")])
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    async with AsyncOpenAI(base_url=whole.openai(rollout), api_key="none") as harness:
        asked: Any = {"model": "tiny", "messages": [HELLO], "tools": [tool], "max_completion_tokens": len(call)}
        if stream:
            chunks = [chunk async for chunk in await harness.chat.completions.create(**asked, stream=True)]
            reason = chunks[-1].choices[0].finish_reason
            named = [delta.function.name for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or ()]
        else:
            (choice,) = (await harness.chat.completions.create(**asked)).choices
            reason, named = choice.finish_reason, [one.function.name for one in choice.message.tool_calls or ()]
    assert (reason, named[0]) == ("length", "f")
    (recorded,) = await calls(whole, rollout, 1)
    assert recorded.finish_reason == model_call_pb2.FINISH_REASON_LENGTH
    assert list(recorded.response_token_ids) == call


async def test_nothing_in_a_body_says_whose_call_it_is(whole: System) -> None:
    await whole.gateway.create_run("whose")
    for rollout in ("whose-1", "whose-2"):
        await whole.gateway.create_rollout(rollout, "whose")
    whole.engine.reply = lambda _: Reply(ids("Hi" + END))
    other = {"rollout": "whose-2", "user": "whose-2", "session_id": "whose-2", "metadata": {"rollout": "whose-2"}}
    said = {**BODY, **other, "attempt": 7, "mode": "eval", "store": True}
    async with httpx.AsyncClient(timeout=60) as client:
        for path in (whole.openai("whose-1") + "/chat/completions", whole.anthropic("whose-1") + "/v1/messages"):
            answer = await client.post(path, json={**said, "max_tokens": 9})
            assert answer.status_code == 200, answer.text
    recorded = await calls(whole, "whose-1", 2)
    assert [call.mode for call in recorded] == [model_call_pb2.CALL_MODE_TRAIN] * 2
    assert not await whole.gateway.list_events("whose-2")


async def test_bad_requests_are_clear_errors_and_leave_no_trace(whole: System) -> None:
    await whole.gateway.create_run("bad")
    await whole.gateway.create_rollout("bad-1", "bad")
    asked = len(whole.engine.received)
    async with AsyncOpenAI(base_url=whole.openai("bad-1"), api_key="none") as harness:
        long = ChatCompletionUserMessageParam(role="user", content="12 " * 3000)
        with pytest.raises(openai.BadRequestError) as caught:
            await harness.chat.completions.create(model="tiny", messages=[long])
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError, match="'tiny'"):
            await harness.chat.completions.create(model="gpt", messages=[HELLO])
    for rollout, attempt, kind in (("bad-1", 2, openai.BadRequestError), ("bad-2", 1, openai.NotFoundError)):
        async with AsyncOpenAI(base_url=whole.openai(rollout, attempt), api_key="none") as harness:
            with pytest.raises(kind):
                await harness.chat.completions.create(model="tiny", messages=[HELLO])
    finish = rollout_pb2.FinishRolloutRequest(name="rollouts/bad-1", attempt=1, outcome=1)  # type: ignore[arg-type]
    await whole.gateway.rollouts.FinishRollout(finish)
    async with AsyncOpenAI(base_url=whole.openai("bad-1"), api_key="none") as harness:
        with pytest.raises(openai.BadRequestError) as caught:
            await harness.chat.completions.create(model="tiny", messages=[HELLO])
        assert caught.value.code == "rollout_ended"
    assert len(whole.engine.received) == asked
    assert not await whole.gateway.list_events("bad-1")


async def test_killed_gateway_costs_the_harness_only_time(tmp_path: Path) -> None:
    model = write_chat_model(tmp_path / "model")
    go = asyncio.Event()
    async with FakeEngine() as engine, gateway_process(tmp_path) as (first, process):
        engine.reply = lambda _: Reply(ids("Hi" + END), gates={0: go})
        await first.register_model(engine.url, tokenizer_path=str(model))
        await first.create_run("k")
        await first.create_rollout("k-1", "k")
        async with (
            server.serving(BridgeSettings(gateway=first.address, grace=0, insecure_dev=True)) as ports,
            envoy(gateway=first.address, bridge=Bridge.at(ports), folder=tmp_path) as url,
            httpx.AsyncClient(timeout=120) as client,
        ):
            path = "/proxy/rollout/k-1/attempt/1/mode/train/openai/v1/chat/completions"
            calling = asyncio.create_task(client.post(url + path, json=BODY))
            await engine.wait_received("/generate")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            go.set()
            async with gateway_process(tmp_path, "--listen", first.address) as (second, _):
                answer = await calling
                assert json.loads(answer.content)["choices"][0]["message"]["content"] == "Hi"
                events = await second.list_events("k-1")
    assert len(events) == 1
