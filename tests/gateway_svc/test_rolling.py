"""Two bridges and two gateways behind Envoy are restarted one by one, with calls in flight: no harness sees it."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from openai import AsyncOpenAI
from whippletree.v1 import event_pb2, phase_pb2

from tests.fakes.bridge import TEXT
from tests.fakes.chat_model import END, write_chat_model
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, record_of
from tests.fakes.stack import Envoy, Service, running_envoy, service, taken_for_a_bridge
from whippletree.channel import connect

DATABASES = ("postgresql",)
WORDS = list(TEXT.encode("Hi" + END, add_special_tokens=False).ids)
RETRIES = (0, 0, 0, 2)
"""How often each harness's client tries again by itself: never, or as it does by default."""
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


CLUSTERS = {"bridges": ("bridge", "bridge-http"), "gateways": ("gateway",)}
"""What Envoy calls them."""


@dataclass(slots=True, kw_only=True)
class Place:
    """One replica: its process may change, its address does not."""

    name: str
    arguments: tuple[str, ...]
    stack: contextlib.AsyncExitStack
    running: Service = field(init=False)

    async def start(self) -> None:
        """Start it."""
        self.running = await self.stack.enter_async_context(service(self.name, *self.arguments))

    async def start_again(self) -> None:
        """Start it where it was."""
        before = self.running
        http = ("--http", before.http) if before.http else ()
        self.running = await self.stack.enter_async_context(
            service(self.name, *self.arguments, *http, listen=before.address)
        )

    async def held(self) -> int:
        """How many calls a gateway holds."""
        async with connect(self.running.address) as channel:
            phases = RunningGateway(address="", channel=channel).phases
            return (await phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).held_count

    async def stopping(self) -> None:
        """Ask it to stop; returns once its health says that it does."""
        self.running.process.send_signal(signal.SIGTERM)
        async with connect(self.running.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            while (await stub.Check(health_pb2.HealthCheckRequest())).status != NOT_SERVING:
                pass


@dataclass(slots=True, kw_only=True)
class Cluster:
    """All of it, with harnesses that call all the time."""

    envoy: Envoy
    front: RunningGateway
    engine: FakeEngine
    bridges: list[Place]
    gateways: list[Place]
    gate: asyncio.Event
    """Generations wait while it is not set."""
    answered: dict[str, list[str]]
    """Rollout -> ids of the answers that its harness has, in order."""
    ending: bool = False

    async def harness(self, rollout: str, max_retries: int) -> None:
        """One call after another, streamed and not, until the end."""
        base = f"{self.envoy.url}/proxy/rollout/{rollout}/attempt/1/mode/train/openai/v1"
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=max_retries) as client:
            while not self.ending:
                turn = len(self.answered[rollout])
                ask: Any = {"model": "tiny", "messages": [{"role": "user", "content": f"turn {turn}"}]}
                if turn % 2:
                    chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
                    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                    found = chunks[0].id
                else:
                    answer = await client.chat.completions.create(**ask)
                    said, found = str(answer.choices[0].message.content), answer.id
                assert said == "Hi"
                self.answered[rollout].append(found.removeprefix("chatcmpl-"))

    async def more(self) -> None:
        """Wait until every harness has had two more answers."""
        wanted = {rollout: len(had) + 2 for rollout, had in self.answered.items()}
        async with asyncio.timeout(200):
            while any(len(had) < wanted[rollout] for rollout, had in self.answered.items()):
                await asyncio.sleep(0.01)

    async def hold(self) -> None:
        """Wait until a generation of every harness is in flight."""
        self.gate.clear()
        async with asyncio.timeout(200):
            while sum(one.finish is None for one in list(self.engine.generations.values())) < len(self.answered):
                await asyncio.sleep(0.01)

    async def recorded(self) -> dict[str, list[str]]:
        """Rollout -> ids of the calls in the record, once all are known to be delivered."""
        found: dict[str, list[str]] = {}
        for rollout in self.answered:
            async with asyncio.timeout(200):
                while True:
                    events = await self.front.list_events(rollout, event_pb2.EVENT_VIEW_BASIC)
                    calls = [event.model_call for event in events if event.HasField("model_call")]
                    if all(call.delivered for call in calls):
                        break
                    await asyncio.sleep(0.05)
            found[rollout] = [call.call_id for call in calls]
        return found


@pytest.fixture
async def cluster(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[Cluster]:
    """At its end no call has failed, and the record holds what the harnesses were answered, once."""
    gate = asyncio.Event()
    gate.set()
    engine.reply = lambda _: Reply(WORDS, gates={0: gate})
    async with contextlib.AsyncExitStack() as stack:
        store = ("--store.url", str(record_of(tmp_path)), "--log_level", "WARNING")
        gateways = [Place(name="gateway_svc", arguments=store, stack=stack) for _ in range(2)]
        await asyncio.gather(*(place.start() for place in gateways))
        where = ",".join(place.running.address for place in gateways)
        nobody = await stack.enter_async_context(taken_for_a_bridge())
        envoy = await stack.enter_async_context(  # bridges ask by way of Envoy, so they come after it
            running_envoy(gateway=where, bridge=nobody, folder=tmp_path)
        )
        door = envoy.url.removeprefix("http://")
        bridges = [Place(name="openai_bridge", arguments=("--gateway", door), stack=stack) for _ in range(2)]
        await asyncio.gather(*(place.start() for place in bridges))
        first, second = (place.running.bridge for place in bridges)
        envoy.change(bridge=first.and_also(second))
        for name in CLUSTERS["bridges"]:
            await envoy.until(f"cluster.{name}.membership_healthy", 2)
        front = RunningGateway(address=door, channel=await stack.enter_async_context(connect(door)))
        await front.create_run("r")
        await front.register_model(engine.url, tokenizer_path=str(write_chat_model(tmp_path / "model")))
        names = [f"h{number}" for number in range(len(RETRIES))]
        for name in names:
            await front.create_rollout(name)
        made = Cluster(
            envoy=envoy,
            front=front,
            engine=engine,
            bridges=bridges,
            gateways=gateways,
            gate=gate,
            answered={name: [] for name in names},
        )
        async with asyncio.TaskGroup() as harnesses:
            for name, retries in zip(names, RETRIES, strict=True):
                harnesses.create_task(made.harness(name, retries))
            await made.more()
            yield made
            await made.more()
            made.ending = True
        assert await made.recorded() == made.answered


@pytest.mark.parametrize("kind", ["bridges", "gateways"])
async def test_a_rolling_restart_is_seen_by_no_harness(cluster: Cluster, kind: str) -> None:
    for place in getattr(cluster, kind):
        await cluster.hold()
        await place.stopping()
        cluster.gate.set()  # what is in flight ends within the grace
        await cluster.more()
        assert await place.running.process.wait() == 0
        await cluster.more()
        await place.start_again()
        for name in CLUSTERS[kind]:
            await cluster.envoy.until(f"cluster.{name}.membership_healthy", 2)


async def test_calls_that_a_stopping_gateway_holds_go_on_at_the_other(cluster: Cluster) -> None:
    phases = cluster.front.phases
    await phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_UPDATING))
    counts = [0]
    async with asyncio.timeout(200):
        while sum(counts) < len(RETRIES):
            counts = [await place.held() for place in cluster.gateways]
    place = cluster.gateways[counts.index(max(counts))]
    await place.stopping()
    assert await place.running.process.wait() == 0
    await phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_ROLLOUT))
