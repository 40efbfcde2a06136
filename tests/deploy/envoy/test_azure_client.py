"""Azure's form of OpenAI's dialect through Envoy: its ordinary clients, whose paths name the model."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncAzureOpenAI, AzureOpenAI

from tests.deploy.envoy.conftest import ROLLOUT, Front
from tests.fakes.bridge import BODY

pytestmark = pytest.mark.asyncio(loop_scope="session")

VERSION = "2024-10-21"
DEPLOYED = f"{ROLLOUT}/openai/deployments/tiny/chat/completions?api-version={VERSION}"
MESSAGES: Any = BODY["messages"]
bases = pytest.mark.parametrize(
    "base",
    [
        {"azure_endpoint": ROLLOUT},
        {"azure_endpoint": f"{ROLLOUT}/"},
        {"azure_endpoint": ROLLOUT, "azure_deployment": "tiny"},
        {"base_url": f"{ROLLOUT}/openai"},
        {"base_url": f"{ROLLOUT}/openai/v1"},
        {"base_url": f"{ROLLOUT}/openai/deployments/tiny"},
    ],
    ids=str,
)


def made(front: Front, base: dict[str, str]) -> Any:
    """The arguments of a client: addresses in place of paths."""
    urls = {name: value if name == "azure_deployment" else front.url + value for name, value in base.items()}
    return {"api_key": "none", "api_version": VERSION, **urls}


@bases
async def test_reply_streamed_and_not(front: Front, base: dict[str, str]) -> None:
    async with AsyncAzureOpenAI(**made(front, base)) as harness:
        answer: Any = await harness.chat.completions.create(model="tiny", messages=MESSAGES)
        assert (answer.model, answer.choices[0].message.content) == ("tiny", "Hi 😀")
        stream: Any = await harness.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hi 😀"
    assert {(call.rollout, call.attempt, call.model) for call in front.policy.asked} == {
        ("rollouts/r1", 1, "models/tiny")
    }


@bases
async def test_reply_of_the_blocking_client(front: Front, base: dict[str, str]) -> None:
    def ask() -> Any:
        with AzureOpenAI(**made(front, base)) as harness:
            return harness.chat.completions.create(model="tiny", messages=MESSAGES)

    assert (await asyncio.to_thread(ask)).choices[0].message.content == "Hi 😀"


@pytest.mark.parametrize("body", [{"messages": MESSAGES}, BODY | {"model": "gpt-4"}], ids=["no model", "another model"])
async def test_the_path_names_the_model(front: Front, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    answer = await client.post(f"{front.url}{DEPLOYED}&rollout=r2&model=judge", json=body)
    assert (answer.status_code, answer.json()["model"]) == (200, "tiny")
    assert (front.policy.asked[-1].rollout, front.policy.asked[-1].model) == ("rollouts/r1", "models/tiny")


async def test_a_query_names_no_model(front: Front, client: httpx.AsyncClient) -> None:
    answer = await client.post(f"{front.openai}/chat/completions?model=judge", json=BODY)
    assert answer.json()["model"] == "tiny"


async def test_errors_are_the_clients_own_exceptions(front: Front) -> None:
    async with AsyncAzureOpenAI(**made(front, {"azure_endpoint": ROLLOUT})) as harness:
        with pytest.raises(openai.NotFoundError, match="'tiny', 'judge'") as caught:
            await harness.chat.completions.create(model="gpt-none", messages=MESSAGES)
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError, match="URL") as caught:
            await harness.embeddings.create(model="tiny", input="x")
        assert caught.value.code == "unknown_url"
