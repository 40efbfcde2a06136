"""The ordinary Anthropic client through Envoy: replies, streams, tools, and the exceptions that errors become."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam

from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import TEXT, sampled
from tests.fakes.policy import Request, Sampled
from whippletree import errors
from whippletree.tokens import unpack_ids

pytestmark = pytest.mark.asyncio(loop_scope="session")

HELLO: MessageParam = {"role": "user", "content": "hello"}
BASH = ToolParam(name="bash", description="runs", input_schema={"type": "object", "properties": {"cmd": {}}})
CALL = '<tool_call>\n{"name": "bash", "arguments": {"cmd": "ls", "n": [1, "é"]}}\n</tool_call>'


@pytest_asyncio.fixture(loop_scope="session")
async def harness(front: Front) -> AsyncIterator[AsyncAnthropic]:
    """Its defaults, two retries included."""
    async with AsyncAnthropic(base_url=front.anthropic, api_key="none") as made:
        yield made


def prompt(request: Request) -> str:
    return str(TEXT.decode(unpack_ids(request.prompt_token_ids).tolist(), skip_special_tokens=False))


async def test_reply(front: Front, harness: AsyncAnthropic) -> None:
    answer = await harness.messages.create(model="tiny", max_tokens=9, messages=[HELLO], system="Be kind.")
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "Hi 😀")  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.role, answer.model) == ("end_turn", "assistant", "tiny")
    (asked,) = front.policy.asked
    assert (asked.dialect, asked.sampling.max_tokens) == ("anthropic.messages", 9)
    assert prompt(asked) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer.usage.input_tokens == len(asked.prompt_token_ids) // 4
    await front.policy.until(lambda: answer.id.removeprefix("msg_") in front.policy.delivered)


async def test_streamed_reply_is_the_unstreamed_one(front: Front, harness: AsyncAnthropic) -> None:
    async def thinks(_: Request) -> Sampled:
        return sampled(f"<think>\nwhy\n</think>\n\nLook.\n{CALL}")

    front.policy.reply = thinks
    plain = await harness.messages.create(model="tiny", max_tokens=99, messages=[HELLO], tools=[BASH])
    async with harness.messages.stream(model="tiny", max_tokens=99, messages=[HELLO], tools=[BASH]) as stream:
        streamed = await stream.get_final_message()
    assert [block.type for block in plain.content] == ["thinking", "text", "tool_use"]
    for one, other in zip(plain.content, streamed.content, strict=True):
        assert _without_ids(one.to_dict()) == _without_ids(other.to_dict())
    assert plain.stop_reason == streamed.stop_reason == "tool_use"
    assert plain.usage.output_tokens == streamed.usage.output_tokens
    assert plain.id != streamed.id


def _without_ids(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in ("id", "signature") and value is not None}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_round_of_tools_extends_the_first_prompt_token_by_token(
    front: Front, harness: AsyncAnthropic, stream: bool
) -> None:
    replies = [sampled(f"<think>\nwhy\n</think>\n\nLook.\n{CALL}\n{CALL}"), sampled("done")]

    async def by_turn(_: Request) -> Sampled:
        return replies[len(front.policy.asked) - 1]

    front.policy.reply = by_turn

    async def turn(messages: list[MessageParam]) -> Any:
        if not stream:
            return await harness.messages.create(model="tiny", max_tokens=99, messages=messages, tools=[BASH])
        async with harness.messages.stream(model="tiny", max_tokens=99, messages=messages, tools=[BASH]) as events:
            return await events.get_final_message()

    first = await turn([HELLO])
    calls = [block for block in first.content if block.type == "tool_use"]
    assert [call.input for call in calls] == [{"cmd": "ls", "n": [1, "é"]}] * 2
    assert len({call.id for call in calls}) == 2
    results: Any = [{"type": "tool_result", "tool_use_id": call.id, "content": "1"} for call in calls]
    echo: Any = [block.to_dict() for block in first.content]
    last = await turn([HELLO, {"role": "assistant", "content": echo}, {"role": "user", "content": results}])
    assert last.content[0].text == "done"
    one, two = (unpack_ids(asked.prompt_token_ids).tolist() for asked in front.policy.asked)
    assert two[: len(one) + len(replies[0].ids)] == one + replies[0].ids


async def test_a_stop_sequence_that_was_met_is_named(front: Front, harness: AsyncAnthropic) -> None:
    async def stops(_: Request) -> Sampled:
        return Sampled(ids=TEXT.encode("answer STOP").ids)

    front.policy.reply = stops
    answer = await harness.messages.create(model="tiny", max_tokens=9, messages=[HELLO], stop_sequences=["X", "STOP"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
    assert answer.content[0].text == "answer "  # type: ignore[union-attr]
    assert list(front.policy.asked[0].sampling.stop) == ["X", "STOP"]


async def test_counted_tokens_are_those_of_the_prompt(front: Front, harness: AsyncAnthropic) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [HELLO], "system": "Be kind.", "tools": [BASH] * 30}
    count = await harness.messages.count_tokens(**asked)
    assert not front.policy.asked
    answer = await harness.messages.create(**asked, max_tokens=9)
    assert count.input_tokens == answer.usage.input_tokens == len(front.policy.asked[0].prompt_token_ids) // 4


async def test_models(harness: AsyncAnthropic) -> None:
    assert [model.id async for model in harness.models.list()] == ["tiny", "judge"]
    assert (await harness.models.retrieve("tiny")).display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError) as caught:
        await harness.models.retrieve("a/b/c")
    assert (caught.value.type, caught.value.error_code) == ("not_found_error", "model_not_found")


@pytest.mark.parametrize(
    ("error", "kind", "told", "tries"),
    [
        (errors.RolloutEndedError("ended"), anthropic.BadRequestError, "invalid_request_error", 1),
        (errors.NotFoundError("gone", name="x"), anthropic.NotFoundError, "not_found_error", 1),
        (errors.OverloadedError("full", retry_after=0.01), anthropic.RateLimitError, "rate_limit_error", 3),
        (errors.HeldTooLongError("held", retry_after=0.01), anthropic.InternalServerError, "overloaded_error", 3),
        (errors.InternalError("bug"), anthropic.InternalServerError, "api_error", 1),
    ],
    ids=lambda value: getattr(value, "reason", None),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_error_is_the_clients_own_exception_and_only_sensible_retries_happen(
    front: Front,
    error: errors.WhippletreeError,
    kind: type[anthropic.APIStatusError],
    told: str,
    tries: int,
    stream: bool,
) -> None:
    async def refuses(_: Request) -> Sampled:
        raise error

    front.policy.reply = refuses
    async with AsyncAnthropic(base_url=front.anthropic, api_key="none") as harness:
        with pytest.raises(kind) as caught:
            await harness.messages.create(model="tiny", max_tokens=9, messages=[HELLO], stream=stream)
    assert caught.value.type == told
    assert len(front.policy.asked) == tries


async def test_pings_pass_the_time_and_a_failure_after_them_is_an_error_of_the_client(
    front: Front, client: httpx.AsyncClient
) -> None:
    go = asyncio.Event()

    async def fails(request: Request) -> Sampled:
        await go.wait()
        raise errors.RolloutEndedError("The rollout has ended.")

    front.policy.reply = fails
    async with AsyncAnthropic(base_url=front.anthropic, api_key="none") as harness:
        stream = await harness.messages.create(model="tiny", max_tokens=9, messages=[HELLO], stream=True)
        go.set()  # the answer has begun: its first ping is here
        with pytest.raises(anthropic.APIStatusError) as caught:
            async for _ in stream:
                pass
    assert (caught.value.type, caught.value.error_code) == ("invalid_request_error", "rollout_ended")
    go.clear()
    body = {"model": "tiny", "max_tokens": 9, "messages": [HELLO], "stream": True}
    async with client.stream("POST", front.anthropic + "/v1/messages", json=body) as answer:
        parts = answer.aiter_raw()
        assert await anext(parts) == b'event: ping\ndata: {"type":"ping"}\n\n'
        go.set()
        rest = b"".join([part async for part in parts])
    assert b"message_stop" not in rest
    assert b"event: error\n" in rest


@pytest.mark.parametrize("path", ["/anthropic/v1/v1/messages", "/anthropic/v1/none"])
async def test_wrong_url_is_a_404_in_anthropics_shape(front: Front, client: httpx.AsyncClient, path: str) -> None:
    answer = await client.post(front.url + ROLLOUT + path, json={})
    assert answer.status_code == 404
    told = answer.json()
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
    assert "URL" in told["error"]["message"]
    assert told["error"]["details"] == {"error_code": "unknown_url"}


async def test_envoys_own_refusal_of_a_body_has_anthropics_shape(front: Front) -> None:
    async with AsyncAnthropic(base_url=front.anthropic, api_key="none") as harness:
        long: MessageParam = {"role": "user", "content": "x" * (64 << 20)}
        with pytest.raises(anthropic.APIStatusError) as caught:
            await harness.messages.create(model="tiny", max_tokens=9, messages=[long])
    assert (caught.value.status_code, caught.value.type) == (413, "request_too_large")


async def test_what_claude_code_asks_for_is_answered(front: Front, client: httpx.AsyncClient) -> None:
    assert (await client.head(front.anthropic)).status_code == 200
    body = {
        "model": "tiny",
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
            {"type": "text", "text": "Be kind."},
        ],
        "messages": [HELLO, {"role": "system", "content": "note"}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": "{}"},
    }
    for stream in (True, False):
        answer = await client.post(
            front.anthropic + "/v1/messages?beta=true",
            json={**body, "stream": stream},
            headers={"anthropic-beta": "x,y"},
        )
        assert answer.status_code == 200
        assert "Hi" in answer.text
    first, second = front.policy.asked
    assert first.body_digest == second.body_digest
    assert "billing" not in prompt(first)
