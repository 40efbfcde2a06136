"""gRPC through the same port: grpcurl without our files, gRPC-Web, errors with details, health."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from whippletree.v1 import event_pb2, event_pb2_grpc, rollout_pb2, rollout_pb2_grpc

from tests.fakes.gateway import refused
from tests.fakes.system import System
from whippletree.channel import connect
from whippletree.contract import public_services
from whippletree.errors import NotFoundError

pytestmark = pytest.mark.asyncio(loop_scope="session")

GRPCURL = Path(sys.executable).with_name("grpcurl")


async def grpcurl(whole: System, *words: str, data: dict[str, Any] | None = None) -> str:
    flags = () if data is None else ("-d", json.dumps(data))
    process = await asyncio.create_subprocess_exec(
        GRPCURL,
        "-plaintext",
        *flags,
        f"127.0.0.1:{whole.port}",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    return (await process.communicate())[0].decode()


async def test_grpcurl_lists_and_describes_every_service(whole: System) -> None:
    listed = (await grpcurl(whole, "list")).split()
    assert set(public_services()) | {"grpc.health.v1.Health"} <= set(listed)
    for name in public_services():
        assert "is a service" in await grpcurl(whole, "describe", name)


async def test_grpcurl_creates_a_rollout_and_reads_its_events(whole: System) -> None:
    await grpcurl(
        whole, "whippletree.v1.RunService/CreateRun", data={"run_id": "curl", "run": {"policy": "models/tiny"}}
    )
    rollout = {"rollout_id": "curl-1", "rollout": {"run": "runs/curl", "input": {"question": "1 + 1"}}}
    made = await grpcurl(whole, "whippletree.v1.RolloutService/CreateRollout", data=rollout)
    assert json.loads(made)["rollout"]["state"] == "ROLLOUT_STATE_QUEUED"
    name = "rollouts/curl-1"
    await grpcurl(whole, "whippletree.v1.RolloutService/StartRollout", data={"name": name, "worker": "me"})
    reward = {"parent": name, "attempt": 1, "reward": {"value": 0.5}}
    await grpcurl(whole, "whippletree.v1.EventService/AppendEvent", data=reward)
    read = await grpcurl(whole, "whippletree.v1.EventService/ListEvents", data={"parent": name})
    assert [event["reward"]["value"] for event in json.loads(read)["events"]] == [0.5]
    assert "NOT_FOUND" in await grpcurl(whole, "whippletree.v1.RolloutService/GetRollout", data={"name": "rollouts/0"})


async def test_error_keeps_its_details(whole: System) -> None:
    async with connect(f"127.0.0.1:{whole.port}") as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        async with refused(NotFoundError) as caught:
            await stub.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/none"))
    assert caught[0].metadata["name"] == "rollouts/none"


async def test_watch_streams_through(whole: System) -> None:
    async with connect(f"127.0.0.1:{whole.port}") as channel:
        stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
        call = stub.WatchRollouts(rollout_pb2.WatchRolloutsRequest(run="runs/none"))
        assert (await call.read()).HasField("bookmark")
        call.cancel()


async def test_every_reply_comes_of_a_stream_whose_caller_has_nothing_more_to_say(whole: System) -> None:
    await whole.gateway.create_run("stream")
    await whole.gateway.create_rollout("stream-1", "stream")
    texts = [f"{number} " * 50_000 for number in range(20)]
    async with connect(f"127.0.0.1:{whole.port}") as channel:
        stub: Any = event_pb2_grpc.EventServiceStub(channel)
        for text in texts:
            note = event_pb2.Note(type="long")
            note.data.update({"text": text})
            await stub.AppendEvent(event_pb2.AppendEventRequest(parent="rollouts/stream-1", attempt=1, note=note))
        asked = event_pb2.ExportEventsRequest(parents=["rollouts/stream-1"])
        found = [one.event.note.data["text"] async for one in stub.ExportEvents(asked)]
    assert found == texts


async def test_health_of_every_gateway_service(whole: System) -> None:
    async with connect(f"127.0.0.1:{whole.port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "whippletree.v1.RolloutService", "whippletree.v1.InferenceService"):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_grpc_web_over_http_1(whole: System, client: httpx.AsyncClient) -> None:
    message = rollout_pb2.GetRolloutRequest(name="rollouts/none").SerializeToString()
    answer = await client.post(
        f"{whole.url}/whippletree.v1.RolloutService/GetRollout",
        content=b"\x00" + len(message).to_bytes(4, "big") + message,
        headers={"content-type": "application/grpc-web+proto"},
    )
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/grpc-web")
    assert answer.headers["grpc-status"] == str(grpc.StatusCode.NOT_FOUND.value[0])
