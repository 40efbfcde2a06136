"""The door with identity: where keys and tokens may lie, what is refused and in which words, and that keys rotate."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
from whippletree.v1 import rollout_pb2

from tests.fakes.gateway import RunningGateway
from tests.fakes.keys import Keys, make_keys
from tests.fakes.stack import Envoy, running_envoy
from tests.fakes.system import served
from whippletree.identity.folder import KeyFolder, add_signing_key, read
from whippletree.identity.tokens import TokenVerifier, sign

pytestmark = pytest.mark.asyncio(loop_scope="session")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
LONG = "/proxy/rollout/{rollout}/attempt/{attempt}/mode/{mode}"
Headers = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A whole system with identity; rollouts `a` (the agent may reward) and `b` (an evaluator does) run."""

    envoy: Envoy
    gateway: RunningGateway
    keys: Keys
    folder: Path
    token: str
    other: str

    @property
    def operator(self) -> Headers:
        """What an operator sends."""
        return {"authorization": f"Bearer {self.keys.operator}"}

    @property
    def agent(self) -> Headers:
        """What the agent of `a` sends."""
        return {"authorization": f"Bearer {self.token}"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def door(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    keys = make_keys(folder / "keys")
    async with (
        served(folder, joint=False, keys=keys) as (gateway, bridge, _),
        running_envoy(
            gateway=gateway.address,
            bridge=bridge,
            folder=folder,
            insecure_dev=False,
            replacing=(("cache_duration: 30s", "cache_duration: 1s"),),
        ) as envoy,
    ):
        await gateway.create_run("r")
        evaluated = rollout_pb2.Runner(reward_policy=rollout_pb2.REWARD_POLICY_EVALUATOR)
        tokens = []
        for rollout, runner in (("a", None), ("b", evaluated)):
            await gateway.create_rollout(rollout, start=False, runner=runner)
            start = rollout_pb2.StartRolloutRequest(name=f"rollouts/{rollout}", worker="w")
            tokens.append((await gateway.rollouts.StartRollout(start)).token)
        yield Door(envoy=envoy, gateway=gateway, keys=keys, folder=folder, token=tokens[0], other=tokens[1])


@pytest_asyncio.fixture(loop_scope="session")
async def http(door: Door) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=door.envoy.url, timeout=60) as made:
        yield made


def path(rollout: str = "a", attempt: int = 1, mode: str = "train") -> str:
    return LONG.format(rollout=rollout, attempt=attempt, mode=mode)


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "x-goog-api-key", "api-key"])
@pytest.mark.parametrize("base", ["", path()], ids=["own path", "long path"])
async def test_a_token_is_taken_where_harnesses_put_it(
    door: Door, http: httpx.AsyncClient, header: str, base: str
) -> None:
    value = f"Bearer {door.token}" if header == "authorization" else door.token
    answer = await http.post(f"{base}/openai/v1/chat/completions", json=BODY, headers={header: value})
    assert answer.status_code == 200, answer.text


