"""A request's way through the bridge, with a real gRPC server on both sides."""

import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from whippletree.v1 import model_call_pb2

from openai_bridge.settings import GenerationSettings, StreamSettings
from tests.fakes.bridge import BODY, TEXT, Bridge, read, sampled, stub
from tests.fakes.chat_model import END, write_chat_model
from tests.fakes.policy import FakePolicy, Request, Sampled, serving
from tests.fakes.stack import service
from whippletree import errors
from whippletree.channel import connect
from whippletree.tokens import unpack_ids

Start = Callable[..., AbstractAsyncContextManager[Bridge]]
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object", "properties": {}}}}]


def body(**fields: Any) -> bytes:
    return json.dumps({**BODY, **fields}).encode()


async def test_reply_is_the_sampled_text_and_the_call_is_marked_delivered(start_bridge: Start) -> None:
    async with start_bridge() as bridge:
        status, data = await read(bridge.call(body(max_tokens=7, stop=["x"], temperature=0.3)))
        answer = json.loads(data)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "Hi 😀"
        (asked,) = bridge.policy.asked
        assert TEXT.decode(unpack_ids(asked.prompt_token_ids).tolist(), skip_special_tokens=False) == (
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        )
        assert (asked.rollout, asked.attempt, asked.mode) == ("rollouts/r1", 1, model_call_pb2.CALL_MODE_TRAIN)
        assert (asked.sampling.max_tokens, list(asked.sampling.stop)) == (7, ["x"])
        assert asked.sampling.temperature == 0.3
        assert not asked.sampling.HasField("top_p")
        assert answer["usage"]["prompt_tokens"] == len(asked.prompt_token_ids) // 4
        await bridge.policy.until(lambda: len(bridge.policy.delivered) == 1)
        assert answer["id"] == "chatcmpl-" + bridge.policy.delivered[0]


async def test_several_choices_are_several_generations(start_bridge: Start) -> None:
    async def numbered(request: Request) -> Sampled:
        return sampled(f"choice {request.choice_index}")

    async with start_bridge(reply=numbered) as bridge:
        _, data = await read(bridge.call(body(n=3)))
        texts = [choice["message"]["content"] for choice in json.loads(data)["choices"]]
        assert {request.choice_count for request in bridge.policy.asked} == {3}
        assert texts == ["choice 0", "choice 1", "choice 2"]
        assert len({request.request_id for request in bridge.policy.asked}) == 3
        await bridge.policy.until(lambda: len(bridge.policy.delivered) == 3)


