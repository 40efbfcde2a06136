"""Files that Envoy watches are changed while calls run: no call is lost, and each change holds for the next one."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import pytest
from whippletree.v1 import model_call_pb2

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.deploy.envoy.conftest import ROLLOUT
from tests.fakes.bridge import BODY, read, request, sampled, stub
from tests.fakes.certificates import authority
from tests.fakes.chat_model import write_chat_model
from tests.fakes.policy import FakePolicy, Request, Sampled, serving
from tests.fakes.stack import Bridge, Envoy, running_envoy
from whippletree.channel import connect

CHAT = f"{ROLLOUT}/openai/v1/chat/completions"
WORKERS = 4
HELD = CHAT.replace("mode/train", "mode/eval")
"""Calls to this path wait for the test."""


@dataclass(slots=True, kw_only=True)
class Replicas:
    """Two bridges, the first alone behind Envoy."""

    envoy: Envoy
    client: httpx.AsyncClient
    policy: FakePolicy
    bridges: tuple[Bridge, Bridge]
    go: asyncio.Event
    statuses: list[int] = field(default_factory=list)
    """What calls of the load were answered, in order."""

    async def load(self) -> None:
        """One call after another, each on a connection that is kept."""
        while True:
            self.statuses.append((await self.client.post(CHAT, json=BODY)).status_code)

    async def more(self) -> None:
        """Wait until every worker has begun and ended a call after this moment."""
        wanted = len(self.statuses) + 2 * WORKERS
        async with asyncio.timeout(60):
            while len(self.statuses) < wanted:
                await asyncio.sleep(0.01)

    async def hold(self) -> list[asyncio.Task[httpx.Response]]:
        """One call of each kind that waits; returns when both are with the policy."""
        calls = [self.client.post(HELD, json={**BODY, "stream": stream}) for stream in (False, True)]
        tasks = [asyncio.create_task(call) for call in calls]
        await self.policy.until(lambda: sum(waits(request) for request in self.policy.asked) == len(tasks))
        return tasks

    async def end(self, calls: list[asyncio.Task[httpx.Response]]) -> None:
        """Held calls may go on, and end with everything in them."""
        assert not any(call.done() for call in calls)
        self.go.set()
        plain, stream = await asyncio.gather(*calls)
        assert plain.json()["choices"][0]["message"]["content"] == "Hi"
        assert stream.text.endswith("data: [DONE]\n\n")


def waits(request: Request) -> bool:
    """Whether a call came by the path of those that wait."""
    return request.mode == model_call_pb2.CALL_MODE_EVAL


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    """With calls running all the time; every one of them must have succeeded at the end."""
    go = asyncio.Event()

    async def reply(request: Request) -> Sampled:
        if waits(request):
            await go.wait()
        return sampled("Hi")

    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=reply)
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serving(policy))
        settings = BridgeSettings(gateway=gateway, grace=0, insecure_dev=True)
        ports = [await stack.enter_async_context(server.serving(settings)) for _ in range(2)]
        one, two = map(Bridge.at, ports)
        running = await stack.enter_async_context(running_envoy(gateway=gateway, bridge=one, folder=tmp_path))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=60))
        made = Replicas(envoy=running, client=client, policy=policy, bridges=(one, two), go=go)
        load = [asyncio.create_task(made.load()) for _ in range(WORKERS)]
        try:
            await made.more()
            yield made
            await made.more()
        finally:
            for task in load:
                task.cancel()
            ends = await asyncio.gather(*load, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        assert set(made.statuses) == {200}


async def test_replicas_are_added_and_taken_out_while_calls_run(replicas: Replicas) -> None:
    one, two = replicas.bridges
    held = await replicas.hold()
    replicas.envoy.change(bridge=one.and_also(two))
    await replicas.envoy.until("cluster.bridge-http.membership_healthy", 2)
    await replicas.more()
    replicas.envoy.change(bridge=two)
    await replicas.envoy.until("cluster.bridge-http.membership_total", 1)
    await replicas.more()
    await replicas.end(held)


async def test_routes_change_on_connections_that_are_open(replicas: Replicas) -> None:
    held = await replicas.hold()
    new = ("Unknown request URL. Please check the URL for typos.", "No such place.")
    replicas.envoy.change(new)
    async with asyncio.timeout(60):
        while (await replicas.client.get("/none")).json()["message"] != new[1]:
            await asyncio.sleep(0.02)
    await replicas.more()
    await replicas.end(held)


async def test_a_changed_cluster_carries_on_with_its_calls(replicas: Replicas) -> None:
    held = await replicas.hold()
    replicas.envoy.change(("lb_policy: LEAST_REQUEST", "lb_policy: ROUND_ROBIN"))
    await replicas.envoy.until("cluster_manager.cluster_modified", 2)  # the bridge is two
    await replicas.more()
    await replicas.end(held)


async def test_a_changed_limit_holds_for_new_connections_and_old_ones_end_with_their_answers(
    replicas: Replicas,
) -> None:
    held = await replicas.hold()
    replicas.envoy.change(("max_request_bytes: 67108864", "max_request_bytes: 10000"))
    await replicas.envoy.until("listener_manager.listener_in_place_updated", 1)
    await replicas.more()
    async with httpx.AsyncClient(timeout=60) as fresh:
        assert (await fresh.post(replicas.envoy.url + CHAT, content=b" " * 20_000)).status_code == 413
    await replicas.end(held)
    assert held[0].result().headers["connection"] == "close", "so that no client asks on a connection that ends"
    assert (await replicas.envoy.stats("listener_manager"))["listener_manager.total_filter_chains_draining"] == 1


async def test_a_grpc_call_outlives_a_change_of_the_listener(replicas: Replicas) -> None:
    async with connect(replicas.envoy.url.removeprefix("http://")) as channel:
        call = stub(channel).ChatCompletions(request(json.dumps(BODY).encode(), mode="eval"))
        await replicas.policy.until(lambda: any(waits(one) for one in replicas.policy.asked))
        replicas.envoy.change(("request_headers_timeout: 10s", "request_headers_timeout: 11s"))
        await replicas.envoy.until("listener_manager.listener_in_place_updated", 1)
        replicas.go.set()
        status, body = await read(call)
    assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "Hi")
    assert await call.code() == grpc.StatusCode.OK


async def test_a_renewed_certificate_is_shown_to_new_connections_while_open_streams_go_on(tmp_path: Path) -> None:
    go, ours = asyncio.Event(), authority(tmp_path / "ca")
    tls, fresh = ours.server(), ours.server()
    assert tls.certificate
    assert tls.key
    assert fresh.certificate
    assert fresh.key
    old, new = tls.certificate.read_text(), fresh.certificate.read_text()

    async def reply(_: Request) -> Sampled:
        await go.wait()
        return sampled("Hi")

    async def shown() -> str:
        """The certificate that a new connection sees."""
        host, _, port = envoy.url.removeprefix("https://").partition(":")
        return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))

    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=reply)
    trust = ssl.create_default_context(cafile=str(ours.path))
    async with (
        serving(policy) as gateway,
        server.serving(BridgeSettings(gateway=gateway, grace=0, insecure_dev=True)) as ports,
        running_envoy(gateway=gateway, bridge=Bridge.at(ports), folder=tmp_path, tls=tls) as envoy,
        httpx.AsyncClient(base_url=envoy.url, verify=trust, timeout=60) as client,
    ):
        held = asyncio.create_task(client.post(CHAT, json={**BODY, "stream": True}))
        await policy.until(lambda: len(policy.asked) == 1)
        assert await shown() == old
        fresh.key.replace(tls.key)
        fresh.certificate.replace(tls.certificate)
        async with asyncio.timeout(60):
            while await shown() != new:
                await asyncio.sleep(0.02)
        go.set()
        answer = await held
        assert answer.text.endswith("data: [DONE]\n\n")
        assert "connection" not in answer.headers, "a listener that changed would close it"
        assert (await client.post(CHAT, json=BODY)).status_code == 200


@pytest.mark.parametrize(
    ("wrong", "counter"),
    [
        pytest.param("codec_type: HTTP3", "update_rejected", id="what cannot be here"),
        pytest.param("codec_tipe: AUTO", "update_rejected", id="misspelt"),
        pytest.param("codec_type: [AUTO", "update_failure", id="no YAML"),
    ],
)
async def test_a_file_that_envoy_cannot_take_changes_nothing(replicas: Replicas, wrong: str, counter: str) -> None:
    replicas.envoy.change(("codec_type: AUTO", wrong))
    await replicas.envoy.until(f"listener_manager.lds.{counter}", 1)
    await replicas.more()