async def test_official_clients_need_only_address_and_token(door: Door) -> None:
    async with openai.AsyncOpenAI(base_url=f"{door.envoy.url}/openai/v1", api_key=door.token) as client:
        made: Any = await client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        assert made.choices[0].message.content
    for key in ("api_key", "azure_ad_token"):
        where: Any = {"azure_endpoint": door.envoy.url, "api_version": "2024-10-21", key: door.token}
        async with openai.AsyncAzureOpenAI(**where) as azure:
            made = await azure.chat.completions.create(**BODY)  # type: ignore[call-overload]
            assert made.choices[0].message.content
    for how in ({"api_key": door.token}, {"auth_token": door.token}):
        async with anthropic.AsyncAnthropic(base_url=f"{door.envoy.url}/anthropic", **how) as other:  # type: ignore[arg-type]
            said = await other.messages.create(max_tokens=8, **BODY)  # type: ignore[call-overload]
            assert said.content


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer whippletree"},
        {"x-api-key": "sk-1234"},
        {"api-key": "sk-1234"},
        {"authorization": "Bearer e30.e30.e30"},
        {"authorization": "Bearer wt_00000000_" + "A" * 43},
    ],
    ids=["nothing", "placeholder", "another's key", "another's Azure key", "forged", "unknown operator"],
)
@pytest.mark.parametrize("base", ["", path()], ids=["own path", "long path"])
async def test_without_a_token_of_ours_the_answer_is_401_in_the_dialects_shape(
    http: httpx.AsyncClient, base: str, headers: Headers
) -> None:
    for api in ("v1", "deployments/tiny"):
        answer = await http.post(f"{base}/openai/{api}/chat/completions", json=BODY, headers=headers)
        assert answer.status_code == 401
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
    answer = await http.post(f"{base}/anthropic/v1/messages", json=BODY, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("wrong", [path("b"), path(attempt=2), path(mode="eval")])
async def test_a_path_that_the_token_does_not_name_is_403_in_the_dialects_shape(
    door: Door, http: httpx.AsyncClient, wrong: str
) -> None:
    answer = await http.post(f"{wrong}/openai/v1/chat/completions", json=BODY, headers=door.agent)
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    answer = await http.post(f"{wrong}/anthropic/v1/messages", json=BODY, headers=door.agent)
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")


async def test_the_control_api_is_for_operators(door: Door, http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/rollouts", headers=door.operator)).status_code == 200
    assert (await http.get("/api/rollouts")).status_code == 401
    assert (await http.get("/api/rollouts", headers=door.agent)).status_code == 403
    assert (await http.get("/api/rollouts", headers={"authorization": "Bearer wt_x"})).status_code == 401


@pytest.mark.parametrize("header", ["x-api-key", "x-goog-api-key", "api-key"])
async def test_an_operators_key_is_taken_as_authorization_alone(
    door: Door, http: httpx.AsyncClient, header: str
) -> None:
    answer = await http.get("/api/rollouts", headers={header: door.keys.operator})
    assert answer.status_code == 401
    assert door.keys.operator not in answer.text


@pytest.mark.parametrize("metrics", ["/metrics", "/stats", "/stats/prometheus"])
async def test_metrics_are_not_at_the_door(door: Door, http: httpx.AsyncClient, metrics: str) -> None:
    assert (await http.get(metrics)).status_code == 401
    for headers in (door.agent, door.operator):
        assert (await http.get(metrics, headers=headers)).status_code == 404


async def test_an_agent_posts_events_to_its_own_attempt(door: Door, http: httpx.AsyncClient) -> None:
    note, reward = {"note": {"type": "t"}}, {"reward": {"value": 1.0}}
    own, others = "/api/rollouts/a/attempt/1/events", "/api/rollouts/b/attempt/1/events"
    for event in (note, reward):
        assert (await http.post(own, json=event, headers=door.agent)).status_code == 200
        assert (await http.post(others, json=event, headers=door.agent)).status_code == 403
        assert (await http.post(own, json=event)).status_code == 401
    evaluated = {"authorization": f"Bearer {door.other}"}
    assert (await http.post(others, json=note, headers=evaluated)).status_code == 200
    assert (await http.post(others, json=reward, headers=evaluated)).status_code == 403


@pytest.mark.parametrize("open_path", ["/healthz", "/readyz", "/.well-known/jwks.json"])
async def test_what_is_no_secret_needs_no_key(http: httpx.AsyncClient, open_path: str) -> None:
    assert (await http.get(open_path)).status_code == 200


@pytest.mark.parametrize("api", ["", "/", "/openai/v1", "/anthropic/"])
@pytest.mark.parametrize("base", ["", path("none"), path()], ids=["own path", "unknown rollout", "long path"])
async def test_a_base_url_is_the_same_for_everybody_and_only_to_look_at(
    door: Door, http: httpx.AsyncClient, base: str, api: str
) -> None:
    for headers in ({}, {"x-api-key": "sk-1234"}, door.agent):
        answer = await http.get(base + api or "/", headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert (await http.head(base + api or "/", headers=headers)).status_code == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert (await http.request(method, base + api or "/")).status_code == 401


@pytest.mark.parametrize(
    "below", ["/openai/v1/models", "/openai/models", "/anthropic/v1/models", "/none", "/openai/v1/x"]
)
@pytest.mark.parametrize("base", ["", path()], ids=["own path", "long path"])
async def test_below_a_base_url_a_token_is_asked_for(http: httpx.AsyncClient, base: str, below: str) -> None:
    for method in ("GET", "HEAD"):
        assert (await http.request(method, base + below)).status_code == 401


async def test_headers_cannot_say_what_only_the_door_may(door: Door, http: httpx.AsyncClient) -> None:
    marks = {"x-envoy-original-path": "/forged", "whippletree-rollout": "forged", "x-http-code": "299"}
    answer = await http.post(f"{path()}/openai/v1/chat/completions", json=BODY, headers={**door.agent, **marks})
    assert answer.status_code == 200
    assert (await http.get("/api/rollouts", headers={**door.operator, "x-envoy-original-path": "/forged"})).is_success
    await door.envoy.until("http.whippletree.downstream_rq_active", 0)
    door.envoy.process.send_signal(signal.SIGUSR1)  # writes what is left of its log
    assert "/forged" not in await logged(door, "/api/rollouts")


async def test_signing_keys_rotate_under_traffic(door: Door, http: httpx.AsyncClient) -> None:
    """A key is added: both verify. The old one is removed: its tokens end. No other call fails meanwhile."""
    failed: list[int] = []
    bearers = [door.token]
    done = asyncio.Event()

    async def traffic() -> None:
        while not done.is_set():
            answer = await http.post("/openai/v1/chat/completions", json=BODY, headers={"x-api-key": bearers[-1]})
            if answer.status_code != 200:
                failed.append(answer.status_code)

    running = asyncio.create_task(traffic())
    (old,) = read(door.keys.folder).signing
    kid = add_signing_key(door.keys.folder, now=time.time())
    (new,) = [key for key in read(door.keys.folder).signing if key.kid == kid]
    verifier = TokenVerifier(KeyFolder(door.keys.folder, time.time), time.time)
    fresh = sign(await verifier.claims(door.token), new)
    await until(http, fresh, 200)
    bearers.append(fresh)
    (door.keys.folder / "signing" / f"{old.kid}.pem").unlink()
    await until(http, door.token, 401)
    done.set()
    await running
    assert failed == []


async def until(http: httpx.AsyncClient, token: str, status: int) -> None:
    """Ask until a token is answered so: gateway, bridge and Envoy look for new keys by themselves."""
    while (await http.get("/openai/v1/models", headers={"x-api-key": token})).status_code != status:
        await asyncio.sleep(0.05)


async def logged(door: Door, text: str) -> str:
    """The access log once it tells of this."""
    while text not in (log := (door.folder / "access.log").read_text()):
        await asyncio.sleep(0.05)  # Envoy writes it now and then
    return log
