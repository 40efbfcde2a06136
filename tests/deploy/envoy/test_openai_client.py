"""The ordinary OpenAI client through Envoy: replies, streams, and the exceptions that it raises over our errors."""

import json
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionUserMessageParam
from pydantic import BaseModel

from tests.deploy.envoy.conftest import Front
from tests.fakes.bridge import BODY, sampled
from tests.fakes.policy import Request, Sampled
from whippletree import errors

pytestmark = pytest.mark.asyncio(loop_scope="session")

MESSAGES = [ChatCompletionUserMessageParam(role="user", content="hello")]


@pytest_asyncio.fixture(loop_scope="session")
async def harness(front: Front) -> AsyncIterator[AsyncOpenAI]:
    """Its defaults, two retries included."""
    async with AsyncOpenAI(base_url=front.openai, api_key="none") as made:
        yield made


async def test_reply(front: Front, harness: AsyncOpenAI) -> None:
    answer = await harness.chat.completions.create(model="tiny", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hi 😀"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "v1"
    await front.policy.until(lambda: answer.id.removeprefix("chatcmpl-") in front.policy.delivered)


async def test_streamed_reply_and_usage(front: Front, harness: AsyncOpenAI) -> None:
    stream = await harness.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hi 😀"
    assert chunks[-1].usage is not None
    await front.policy.until(lambda: chunks[0].id.removeprefix("chatcmpl-") in front.policy.delivered)


async def test_tool_calls_arrive_streamed_and_not(front: Front, harness: AsyncOpenAI) -> None:
    async def calls(_: Request) -> Sampled:
        one = '<tool_call>\n{"name": "bash", "arguments": { "cmd":  "ls"}}\n</tool_call>'
        return sampled(f"Look.\n{one}\n{one}")

    front.policy.reply = calls
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
    answer = await harness.chat.completions.create(model="tiny", messages=MESSAGES, tools=[tool])  # type: ignore[list-item]
    found = answer.choices[0].message.tool_calls
    assert found is not None
    assert [call.function.arguments for call in found if call.type == "function"] == ['{ "cmd":  "ls"}'] * 2
    async with harness.chat.completions.stream(model="tiny", messages=MESSAGES, tools=[tool]) as stream:  # type: ignore[list-item]
        final = await stream.get_final_completion()
    again = final.choices[0].message.tool_calls
    assert again is not None
    assert [call.function.arguments for call in again] == ['{ "cmd":  "ls"}'] * 2
    assert len({call.id for call in [*found, *again]}) == 4


async def test_models(harness: AsyncOpenAI) -> None:
    assert [model.id for model in (await harness.models.list()).data] == ["tiny", "judge"]
    assert (await harness.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        await harness.models.retrieve("a/b/c")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("error", "kind", "tries"),
    [
        (errors.ContextLengthExceededError("too long"), openai.BadRequestError, 1),
        (errors.RolloutEndedError("ended"), openai.BadRequestError, 1),
        (errors.StaleAttemptError("stale"), openai.BadRequestError, 1),
        (errors.NotFoundError("gone", name="x"), openai.NotFoundError, 1),
        (errors.OverloadedError("full", retry_after=0.01), openai.RateLimitError, 3),
        (errors.InternalError("bug"), openai.InternalServerError, 1),
        (errors.DeadlineError("late"), openai.InternalServerError, 1),
    ],
    ids=lambda value: getattr(value, "reason", None),
)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_error_is_the_clients_own_exception_and_only_sensible_retries_happen(
    front: Front, error: errors.WhippletreeError, kind: type[openai.APIStatusError], tries: int, stream: bool
) -> None:
    async def refuses(_: Request) -> Sampled:
        raise error

    front.policy.reply = refuses
    async with AsyncOpenAI(base_url=front.openai, api_key="none") as harness:
        with pytest.raises(kind) as caught:
            await harness.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream)
    assert caught.value.type in {"invalid_request_error", "rate_limit_error", "server_error"}
    assert isinstance(caught.value.code, str)
    assert len(front.policy.asked) == tries


async def test_unknown_rollout_and_unknown_model(front: Front) -> None:
    async with AsyncOpenAI(base_url=front.openai.replace("r1", "r2"), api_key="none") as harness:
        with pytest.raises(openai.NotFoundError, match="rollouts/r2"):
            await harness.chat.completions.create(model="tiny", messages=MESSAGES)
    async with AsyncOpenAI(base_url=front.openai, api_key="none") as harness:
        with pytest.raises(openai.NotFoundError, match="'tiny', 'judge'"):
            await harness.chat.completions.create(model="gpt-none", messages=MESSAGES)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_only_fields_that_the_client_knows_and_reasoning(
    front: Front, client: httpx.AsyncClient, stream: bool
) -> None:
    async def thinks(_: Request) -> Sampled:
        return sampled('<think>\nwhy\n</think>\n\nLook.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>')

    front.policy.reply = thinks
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    asked = {**BODY, "tools": [tool], "logprobs": True, "stream": stream}
    answer = await client.post(f"{front.openai}/chat/completions", json=asked)
    if stream:
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
        extra = set.union(*(unknown(ChatCompletionChunk.construct(**json.loads(line))) for line in lines))
    else:
        extra = unknown(ChatCompletion.construct(**answer.json()))
    assert extra == {"reasoning_content"}


def unknown(model: BaseModel) -> set[str]:
    """Names of the fields, at any depth, that the client's own types do not have."""
    found = set(model.model_extra or ())
    for name in model.model_fields_set:
        value = getattr(model, name)
        for part in value if isinstance(value, list) else [value]:
            found |= unknown(part) if isinstance(part, BaseModel) else set()
    return found