async def test_sampled_call_of_a_tool_reaches_the_harness_word_for_word(start_bridge: Start) -> None:
    async def calls(_: Request) -> Sampled:
        return sampled('<tool_call>\n{"name": "calculator", "arguments": { "a":  1}}\n</tool_call>')

    async with start_bridge(reply=calls) as bridge:
        _, data = await read(bridge.call(body(tools=TOOLS)))
        choice = json.loads(data)["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "calculator", "arguments": '{ "a":  1}'}
        echo = [*BODY["messages"], choice["message"], {"role": "tool", "content": "1"}]
        await read(bridge.call(body(tools=TOOLS, messages=echo)))
        first, second = (unpack_ids(request.prompt_token_ids).tolist() for request in bridge.policy.asked)
        response = (await calls(bridge.policy.asked[0])).ids
        assert second[: len(first) + len(response)] == first + response


async def test_text_ends_at_a_stop_string_that_was_sampled(start_bridge: Start) -> None:
    async def stops(_: Request) -> Sampled:
        return Sampled(ids=TEXT.encode("answer STOP").ids)

    async with start_bridge(reply=stops) as bridge:
        _, data = await read(bridge.call(body(stop="STOP")))
        assert json.loads(data)["choices"][0]["message"]["content"] == "answer "


async def test_unavailable_gateway_is_asked_again_with_the_same_id(start_bridge: Start) -> None:
    tries = 0

    async def third_time(_: Request) -> Sampled:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise errors.EngineUnavailableError("down")
        return sampled("at last")

    async with start_bridge(reply=third_time) as bridge:
        status, data = await read(bridge.call(body()))
        assert (status, json.loads(data)["choices"][0]["message"]["content"]) == (200, "at last")
        assert len(bridge.policy.asked) == 3
        assert len({request.request_id for request in bridge.policy.asked}) == 1


async def test_impatient_bridge_says_unavailable(start_bridge: Start) -> None:
    async def never(_: Request) -> Sampled:
        raise errors.EngineUnavailableError("down")

    async with start_bridge(reply=never, generation=GenerationSettings(patience=0)) as bridge:
        status, data = await read(bridge.call(body()))
        assert (status, json.loads(data)["error"]["code"]) == (503, "engine_unavailable")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.RolloutEndedError("The rollout has ended."), 400, "rollout_ended"),
        (errors.StaleAttemptError("Attempt 1 is not the current one."), 400, "stale_attempt"),
        (
            errors.ContextLengthExceededError("too long", prompt_tokens=9, context_length=8),
            400,
            "context_length_exceeded",
        ),
        (errors.HeldTooLongError("held", retry_after=2), 503, "held_too_long"),
        (errors.OverloadedError("full", retry_after=2), 429, "rate_limit_exceeded"),
        (RuntimeError("a secret"), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_the_gateways_refusal_reaches_the_harness(
    start_bridge: Start, error: Exception, status: int, code: str
) -> None:
    async def refuses(_: Request) -> Sampled:
        raise error

    async with start_bridge(reply=refuses) as bridge:
        for n in (1, 2):
            call = bridge.call(body(n=n))
            answered, data = await read(call)
            assert (answered, json.loads(data)["error"]["code"]) == (status, code)
            assert b"secret" not in data
            metadata = dict(await call.initial_metadata())
            assert metadata["x-should-retry"] == ("true" if status in (429, 503) else "false")
            assert metadata.get("retry-after") == ("2" if status in (429, 503) else None)


@pytest.mark.parametrize(
    ("fields", "path", "status", "code"),
    [
        ({"model": "other"}, {}, 404, "model_not_found"),
        ({"model": "none"}, {}, 404, "model_not_found"),
        ({}, {"rollout": "unknown"}, 404, "not_found"),
        ({}, {"attempt": "x"}, 400, "invalid_value"),
        ({}, {"attempt": "0"}, 400, "invalid_value"),
        ({}, {"attempt": "9" * 30}, 400, "invalid_value"),
        ({}, {"mode": "x"}, 400, "invalid_value"),
        ({"messages": None}, {}, 400, "invalid_value"),
    ],
)
async def test_bad_request_never_reaches_generate(
    start_bridge: Start, fields: dict[str, Any], path: dict[str, Any], status: int, code: str
) -> None:
    async with start_bridge() as bridge:
        answered, data = await read(bridge.call(body(**fields), **path))
        assert (answered, json.loads(data)["error"]["code"]) == (status, code)
        assert not bridge.policy.asked
        if code == "model_not_found":
            assert "'tiny', 'judge'" in json.loads(data)["error"]["message"]


async def test_harness_that_goes_away_cancels_the_generation(start_bridge: Start) -> None:
    async def never(_: Request) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError

    async with start_bridge(reply=never) as bridge:
        call = bridge.call(body(n=2))
        await bridge.policy.until(lambda: len(bridge.policy.asked) == 2)
        call.cancel()
        await bridge.policy.until(lambda: len(bridge.policy.cancelled) == 2)
        await bridge.policy.until(lambda: len(bridge.policy.undelivered) == 2)
        assert sorted(bridge.policy.undelivered) == sorted(asked.request_id for asked in bridge.policy.asked)
        assert not bridge.policy.delivered


async def test_what_the_headers_and_the_body_say_of_a_retry_reaches_the_gateway(start_bridge: Start) -> None:
    async with start_bridge() as bridge:
        retried = "x-stainless-retry-count"
        for headers in ((), (("idempotency-key", "k"), (retried, "0")), ((retried, "1"),), ((retried, "x"),)):
            await read(bridge.call(body(stream=bool(headers)), metadata=headers))
        found = [(asked.idempotency_key, asked.is_retry) for asked in bridge.policy.asked]
        assert found == [("", False), ("k", False), ("", True), ("", False)]
        assert len({asked.body_digest for asked in bridge.policy.asked}) == 1
        assert len(bridge.policy.asked[0].body_digest) == 16
        status, _ = await read(bridge.call(body(), metadata=(("idempotency-key", "k" * 256),)))
        assert status == 400


async def test_a_reply_that_is_cut_while_it_is_written_is_reported_as_lost(start_bridge: Start) -> None:
    async def long(_: Request) -> Sampled:
        return sampled("word " * 200_000)

    async with start_bridge(reply=long) as bridge:
        call = bridge.call(body(stream=True))
        assert (await call.read()).data
        call.cancel()
        await bridge.policy.until(lambda: len(bridge.policy.undelivered) == 1)
        assert not bridge.policy.delivered


async def test_a_failed_choice_leaves_the_others_to_the_retry(start_bridge: Start) -> None:
    async def second_fails(request: Request) -> Sampled:
        if request.choice_index:
            await asyncio.sleep(0.05)
            raise errors.OverloadedError("full")
        return sampled("Hi")

    async with start_bridge(reply=second_fails) as bridge:
        status, _ = await read(bridge.call(body(n=2)))
        assert status == 429
        await bridge.policy.until(lambda: len(bridge.policy.undelivered) == 2)


async def test_what_never_reached_the_gateway_is_not_reported(start_bridge: Start) -> None:
    async with start_bridge() as bridge:
        await read(bridge.call(body(model="none")))
        await read(bridge.call(body()))
        await bridge.policy.until(lambda: len(bridge.policy.delivered) == 1)
        assert not bridge.policy.undelivered


async def test_hopeless_prompt_is_told_in_the_dialects_shape_and_never_asked(start_bridge: Start) -> None:
    messages = [{"role": "user", "content": "hello world " * 1_700_000}]  # 20 MB
    async with start_bridge() as bridge:
        status, data = await read(bridge.call(body(messages=messages)))
        error = json.loads(data)["error"]
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert "maximum context length is 32768 tokens" in error["message"]
        assert not bridge.policy.asked


async def test_harness_that_goes_away_between_keep_alives_cancels_the_generation(start_bridge: Start) -> None:
    async def never(_: Request) -> Sampled:
        await asyncio.Event().wait()
        raise AssertionError

    async with start_bridge(stream=StreamSettings(keep_alive=0.01), reply=never) as bridge:
        call = bridge.call(body(stream=True))
        for _ in range(3):
            assert (await call.read()).data == b": keep-alive\n\n"
        await bridge.policy.until(lambda: len(bridge.policy.asked) == 1)  # comments may come before it has begun
        call.cancel()
        await bridge.policy.until(lambda: len(bridge.policy.cancelled) == 1)


@pytest.mark.parametrize("keep_alive", [0.01, 0])
async def test_keep_alives_are_comments_and_can_be_off(start_bridge: Start, keep_alive: float) -> None:
    go = asyncio.Event()

    async def waits(_: Request) -> Sampled:
        await go.wait()
        return sampled("done")

    async with start_bridge(stream=StreamSettings(keep_alive=keep_alive), reply=waits) as bridge:
        call = bridge.call(body(stream=True))
        reading = asyncio.create_task(call.read())
        await bridge.policy.until(lambda: len(bridge.policy.asked) == 1)
        if keep_alive:
            assert (await reading).data == b": keep-alive\n\n"
        go.set()
        rest = (await reading if keep_alive == 0 else await call.read()).data + (await read(call))[1]
        events = [line for line in rest.decode().split("\n\n") if line and line != ": keep-alive"]
        assert all(line.startswith("data: ") for line in events)
        assert events[-1] == "data: [DONE]"


async def test_error_after_a_keep_alive_is_an_event_of_its_own(start_bridge: Start) -> None:
    go = asyncio.Event()

    async def fails(_: Request) -> Sampled:
        await go.wait()
        raise errors.RolloutEndedError("The rollout has ended.")

    async with start_bridge(stream=StreamSettings(keep_alive=0.01), reply=fails) as bridge:
        call = bridge.call(body(stream=True))
        assert (await call.read()).data == b": keep-alive\n\n"
        go.set()
        status, data = await read(call)
        assert status == 200
        last = data.decode().removesuffix("\n\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "rollout_ended"
        assert b"[DONE]" not in data


async def test_stop_ends_every_answer_with_an_error_and_reports_deliveries(tmp_path: Path) -> None:
    async def some_hang(request: Request) -> Sampled:
        if request.sampling.max_tokens == 1:
            await asyncio.Event().wait()
        return sampled("Hi")

    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path), reply=some_hang)
    settings = ("--grace", "0.05", "--stream.keep_alive", "0.01")
    async with (
        serving(policy) as gateway,
        service("openai_bridge", "--gateway", gateway, *settings) as process,
        connect(process.address) as channel,
    ):
        bridge = Bridge(policy=policy, gateway=gateway, address=process.address, stub=stub(channel))
        await read(bridge.call(body()))
        streamed, plain = bridge.call(body(max_tokens=1, stream=True)), bridge.call(body(max_tokens=1))
        assert (await streamed.read()).data == b": keep-alive\n\n"
        await policy.until(lambda: len(policy.asked) == 3)
        ending = asyncio.create_task(process.end(signal.SIGTERM))
        _, data = await read(streamed)
        last = data.decode().removesuffix("\n\n").split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        status, data = await read(plain)
        assert (status, json.loads(data)["error"]["code"]) == (503, "shutting_down")
        assert await ending == 0
        assert len(policy.delivered) == 1
        assert len(policy.cancelled) == 2


