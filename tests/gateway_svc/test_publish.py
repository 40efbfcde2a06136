"""Weights: published to every engine while generations are held, and restored where an engine lost them."""

import asyncio
from pathlib import Path

import pytest
from whippletree.v1 import inference_pb2, model_pb2, phase_pb2

from tests.fakes.engine import Failure, FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from whippletree.errors import (
    AlreadyExistsError,
    EngineUnavailableError,
    InvalidFieldError,
    NotFoundError,
    RequestIdReusedError,
)


def published(
    version: str = "v1",
    path: str = "",
    *,
    name: str = "models/tiny",
    request_id: str = "",
    in_flight: phase_pb2.InFlight.ValueType = phase_pb2.IN_FLIGHT_FINISH,
) -> model_pb2.PublishWeightsRequest:
    return model_pb2.PublishWeightsRequest(
        name=name,
        weight_version=version,
        weights_path=path or f"weights/{version}",
        request_id=request_id,
        in_flight=in_flight,
    )


def versions(answer: inference_pb2.GenerateResponse) -> list[str]:
    return [span.weight_version for span in answer.call.weight_versions]


async def test_new_weights_are_loaded_flushed_and_used(ready: RunningGateway, engine: FakeEngine) -> None:
    model = (await ready.models.PublishWeights(published())).model
    assert (model.weight_version, model.weights_path) == ("v1", "weights/v1")
    assert model.engines[0].weight_version == "v1"
    sent = engine.requests("/update_weights_from_disk")[0].body
    assert (sent["model_path"], sent["weight_version"]) == ("weights/v1", "v1")
    assert engine.flushes == 1
    assert versions(await ready.generate("a", [1])) == ["v1"]


async def test_publishing_the_same_version_again_does_nothing(ready: RunningGateway, engine: FakeEngine) -> None:
    for again in (published(request_id="p"), published(request_id="p"), published()):
        model = (await ready.models.PublishWeights(again)).model
        assert (model.weight_version, model.weights_path) == ("v1", "weights/v1")
    assert len(engine.requests("/update_weights_from_disk")) == 1
    async with refused(AlreadyExistsError):
        await ready.models.PublishWeights(published(path="elsewhere"))
    async with refused(RequestIdReusedError):
        await ready.models.PublishWeights(published("v2", request_id="p"))


async def test_a_repeat_that_comes_late_brings_no_older_weights_back(ready: RunningGateway, engine: FakeEngine) -> None:
    await ready.models.PublishWeights(published(request_id="p"))
    await ready.models.PublishWeights(published(request_id="same"))  # nothing to do, and yet remembered
    await ready.models.PublishWeights(published("v2"))
    for request_id in ("p", "same"):
        late = (await ready.models.PublishWeights(published(request_id=request_id))).model
        assert (late.weight_version, late.weights_path) == ("v1", "weights/v1")
    assert len(engine.requests("/update_weights_from_disk")) == 2
    assert versions(await ready.generate("a", [1])) == ["v2"]


