"""TLS at the door and mutual TLS behind it: harnesses call by HTTPS, Envoy and bridge show the gateway certificates."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from whippletree.v1 import rollout_pb2

from openai_bridge import server as bridge_server
from openai_bridge.settings import BridgeSettings
from tests.fakes.bridge import says_hi
from tests.fakes.certificates import Authority, authority, lets_in
from tests.fakes.chat_model import write_chat_model
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway
from tests.fakes.keys import make_keys
from tests.fakes.policy import FakePolicy, serving
from tests.fakes.stack import Bridge, Envoy, running_envoy

pytestmark = pytest.mark.asyncio(loop_scope="session")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def secured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Envoy, Authority, str]]:
    """(Envoy, authority, token of a running attempt)."""
    folder = tmp_path_factory.mktemp("tls")
    ours, keys, model = authority(folder / "ca"), make_keys(folder / "keys"), write_chat_model(folder / "model")
    access = keys.access.model_copy(update={"tls": ours.client("services")})
    async with (
        FakeEngine() as engine,
        running_gateway(folder, keys=keys, access=access, tls=ours.server(mutual=True)) as gateway,
    ):
        settings = BridgeSettings(gateway=gateway.address, grace=0, access=access, tls=ours.server(mutual=True))
        async with (
            bridge_server.serving(settings) as ports,
            running_envoy(
                gateway=gateway.address,
                bridge=Bridge.at(ports),
                folder=folder,
                insecure_dev=False,
                tls=ours.server(),
                upstream_tls=ours.client("envoy"),
            ) as envoy,
        ):
            await gateway.register_model(engine.url, tokenizer_path=str(model))
            await gateway.create_run("r")
            await gateway.create_rollout("a", start=False)
            start = rollout_pb2.StartRolloutRequest(name="rollouts/a", worker="w")
            token = (await gateway.rollouts.StartRollout(start)).token
            yield envoy, ours, token


async def test_a_call_goes_through_every_hop(secured: tuple[Envoy, Authority, str]) -> None:
    envoy, ours, token = secured
    trust = ssl.create_default_context(cafile=str(ours.path))
    async with httpx.AsyncClient(verify=trust, timeout=60) as client:
        answer = await client.post(f"{envoy.url}/openai/v1/chat/completions", json=BODY, headers={"x-api-key": token})
    assert answer.status_code == 200, answer.text


async def test_the_door_speaks_nothing_else(secured: tuple[Envoy, Authority, str], tmp_path: Path) -> None:
    url = secured[0].url
    strangers = ssl.create_default_context(cafile=str(authority(tmp_path / "strangers").path))
    async with httpx.AsyncClient(verify=strangers, timeout=60) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/healthz")
        with pytest.raises(httpx.TransportError):
            await client.get(url.replace("https", "http") + "/healthz")


async def test_envoys_own_renewed_certificate_is_taken_without_a_change_of_its_files(
    secured: tuple[Envoy, Authority, str],
) -> None:
    envoy, ours, _ = secured
    own, fresh = envoy.values.upstream_tls, ours.client("envoy")
    assert own.certificate
    assert own.key
    assert fresh.certificate
    assert fresh.key
    updates = "cluster.gateway.client_ssl_socket_factory.ssl_context_update_by_sds"
    before = (await envoy.stats(updates))[updates]
    fresh.key.replace(own.key)
    fresh.certificate.replace(own.certificate)
    await envoy.until(updates, before + 1)


async def test_the_door_may_ask_for_certificates(tmp_path: Path) -> None:
    ours = authority(tmp_path / "ca")
    policy = FakePolicy(tokenizer_path=write_chat_model(tmp_path / "model"), reply=says_hi)
    async with (
        serving(policy) as gateway,
        bridge_server.serving(BridgeSettings(gateway=gateway, grace=0, insecure_dev=True)) as ports,
        running_envoy(gateway=gateway, bridge=Bridge.at(ports), folder=tmp_path, tls=ours.server()) as envoy,
    ):
        envoy.change(tls=ours.server(mutual=True))
        await envoy.until("listener_manager.listener_in_place_updated", 1)
        url = f"{envoy.url}/healthz"
        assert not await lets_in(url, ours)
        assert not await lets_in(url, ours, shown=authority(tmp_path / "strangers"))
        assert await lets_in(url, ours, shown=ours)