async def test_aborted_generation_is_an_error_and_not_a_reply(start_bridge: Start) -> None:
    async def aborted(_: Request) -> Sampled:
        return sampled("half", finish=model_call_pb2.FINISH_REASON_ABORT)

    async with start_bridge(reply=aborted) as bridge:
        status, _ = await read(bridge.call(body()))
        assert status == 503


async def test_logprobs_are_those_of_the_sampled_tokens(start_bridge: Start) -> None:
    async with start_bridge() as bridge:
        _, data = await read(bridge.call(body(logprobs=True)))
        tokens = json.loads(data)["choices"][0]["logprobs"]["content"]
        assert len(tokens) == json.loads(data)["usage"]["completion_tokens"]
        assert {token["logprob"] for token in tokens} == {-0.5}
        assert tokens[-1]["token"] == "<|im_end|>"


async def test_a_stop_string_inside_reasoning_ends_the_reply_there(start_bridge: Start) -> None:
    ids = TEXT.encode("<think>\nwhy\n\n", add_special_tokens=False).ids

    async def stops(_: Request) -> Sampled:
        return Sampled(ids=ids)

    async with start_bridge(reply=stops) as bridge:
        _, data = await read(bridge.call(body(stop="\n\n")))
        answer = json.loads(data)
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("why", "")
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(ids), "what was sampled of the stop string counts"


async def test_a_reply_cut_by_length_is_the_beginning_of_the_next_prompt(start_bridge: Start) -> None:
    ids = TEXT.encode("one two", add_special_tokens=False).ids

    async def cut(_: Request) -> Sampled:
        return Sampled(ids=ids, finish=model_call_pb2.FINISH_REASON_LENGTH)

    async with start_bridge(reply=cut) as bridge:
        _, data = await read(bridge.call(body()))
        choice = json.loads(data)["choices"][0]
        assert choice["finish_reason"] == "length"
        await read(bridge.call(body(messages=[*BODY["messages"], choice["message"], *BODY["messages"]])))
        first, second = (unpack_ids(request.prompt_token_ids).tolist() for request in bridge.policy.asked)
        sampled_end = len(first) + len(ids)
        assert second[:sampled_end] == first + ids
        assert second[sampled_end] == TEXT.token_to_id(END), "the template's own, which nobody sampled"