async def test_generations_in_flight_finish_and_new_ones_wait(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    old = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    publishing = asyncio.create_task(publish(ready))
    new = await calls_until_one_is_held(ready)
    assert not engine.requests("/update_weights_from_disk")
    gate.set()
    assert versions(await old) == ["default"]
    await publishing
    answers = await asyncio.gather(*new)
    late = [answer for answer in answers if answer.call.hold_duration.ToMicroseconds()]
    assert late
    assert [versions(answer) for answer in late] == [["v1"]] * len(late)


async def publish(gateway: RunningGateway) -> None:
    await gateway.models.PublishWeights(published())


async def calls_until_one_is_held(gateway: RunningGateway) -> list[asyncio.Task[inference_pb2.GenerateResponse]]:
    """Generations, one after another, until a publish has begun; those that came before it are in flight."""
    begun: list[asyncio.Task[inference_pb2.GenerateResponse]] = []
    while not (await gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).held_count:
        begun.append(asyncio.create_task(gateway.generate("a", [1])))
    return begun


async def test_weights_that_cannot_be_loaded_leave_the_old_ones(ready: RunningGateway, engine: FakeEngine) -> None:
    await ready.models.PublishWeights(published())
    answer = {"success": False, "message": "no such folder"}
    engine.fail("/update_weights_from_disk", Failure(status=400, body=answer))
    async with refused(InvalidFieldError) as caught:
        await ready.models.PublishWeights(published("v2"))
    assert "no such folder" in caught[0].message
    engine.fail("/update_weights_from_disk", Failure(drop=True))
    async with refused(EngineUnavailableError):
        await ready.models.PublishWeights(published("v2"))
    assert versions(await ready.generate("a", [1])) == ["v1"]
    await ready.models.PublishWeights(published("v2"))
    assert versions(await ready.generate("a", [1])) == ["v2"]


async def test_an_engine_that_missed_a_publish_catches_up_before_it_is_used(
    gateway: RunningGateway, engine: FakeEngine
) -> None:
    async with FakeEngine() as other:
        await gateway.register_model(engine.url, other.url)
        await gateway.create_rollout("a")
        other.fail("/update_weights_from_disk")
        model = (await gateway.models.PublishWeights(published())).model
        assert {one.address: one.weight_version for one in model.engines} == {engine.url: "v1", other.url: ""}
        engine.reply = other.reply = lambda ids: Reply([5], gates={0: gate})
        gate = asyncio.Event()
        while len({one.weight_version for one in (await get_model(gateway)).engines}) > 1:
            pass
        calls = [asyncio.create_task(gateway.generate("a", [1])) for _ in range(4)]
        await asyncio.gather(engine.wait_received("/generate"), other.wait_received("/generate"))
        gate.set()
        assert [versions(await one) for one in calls] == [["v1"]] * 4
        assert other.weight_version == "v1"


async def get_model(gateway: RunningGateway) -> model_pb2.Model:
    return (await gateway.models.GetModel(model_pb2.GetModelRequest(name="models/tiny"))).model


async def test_an_engine_that_was_restarted_gets_the_newest_weights(ready: RunningGateway, engine: FakeEngine) -> None:
    await ready.models.PublishWeights(published())
    engine.weight_version, engine.model_path = "default", "models/tiny0"  # as a new process has them
    assert versions(await ready.generate("a", [1])) == ["v1"]
    assert [one.body["model_path"] for one in engine.requests("/update_weights_from_disk")] == ["weights/v1"] * 2
    listed = await ready.list_events("a")
    assert [span.weight_version for event in listed for span in event.model_call.weight_versions] == ["v1"]


async def test_an_engine_that_was_gone_is_looked_at_before_it_is_used(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    await ready.models.PublishWeights(published())
    engine.fail("/generate", Failure(drop=True))
    engine.weight_version = "default"
    assert versions(await ready.generate("a", [1])) == ["v1"]
    assert len(engine.requests("/generate")) == 2, "nothing was sampled with the old weights"


async def test_a_gateway_remembers_weights_and_loads_them_into_a_fresh_engine(
    tmp_path: Path, engine: FakeEngine
) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        await gateway.models.PublishWeights(published("v3"))
    engine.weight_version = "default"
    async with running_gateway(tmp_path) as gateway:
        again = await gateway.register_model(engine.url, context_length=1024)
        assert (again.weight_version, again.weights_path, again.context_length) == ("v3", "weights/v3", 1024)
        assert versions(await gateway.generate("a", [1])) == ["v3"]


async def test_a_publish_goes_on_when_its_caller_goes_away(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    old = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    call = ready.models.PublishWeights(published())
    new = await calls_until_one_is_held(ready)
    call.cancel()
    gate.set()
    await asyncio.gather(old, *new)
    await engine.wait_received("/flush_cache")
    await ready.models.PublishWeights(published())
    assert len(engine.requests("/update_weights_from_disk")) == 1


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (published(name="models/none"), NotFoundError),
        (published(name="tiny"), InvalidFieldError),
        (model_pb2.PublishWeightsRequest(name="models/tiny", weights_path="x"), InvalidFieldError),
        (model_pb2.PublishWeightsRequest(name="models/tiny", weight_version="x"), InvalidFieldError),
    ],
    ids=["unknown", "name", "version", "path"],
)
async def test_a_wrong_publish_is_refused(
    ready: RunningGateway, asked: model_pb2.PublishWeightsRequest, error: type[InvalidFieldError]
) -> None:
    async with refused(error):
        await ready.models.PublishWeights(asked)


async def test_a_generation_that_is_tried_again_uses_the_weights_of_then(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    await ready.models.PublishWeights(published("v1"))
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    running = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    await ready.register_model(engine.url, weight_version="v2", weights_path="weights/v2")
    engine.reply = lambda ids: Reply([5])
    engine.abort_where(lambda rid: True)  # a failure, since nobody asked for it
    assert versions(await running) == ["v2"]
