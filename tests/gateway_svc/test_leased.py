"""Engines that register by themselves: kept by heartbeats, shared by gateways, not used when they fall silent."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whippletree.v1 import model_pb2 as pb

from gateway_svc.settings import EngineSettings
from tests.fakes.engine import Failure, FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from whippletree.errors import EngineUnavailableError, InvalidFieldError, NotFoundError, RequestIdReusedError


@pytest.fixture
async def empty(gateway: RunningGateway) -> RunningGateway:
    """The gateway with `models/tiny` without an engine, and the rollout `a`."""
    await gateway.register_model()
    await gateway.create_rollout("a")
    return gateway


@pytest.fixture
async def other() -> AsyncIterator[FakeEngine]:
    """A second engine."""
    async with FakeEngine() as running:
        yield running


async def register(
    gateway: RunningGateway, address: str, *, engine_id: str = "e1", seconds: int = 30, request_id: str = ""
) -> pb.RegisterEngineResponse:
    engine = pb.Engine(address=address)
    engine.lease.FromSeconds(seconds)
    request = pb.RegisterEngineRequest(model="models/tiny", engine_id=engine_id, engine=engine, request_id=request_id)
    return await gateway.models.RegisterEngine(request)


async def heartbeat(gateway: RunningGateway, engine_id: str = "e1") -> pb.Engine:
    request = pb.HeartbeatEngineRequest(name=f"models/tiny/engines/{engine_id}")
    return (await gateway.models.HeartbeatEngine(request)).engine


async def engines(gateway: RunningGateway) -> list[pb.Engine]:
    return list((await gateway.models.GetModel(pb.GetModelRequest(name="models/tiny"))).model.engines)


async def until_state(gateway: RunningGateway, state: pb.EngineState.ValueType) -> pb.Engine:
    while (found := (await engines(gateway))[0]).state != state:
        await asyncio.sleep(0.01)
    return found


async def test_an_engine_registers_and_is_used(empty: RunningGateway, engine: FakeEngine) -> None:
    async with refused(EngineUnavailableError):
        await empty.generate("a", [1])
    made = await register(empty, engine.url)
    assert (made.engine.name, made.existed) == ("models/tiny/engines/e1", False)
    assert (await empty.generate("a", [1])).call.engine == engine.url
    (found,) = await engines(empty)
    assert (found.address, found.kind, found.lease.seconds) == (engine.url, pb.ENGINE_KIND_SGLANG, 30)
    assert found.state == pb.ENGINE_STATE_HEALTHY
    assert found.last_seen_time.ToMicroseconds() > 0


async def test_registering_again_replaces_the_engine(
    empty: RunningGateway, engine: FakeEngine, other: FakeEngine
) -> None:
    await register(empty, engine.url)
    assert (await register(empty, other.url)).existed
    assert [one.address for one in await engines(empty)] == [other.url]
    assert (await empty.generate("a", [1])).call.engine == other.url


async def test_registering_is_idempotent_by_request_id(empty: RunningGateway, engine: FakeEngine) -> None:
    first = await register(empty, engine.url, request_id="q")
    again = await register(empty, engine.url, request_id="q")
    assert (again.engine.address, again.existed) == (first.engine.address, False)
    async with refused(RequestIdReusedError):
        await register(empty, engine.url, seconds=31, request_id="q")
    await empty.models.DeleteEngine(pb.DeleteEngineRequest(name="models/tiny/engines/e1"))
    async with refused(NotFoundError):
        await register(empty, engine.url, request_id="q")


async def test_a_silent_engine_is_not_used_until_its_next_heartbeat(empty: RunningGateway, engine: FakeEngine) -> None:
    await register(empty, engine.url, seconds=1)
    await until_state(empty, pb.ENGINE_STATE_EXPIRED)
    async with refused(EngineUnavailableError):
        await empty.generate("a", [1])
    assert not engine.requests("/generate")
    assert (await heartbeat(empty)).state == pb.ENGINE_STATE_HEALTHY
    await register(empty, engine.url)  # for longer than the next step takes
    assert (await empty.generate("a", [1])).call.engine == engine.url


async def test_a_heartbeat_of_nobody_says_register_again(empty: RunningGateway, engine: FakeEngine) -> None:
    async with refused(NotFoundError):
        await heartbeat(empty)
    await register(empty, engine.url)
    await heartbeat(empty)
    name = "models/tiny/engines/e1"
    for _ in range(2):
        await empty.models.DeleteEngine(pb.DeleteEngineRequest(name=name))
    async with refused(NotFoundError):
        await heartbeat(empty)
    assert await engines(empty) == []


async def test_a_late_repeat_of_a_delete_removes_nothing(empty: RunningGateway, engine: FakeEngine) -> None:
    await register(empty, engine.url)
    gone = pb.DeleteEngineRequest(name="models/tiny/engines/e1", request_id="d")
    await empty.models.DeleteEngine(gone)
    await register(empty, engine.url)
    await empty.models.DeleteEngine(gone)
    assert len(await engines(empty)) == 1


async def test_a_model_takes_its_engines_with_it(empty: RunningGateway, engine: FakeEngine) -> None:
    await register(empty, engine.url)
    await empty.models.DeleteModel(pb.DeleteModelRequest(name="models/tiny"))
    async with refused(NotFoundError):
        await heartbeat(empty)
    async with refused(NotFoundError):
        await register(empty, engine.url)


async def test_a_restarted_gateway_knows_its_engines(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.register_model()
        await register(gateway, engine.url)
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        assert (await gateway.generate("a", [1])).call.engine == engine.url
        await heartbeat(gateway)


async def test_a_new_engine_gets_the_models_weights_before_its_first_generation(
    empty: RunningGateway, engine: FakeEngine, other: FakeEngine
) -> None:
    await register(empty, engine.url)
    request = pb.PublishWeightsRequest(name="models/tiny", weight_version="v1", weights_path="weights/v1")
    await empty.models.PublishWeights(request)
    await register(empty, other.url, engine_id="e2")
    await other.wait_received("/update_weights_from_disk")
    while {one.weight_version for one in await engines(empty)} != {"v1"}:
        await asyncio.sleep(0.01)
    gate = asyncio.Event()
    engine.reply = other.reply = lambda ids: Reply([5], gates={0: gate})
    calls = [asyncio.create_task(empty.generate("a", [1])) for _ in range(4)]
    await asyncio.gather(engine.wait_received("/generate"), other.wait_received("/generate"))
    gate.set()
    for call in calls:
        assert [span.weight_version for span in (await call).call.weight_versions] == ["v1"]


async def test_an_engine_that_does_not_answer_is_seen_and_comes_back(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_gateway(tmp_path, engine=EngineSettings(check_pause=0.02)) as gateway:
        await gateway.register_model(engine.url)
        engine.fail("/health", Failure(status=503), times=1000)
        await until_state(gateway, pb.ENGINE_STATE_UNREACHABLE)
        engine.failures["/health"].clear()
        await until_state(gateway, pb.ENGINE_STATE_HEALTHY)


async def test_a_failed_generation_makes_others_go_elsewhere_at_once(
    gateway: RunningGateway, engine: FakeEngine, other: FakeEngine
) -> None:
    await gateway.register_model(engine.url, other.url)
    await gateway.create_rollout("a")
    own = (await gateway.generate("a", [1])).call.engine
    broken, good = (engine, other) if own == engine.url else (other, engine)
    broken.fail("/generate", Failure(drop=True))
    assert (await gateway.generate("a", [2])).call.engine == good.url
    asked = len(broken.requests("/generate"))
    states = {one.address: one.state for one in await engines(gateway)}
    assert states[good.url] == pb.ENGINE_STATE_HEALTHY
    if states[broken.url] == pb.ENGINE_STATE_UNREACHABLE:  # nobody looked at it yet
        assert (await gateway.generate("a", [3])).call.engine == good.url
        assert len(broken.requests("/generate")) == asked
    assert len(await gateway.list_events("a")) == 2 + (states[broken.url] == pb.ENGINE_STATE_UNREACHABLE)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"engine_id": "UPPER"}, "engine_id"),
        ({"seconds": 0}, "engine.lease"),
        ({"seconds": 3601}, "engine.lease"),
        ({"address": "http://192.0.2.7:30000"}, "engine.address"),
        ({"address": "http://169.254.169.254"}, "engine.address"),
    ],
    ids=["id", "short", "long", "elsewhere", "link-local"],
)
async def test_a_wrong_engine_is_refused(empty: RunningGateway, change: dict[str, object], field: str) -> None:
    given: dict[str, object] = {"address": "http://127.0.0.1:9"} | change
    async with refused(InvalidFieldError) as caught:
        await register(empty, **given)  # type: ignore[arg-type]
    assert caught[0].metadata["field"] == field


async def test_a_model_is_not_registered_with_an_engine_elsewhere(gateway: RunningGateway) -> None:
    async with refused(InvalidFieldError) as caught:
        await gateway.register_model("http://192.0.2.7:30000")
    assert "engine.allowed" in caught[0].message
