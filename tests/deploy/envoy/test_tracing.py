"""One trace from the front door to the engine, through real Envoy, bridge and gateway, into a real OTLP collector."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.bridge import BODY
from tests.fakes.collector import Sent, collector
from tests.fakes.engine import Failure
from tests.fakes.stack import running_envoy
from tests.fakes.system import served
from whippletree.cli.envoy import EnvoyValues, render, templates
from whippletree.cli.ports import free_ports

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
PATH = "/proxy/rollout/a/attempt/1/mode/train/openai/v1/chat/completions"


def named(spans: list[Sent], service: str, name: str) -> Sent:
    found = [span for span in spans if span.service == f"whippletree-{service}" and span.name.startswith(name)]
    assert len(found) == 1, f"{service} {name}: {[(span.service, span.name) for span in spans]}"
    return found[0]


@pytest.mark.parametrize("joint", [False, True], ids=["apart", "together"])
async def test_a_call_is_one_trace_from_the_front_door_to_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joint: bool
) -> None:
    bridge_name, gateway_name = ("together", "together") if joint else ("bridge", "gateway")
    async with collector() as spans:
        monkeypatch.setenv(VARIABLE, spans.url)
        async with (
            served(tmp_path, joint=joint) as (gateway, bridge, engine),
            running_envoy(gateway=gateway.address, bridge=bridge, folder=tmp_path, otlp=spans.url) as envoy,
            httpx.AsyncClient() as client,
        ):
            await gateway.create_run("r")
            await gateway.create_rollout("a")
            engine.fail("/generate", Failure(status=500))
            reply = (await client.post(envoy.url + PATH, json=BODY, timeout=60)).raise_for_status()
            found = await spans.until(lambda sent: len({span.trace for span in sent if span.name == "chat"}) == 1)
            found = await spans.until(lambda sent: any(s.name.startswith("ingress") for s in sent))
        trace = next(span.trace for span in found if span.name == "chat")
        found = [span for span in spans.spans if span.trace == trace]
        asked = engine.requests("/generate")
    door, out = named(found, "envoy", "ingress"), named(found, "envoy", "router bridge")
    rpc = named(found, bridge_name, "OpenAIBridgeService/ChatCompletions")
    chat, generate = named(found, bridge_name, "chat"), named(found, gateway_name, "generate")
    tries = sorted((s for s in found if s.name == "engine"), key=lambda span: not span.failed)
    chain = [door, out, rpc, chat]
    if not joint:
        chain.append(named(found, "gateway", "InferenceService/Generate"))
    for parent, child in zip([*chain, generate, generate], [*chain[1:], generate, *tries], strict=True):
        assert child.parent == parent.span, f"{child.name} is not under {parent.name}"
    assert door.parent == ""
    assert [span.failed for span in tries] == [True, False]
    assert [request.headers["traceparent"] for request in asked] == [span.traceparent for span in tries]
    call_id = reply.json()["id"].removeprefix("chatcmpl-")
    check_attributes(door, rpc, chat, generate, tries[1], call_id)
    line: dict[str, Any] = json.loads((tmp_path / "access.log").read_text().splitlines()[-1])
    assert (line["rollout"], line["attempt"], line["trace_id"]) == ("a", "1", trace)
    assert line["request_id"] == asked[0].headers["x-request-id"] == rpc.attributes["whippletree.request"]


def check_attributes(door: Sent, rpc: Sent, chat: Sent, generate: Sent, asked: Sent, call_id: str) -> None:
    for span in (door, rpc, chat, generate, asked):
        assert (span.attributes["whippletree.rollout"], str(span.attributes["whippletree.attempt"])) == ("a", "1")
    assert chat.attributes["gen_ai.request.model"] == "tiny"
    assert chat.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert chat.attributes["whippletree.calls"] == [call_id]
    expected = {
        "whippletree.run": "r",
        "whippletree.call": call_id,
        "whippletree.held_seconds": 0.0,
        "gen_ai.request.model": "tiny",
        "gen_ai.usage.output_tokens": 3,
    }
    assert generate.attributes.items() >= expected.items()
    assert generate.attributes["whippletree.weight_version"] == "default"
    assert asked.attributes["server.address"].startswith("http://127.0.0.1:")


async def test_a_collector_that_is_away_neither_slows_nor_fails_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv(VARIABLE, away)
    async with (
        served(tmp_path, joint=True) as (gateway, bridge, _),
        running_envoy(gateway=gateway.address, bridge=bridge, folder=tmp_path, otlp=away) as envoy,
        httpx.AsyncClient() as client,
    ):
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        calls = [client.post(envoy.url + PATH, json=BODY, timeout=60) for _ in range(20)]
        assert {reply.status_code for reply in await asyncio.gather(*calls)} == {200}


def test_only_a_plain_address_is_a_collector_for_envoy() -> None:
    values = EnvoyValues(
        listen=":1", admin=":1", gateway=":1", bridge=":1", bridge_http=":1", otlp="https://collector:4317"
    )
    with pytest.raises(ValueError, match="http://host:port"):
        render(templates(), values, Path("envoy"))
