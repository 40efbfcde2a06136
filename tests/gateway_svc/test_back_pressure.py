"""Many generations at once: as many as are asked for, or as the settings say, and never another number."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whippletree.v1 import inference_pb2, model_pb2, phase_pb2

from gateway_svc.settings import EngineSettings
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from whippletree.errors import OverloadedError

DATABASES = ("sqlite",)


@pytest.fixture
async def limited(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that lets 2 generations to an engine and 3 wait."""
    async with running_gateway(tmp_path, engine=EngineSettings(max_in_flight=2, max_waiting=3)) as running:
        await running.create_run("r")
        yield running


def begin(gateway: RunningGateway, number: int) -> "asyncio.Task[inference_pb2.GenerateResponse]":
    return asyncio.create_task(gateway.generate("a", [1, number]))


async def phase(gateway: RunningGateway) -> phase_pb2.GetPhaseResponse:
    return await gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))


async def until_in_flight(gateway: RunningGateway, count: int) -> None:
    """Return when so many have passed the gates, whether they are at an engine or wait for one."""
    while (await phase(gateway)).in_flight_count != count:
        await asyncio.sleep(0.005)


def prompts(engine: FakeEngine) -> list[int]:
    return [one.body["input_ids"][1] for one in engine.requests("/generate")]


async def test_hundreds_of_generations_are_at_the_engine_at_once(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    calls = [begin(ready, number) for number in range(300)]
    await engine.wait_received("/generate", 300)
    assert (await phase(ready)).in_flight_count == 300
    model = (await ready.models.GetModel(model_pb2.GetModelRequest(name="models/tiny"))).model
    assert model.engines[0].in_flight_count == 300
    gate.set()
    assert len({(await call).call.call_id for call in calls}) == 300


async def test_above_its_limit_an_engine_gets_nothing_and_those_that_wait_come_in_their_order(
    limited: RunningGateway, engine: FakeEngine
) -> None:
    gates = [asyncio.Event() for _ in range(5)]
    await limited.register_model(engine.url)
    await limited.create_rollout("a")
    engine.reply = lambda ids: Reply([5], gates={0: gates[ids[1]]})
    calls = []
    for number in range(5):
        calls.append(begin(limited, number))
        await until_in_flight(limited, number + 1)
    await engine.wait_received("/generate", 2)
    assert prompts(engine) == [0, 1]
    gates[1].set()
    await engine.wait_received("/generate", 3)
    gates[0].set()
    await engine.wait_received("/generate", 4)
    assert prompts(engine) == [0, 1, 2, 3]
    for gate in gates:
        gate.set()
    await asyncio.gather(*calls)
    assert prompts(engine) == [0, 1, 2, 3, 4]


async def test_when_the_line_is_full_a_caller_is_told_when_to_come_again(
    limited: RunningGateway, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    await limited.register_model(engine.url)
    await limited.create_rollout("a")
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    calls = [begin(limited, number) for number in range(5)]
    await until_in_flight(limited, 5)
    async with refused(OverloadedError) as caught:
        await limited.generate("a", [1, 5])
    assert caught[0].retry_after
    gate.set()
    await asyncio.gather(*calls)
    assert (await limited.generate("a", [1, 6])).call.call_id


async def test_one_that_waits_may_go_away(limited: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    await limited.register_model(engine.url)
    await limited.create_rollout("a")
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    calls = [begin(limited, number) for number in range(4)]
    await until_in_flight(limited, 4)
    await engine.wait_received("/generate", 2)
    waiting = next(number for number in range(4) if number not in prompts(engine))
    calls[waiting].cancel()
    await until_in_flight(limited, 3)
    gate.set()
    await asyncio.gather(*(call for number, call in enumerate(calls) if number != waiting))
    assert sorted(prompts(engine)) == [number for number in range(4) if number != waiting]


async def test_those_that_wait_do_not_hold_up_new_weights(limited: RunningGateway, engine: FakeEngine) -> None:
    gates = {number: asyncio.Event() for number in range(4)}
    await limited.register_model(engine.url)
    await limited.create_rollout("a")
    engine.reply = lambda ids: Reply([5], gates={0: gates[ids[1]]})
    calls = [begin(limited, number) for number in range(4)]
    await until_in_flight(limited, 4)
    await engine.wait_received("/generate", 2)
    at_work = prompts(engine)
    engine.loading.clear()
    request = model_pb2.PublishWeightsRequest(name="models/tiny", weight_version="v1", weights_path="weights/v1")
    publishing = asyncio.ensure_future(limited.models.PublishWeights(request))
    await until_in_flight(limited, 2)
    assert (await phase(limited)).held_count == 2
    for number in at_work:
        gates[number].set()
    await engine.wait_received("/update_weights_from_disk")
    assert prompts(engine) == at_work
    engine.loading.set()
    await publishing
    for gate in gates.values():
        gate.set()
    versions = {
        number: [span.weight_version for span in (await call).call.weight_versions] for number, call in enumerate(calls)
    }
    assert versions == {number: ["default" if number in at_work else "v1"] for number in range(4)}


async def test_an_engine_may_name_its_own_limit(limited: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    model = model_pb2.Model(name="models/tiny", context_length=2048, vocabulary_size=1024)
    model.engines.add(address=engine.url, max_in_flight=4)
    await limited.models.RegisterModel(model_pb2.RegisterModelRequest(model=model))
    await limited.create_rollout("a")
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    calls = [begin(limited, number) for number in range(5)]
    await engine.wait_received("/generate", 4)
    await until_in_flight(limited, 5)
    assert len(prompts(engine)) == 4
    gate.set()
    await asyncio.gather(*calls)
