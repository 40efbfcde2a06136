"""A real server with the layer, asked through real channels."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.trace import SpanKind
from whippletree.v1 import bridge_pb2, event_pb2, inference_pb2, rollout_pb2, rollout_pb2_grpc

from tests.fakes.collector import Collector, collector
from whippletree.channel import connect
from whippletree.errors import NotFoundError
from whippletree.log import IDS, Ids
from whippletree.observe import ids
from whippletree.serve import Service, listening
from whippletree.settings import MetricsSettings, TracingSettings
from whippletree.telemetry import Telemetry, observing
from whippletree.tracing import outgoing

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
SERVICE = "whippletree.v1.RolloutService"
log = logging.getLogger(__name__)


class Rollouts(rollout_pb2_grpc.RolloutServiceServicer):
    """Answers with what it knows of itself."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry, self.entered = telemetry, asyncio.Event()

    async def GetRollout(self, request: Any, context: Any) -> Any:
        match request.name:
            case "rollouts/none":
                raise NotFoundError("there is none", name=request.name)
            case "rollouts/fault":
                raise RuntimeError("a fault")
            case "rollouts/slow":
                self.entered.set()
                await asyncio.Event().wait()
        with self.telemetry.tracing.span("inner", attributes={"tokens": 3}):
            called = dict(outgoing())
        own = IDS.get()
        name = f"{own.rollout} {own.attempt} {own.request}"
        return rollout_pb2.GetRolloutResponse(rollout=rollout_pb2.Rollout(name=name, run=called.get("traceparent", "")))

    async def WatchRollouts(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield rollout_pb2.WatchRolloutsResponse(resume_token=IDS.get().run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    channel: grpc.aio.Channel
    stub: Any
    servicer: Rollouts
    telemetry: Telemetry

    def counted(self, method: str, code: str) -> float:
        """How many rpcs ended so."""
        labels = {"method": f"RolloutService/{method}", "code": code}
        return self.telemetry.registry.get_sample_value("whippletree_rpc_total", labels) or 0.0

    async def until_counted(self, method: str, code: str) -> None:
        """The server ends a call a moment after its client has the answer."""
        async with asyncio.timeout(60):
            while not self.counted(method, code):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def served(otlp: str = "", ratio: float = 1.0) -> AsyncIterator[Observed]:
    async with observing("test", MetricsSettings(), TracingSettings(otlp=otlp, ratio=ratio)) as telemetry:
        servicer = Rollouts(telemetry)  # type: ignore[abstract]  # the other methods are not asked
        service = Service(
            full_name=SERVICE,
            register=lambda server: rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server),
        )
        async with (
            listening([service], "127.0.0.1:0", grace=0, layers=[telemetry.layer]) as port,
            connect(f"127.0.0.1:{port}") as channel,
        ):
            stub: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
            yield Observed(channel=channel, stub=stub, servicer=servicer, telemetry=telemetry)


def get(name: str) -> rollout_pb2.GetRolloutRequest:
    return rollout_pb2.GetRolloutRequest(name=f"rollouts/{name}")


@pytest.mark.parametrize(
    ("metadata", "request_", "expected"),
    [
        ({"whippletree-rollout": "r1"}, inference_pb2.GenerateRequest(attempt=2), Ids(rollout="r1", attempt=2)),
        ({}, inference_pb2.GenerateRequest(rollout="rollouts/r1", attempt=2), Ids(rollout="r1", attempt=2)),
        ({}, bridge_pb2.ChatCompletionsRequest(rollout="r1", attempt="2"), Ids(rollout="r1", attempt=2)),
        ({}, bridge_pb2.ChatCompletionsRequest(rollout="r1", attempt="²"), Ids(rollout="r1")),
        ({}, event_pb2.ListEventsRequest(parent="rollouts/r1/attempts/3"), Ids(rollout="r1", attempt=3)),
        ({}, rollout_pb2.ListRolloutsRequest(run="runs/a"), Ids(run="a")),
        ({"x-request-id": "q-1", "traceparent": PARENT}, get("a"), Ids(rollout="a", request="q-1", traceparent=PARENT)),
        ({"x-request-id": "a\nb", "traceparent": "00-xyz"}, get("a"), Ids(rollout="a")),
        ({"traceparent": b"\xff"}, object(), Ids()),
    ],
)
def test_the_ids_of_a_call_are_in_its_headers_and_fields(
    metadata: dict[str, str | bytes], request_: object, expected: Ids
) -> None:
    assert ids(metadata.items(), request_) == expected


async def test_a_method_knows_what_it_works_for() -> None:
    async with served() as observed:
        answer = await observed.stub.GetRollout(get("r1"), metadata=(("x-request-id", "q1"), ("traceparent", PARENT)))
        assert answer.rollout.name == "r1 0 q1"
        assert answer.rollout.run == PARENT  # without a collector the caller's trace is passed on as it is
        request = rollout_pb2.WatchRolloutsRequest(run="runs/a")
        assert [m.resume_token async for m in observed.stub.WatchRollouts(request)] == ["a"]


async def test_every_end_of_a_call_is_counted_with_its_code() -> None:
    async with served() as observed:
        await observed.stub.GetRollout(get("r1"))
        for name in ("none", "fault"):
            with pytest.raises(grpc.aio.AioRpcError):
                await observed.stub.GetRollout(get(name))
        call = observed.stub.GetRollout(get("slow"))
        await observed.servicer.entered.wait()
        call.cancel()
        async for _ in observed.stub.WatchRollouts(rollout_pb2.WatchRolloutsRequest()):
            pass
        for method, code in (
            ("GetRollout", "OK"),
            ("GetRollout", "NOT_FOUND"),
            ("GetRollout", "INTERNAL"),
            ("GetRollout", "CANCELLED"),
            ("WatchRollouts", "OK"),
        ):
            await observed.until_counted(method, code)
            assert observed.counted(method, code) == 1
        registry, labels = observed.telemetry.registry, {"method": "RolloutService/GetRollout"}
        assert registry.get_sample_value("whippletree_rpc_in_flight", labels) == 0
        assert registry.get_sample_value("whippletree_rpc_duration_seconds_count", labels) == 4


async def test_health_is_not_counted() -> None:
    async with served() as observed:
        stub: Any = health_pb2_grpc.HealthStub(observed.channel)
        await stub.Check(health_pb2.HealthCheckRequest())
        await observed.stub.GetRollout(get("r1"))
        await observed.until_counted("GetRollout", "OK")
        families = [f for f in observed.telemetry.registry.collect() if f.name == "whippletree_rpc"]
        assert {sample.labels["method"] for sample in families[0].samples} == {"RolloutService/GetRollout"}


async def test_a_traced_call_is_a_span_under_its_callers_and_over_what_it_does() -> None:
    async with collector() as spans, served(otlp=spans.url) as observed:
        metadata = (("traceparent", PARENT), ("whippletree-rollout", "r1"))
        answer = await observed.stub.GetRollout(get("r1"), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError):
            await observed.stub.GetRollout(get("none"), metadata=metadata)
        await observed.stub.GetRollout(get("r1"))  # nobody traces it: it is no span of its own
        await spans.until(lambda found: len(found) == 3 + 1)
        inner, rpc, failed = sorted_by_kind(spans)
        assert rpc.trace == "a" * 32
        assert rpc.parent == "b" * 16
        assert rpc.service == "whippletree-test"
        assert rpc.attributes["whippletree.rollout"] == "r1"
        assert rpc.attributes["rpc.method"] == "GetRollout"
        assert (inner.trace, inner.parent, inner.attributes) == (rpc.trace, rpc.span, {"tokens": 3})
        assert answer.rollout.run == inner.traceparent
        assert failed.failed
        assert failed.attributes["error.type"] == "NOT_FOUND"
        assert not rpc.failed


def sorted_by_kind(spans: Collector) -> list[Any]:
    """(inner, rpc, failed rpc)."""
    named = {(span.kind, span.failed): span for span in spans.spans if span.trace == "a" * 32}
    server, internal = SpanKind.SERVER.value + 1, SpanKind.INTERNAL.value + 1
    return [named[internal, False], named[server, False], named[server, True]]


async def test_what_the_caller_left_out_of_its_sample_is_not_sent_but_passed_on() -> None:
    async with collector() as spans, served(otlp=spans.url) as observed:
        answer = await observed.stub.GetRollout(get("r1"), metadata=(("traceparent", PARENT[:-2] + "00"),))
        assert answer.rollout.run[:35] == PARENT[:35]
        assert answer.rollout.run.endswith("-00")
        await observed.stub.GetRollout(get("r1"), metadata=(("traceparent", PARENT),))
        found = await spans.until(lambda found: len(found) >= 2)
        assert len(found) == 2
