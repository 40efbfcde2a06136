"""Several gateways on one PostgreSQL database: nothing is skipped, nothing happens twice, and a publish drains all."""

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import grpc
import httpx
import psycopg
import pytest
from whippletree.v1 import event_pb2, inference_pb2, model_pb2, phase_pb2, rollout_pb2

from gateway_svc.postgresql import conninfo
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, gateway_process, record_of, refused, running_gateway
from tests.fakes.record import hidden
from tests.fakes.stack import envoy, taken_for_a_bridge
from whippletree.channel import connect
from whippletree.errors import NotFoundError, SupersededError, WhippletreeError, from_rpc_error

DATABASES = ("postgresql",)
PUBLISH = model_pb2.PublishWeightsRequest(name="models/tiny", weight_version="v1", weights_path="weights/v1")


@pytest.fixture
async def replicas(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[tuple[RunningGateway, RunningGateway]]:
    """Two gateways on one record, with the run `r` and the model `tiny`."""
    async with running_gateway(tmp_path) as one, running_gateway(tmp_path) as two:
        await one.create_run("r")
        await two.register_model(engine.url)
        yield one, two


Pair = tuple[RunningGateway, RunningGateway]


async def start(gateway: RunningGateway, name: str, worker: str) -> str:
    try:
        await gateway.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name=f"rollouts/{name}", worker=worker))
        return worker
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason


async def test_one_of_two_replicas_starts_an_attempt(replicas: Pair) -> None:
    one, two = replicas
    for number in range(20):
        await one.create_rollout(f"a{number}", start=False)
        answers = await asyncio.gather(start(one, f"a{number}", "w1"), start(two, f"a{number}", "w2"))
        assert sorted(answers) in (["WRONG_STATE", "w1"], ["WRONG_STATE", "w2"])
        found = await two.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name=f"rollouts/a{number}"))
        assert found.rollout.attempt == 1


async def test_a_request_sent_to_both_happens_once_and_gets_one_answer(replicas: Pair) -> None:
    one, two = replicas
    await one.create_rollout("a")
    for number in range(20):
        asked = event_pb2.AppendEventRequest(
            parent="rollouts/a", attempt=1, reward=event_pb2.Reward(value=number), request_id=f"q{number}"
        )
        first, second = await asyncio.gather(one.events.AppendEvent(asked), two.events.AppendEvent(asked))
        assert first == second
    assert len(await two.list_events("a")) == 20


async def test_a_call_sent_to_both_is_recorded_once(replicas: Pair) -> None:
    one, two = replicas
    await one.create_rollout("a")
    first, second = await asyncio.gather(one.generate("a", [1], request_id="k"), two.generate("a", [1], request_id="k"))
    assert first.call.call_id == second.call.call_id
    assert first.response_token_ids == second.response_token_ids
    assert len(await one.list_events("a")) == 1


async def changes(gateway: RunningGateway, count: int) -> list[tuple[str, int]]:
    """What a watch sends until `count` rollouts have ended: name and state."""
    seen: list[tuple[str, int]] = []
    ended: set[str] = set()
    async with asyncio.timeout(60):
        async for message in gateway.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(run="runs/r")):
            if message.WhichOneof("record") == "rollout":
                seen.append((message.rollout.name, message.rollout.state))
                if message.rollout.state == rollout_pb2.ROLLOUT_STATE_SUCCEEDED:
                    ended.add(message.rollout.name)
            if len(ended) == count:
                break
    return seen


async def test_watchers_at_both_replicas_miss_no_change_of_either(replicas: Pair) -> None:
    watching = [asyncio.create_task(changes(gateway, 60)) for gateway in replicas]

    async def churn(gateway: RunningGateway, prefix: str) -> None:
        for number in range(10):
            name = (await gateway.create_rollout(f"{prefix}{number}")).name
            end = rollout_pb2.ROLLOUT_STATE_SUCCEEDED
            await gateway.rollouts.TransitionRollout(rollout_pb2.TransitionRolloutRequest(name=name, state=end))

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(churn(replicas[number % 2], f"w{number}-"))
    for seen in await asyncio.gather(*watching):
        last = dict(seen)
        assert len(last) == 60
        assert set(last.values()) == {rollout_pb2.ROLLOUT_STATE_SUCCEEDED}


async def test_events_have_one_sequence_without_gaps(replicas: Pair) -> None:
    await replicas[0].create_rollout("a")

    async def append(gateway: RunningGateway, number: int) -> int:
        log = event_pb2.Log(stream="s", text=str(number))
        asked = event_pb2.AppendEventRequest(parent="rollouts/a", attempt=1, log=log)
        return (await gateway.events.AppendEvent(asked)).event.sequence

    given = await asyncio.gather(*(append(replicas[number % 2], number) for number in range(200)))
    assert sorted(given) == list(range(1, 201))


async def test_what_one_replica_was_told_the_other_knows_at_once(replicas: Pair, engine: FakeEngine) -> None:
    one, two = replicas
    for number in range(10):
        await one.create_run(f"run{number}", policy=f"m{number}")
        await two.register_model(engine.url, name=f"m{number}")
        await two.create_rollout(f"a{number}", f"run{number}")
        assert (await one.generate(f"a{number}", [1])).response_token_ids
    await one.models.DeleteModel(model_pb2.DeleteModelRequest(name="models/m3"))
    async with refused(NotFoundError):
        await two.generate("a3", [2])


async def publish(gateway: RunningGateway) -> None:
    await gateway.models.PublishWeights(PUBLISH)


async def held(gateway: RunningGateway) -> int:
    return (await gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).held_count


async def test_a_publish_at_one_replica_drains_the_other(replicas: Pair, engine: FakeEngine) -> None:
    one, two = replicas
    await one.create_rollout("a")
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    old = asyncio.create_task(one.generate("a", [1]))
    await engine.wait_received("/generate")
    publishing = asyncio.create_task(publish(two))
    new: list[asyncio.Task[inference_pb2.GenerateResponse]] = []
    while not await held(one):
        new.append(asyncio.create_task(one.generate("a", [2])))
    assert not engine.requests("/update_weights_from_disk")
    gate.set()
    assert [span.weight_version for span in (await old).call.weight_versions] == ["default"]
    await publishing
    await asyncio.gather(*new)
    late = await one.generate("a", [3])
    assert [span.weight_version for span in late.call.weight_versions] == ["v1"]
    assert len(engine.requests("/update_weights_from_disk")) == 1


async def test_a_publish_at_one_replica_interrupts_the_other(replicas: Pair, engine: FakeEngine) -> None:
    one, two = replicas
    await one.create_rollout("a")
    replies = iter([Reply([5, 6], gates={1: asyncio.Event()}), Reply([7])])
    engine.reply = lambda ids: next(replies)
    call = asyncio.create_task(one.generate("a", [1]))
    (asked,) = await engine.wait_received("/generate")
    await engine.wait_tokens(asked.body["rid"], 1)
    request = model_pb2.PublishWeightsRequest()
    request.CopyFrom(PUBLISH)
    request.in_flight = phase_pb2.IN_FLIGHT_INTERRUPT
    await two.models.PublishWeights(request)
    answer = await call
    assert [(span.weight_version, span.end) for span in answer.call.weight_versions] == [("default", 1), ("v1", 2)]
    assert len(await two.list_events("a")) == 1


async def test_an_engine_registered_at_one_replica_is_used_by_the_other(replicas: Pair, engine: FakeEngine) -> None:
    one, two = replicas
    await one.register_model()
    await one.create_rollout("a")
    added = model_pb2.RegisterEngineRequest(model="models/tiny", engine_id="e")
    added.engine.address = engine.url
    await two.models.RegisterEngine(added)
    while not (await one.models.GetModel(model_pb2.GetModelRequest(name="models/tiny"))).model.engines:
        await asyncio.sleep(0.05)
    assert (await one.generate("a", [1])).call.engine == engine.url
    await one.models.HeartbeatEngine(model_pb2.HeartbeatEngineRequest(name="models/tiny/engines/e"))


async def test_two_replicas_asked_for_the_same_weights_load_them_once(replicas: Pair, engine: FakeEngine) -> None:
    both = await asyncio.gather(*(gateway.models.PublishWeights(PUBLISH) for gateway in replicas))
    assert [answer.model.weight_version for answer in both] == ["v1", "v1"]
    assert len(engine.requests("/update_weights_from_disk")) == 1


async def test_a_phase_set_at_one_replica_holds_at_the_other(replicas: Pair, engine: FakeEngine) -> None:
    one, two = replicas
    await one.create_rollout("a")
    await one.generate("a", [1])
    await two.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_UPDATING))
    waiting = asyncio.create_task(one.generate("a", [2]))
    while not await held(one):
        assert not waiting.done()
    assert len(engine.requests("/generate")) == 1
    await two.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_ROLLOUT))
    await waiting


async def test_a_phase_set_at_one_replica_ends_the_wait_for_an_earlier_one_at_the_other(
    replicas: Pair, engine: FakeEngine
) -> None:
    one, two = replicas
    await one.create_rollout("a")
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    running = asyncio.create_task(one.generate("a", [1]))
    await engine.wait_received("/generate")
    drain = phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_DRAINING)
    draining = asyncio.ensure_future(one.phases.SetPhase(drain))
    while (await two.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).phase != drain.phase:
        pass
    await two.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_ROLLOUT))
    async with asyncio.timeout(20), refused(SupersededError):
        await draining
    gate.set()
    await running


async def test_what_is_held_hears_of_phases_also_after_runs_could_not_be_read(
    tmp_path: Path, replicas: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = replicas
    await one.create_rollout("a")
    await two.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_UPDATING))
    waiting = asyncio.create_task(one.generate("a", [1]))
    while not await held(one):
        assert not waiting.done()
    async with asyncio.timeout(20):
        with hidden(tmp_path, "models"):
            await two.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_ROLLOUT))
            while "runs and models could not be read" not in caplog.text:
                await asyncio.sleep(0.01)
        await waiting


async def test_a_killed_replica_keeps_nobody_from_publishing(tmp_path: Path, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    async with running_gateway(tmp_path) as one:
        await one.create_run("r")
        await one.register_model(engine.url)
        await one.create_rollout("a")
        async with gateway_process(tmp_path) as (two, process):
            engine.reply = lambda ids: Reply([5], gates={0: gate})
            cut = asyncio.create_task(two.generate("a", [1], request_id="k"))
            await engine.wait_received("/generate")
            publishing = asyncio.create_task(publish(one))
            process.kill()
            await asyncio.wait([cut])
            await publishing
        gate.set()
        again = await one.generate("a", [1], request_id="k")
        assert [span.weight_version for span in again.call.weight_versions] == ["v1"]
        assert len(await one.list_events("a")) == 1


async def test_a_watch_goes_on_at_the_other_replica(replicas: Pair) -> None:
    one, two = replicas
    await one.create_rollout("a", start=False)
    token = ""
    async for message in one.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest()):
        token = message.resume_token
        if message.WhichOneof("record") == "bookmark":
            break
    await one.create_rollout("b", start=False)
    async for message in two.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(resume_token=token)):
        assert message.rollout.name == "rollouts/b"
        break


async def test_replicas_that_start_together_make_one_schema(tmp_path: Path) -> None:
    async def serve_once() -> None:
        async with running_gateway(tmp_path / "new") as gateway, refused(WhippletreeError):
            await gateway.generate("none", [1])

    await asyncio.gather(*(serve_once() for _ in range(3)))


def cut_connections(folder: Path) -> int:
    """Break every connection to the folder's database, as a restart of the server does; how many there were."""
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    with psycopg.connect(conninfo(str(record_of(folder))), autocommit=True) as connection:
        return len(connection.execute(query + "AND pid <> pg_backend_pid()").fetchall())


async def test_broken_connections_to_the_database_are_made_anew(replicas: Pair, tmp_path: Path) -> None:
    one, two = replicas
    await one.create_rollout("a")
    await one.generate("a", [1])
    await two.generate("a", [2])
    watching = asyncio.create_task(changes(two, 1))
    for turn in range(2):
        assert cut_connections(tmp_path)
        name = f"b{turn}"
        await again(partial(one.create_rollout, name, start=False))
        await again(partial(start_once, two, name))
        await again(partial(one.generate, name, [1], request_id=f"g1-{name}"))
        await again(partial(two.generate, name, [2], request_id=f"g2-{name}"))
        assert [event.sequence for event in await two.list_events(name)] == [3 + 2 * turn, 4 + 2 * turn]
    await publish(two)
    end = rollout_pb2.TransitionRolloutRequest(name="rollouts/a", state=rollout_pb2.ROLLOUT_STATE_SUCCEEDED)
    await one.rollouts.TransitionRollout(end)
    if (await asyncio.gather(watching, return_exceptions=True))[0].__class__ is not list:
        assert (await changes(two, 1))[-1][0] == "rollouts/a", "a watch that was cut is begun again"


@pytest.fixture
async def front(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[tuple[RunningGateway, list[Process]]]:
    """Envoy in front of two gateway processes on one record."""
    async with (
        gateway_process(tmp_path) as (one, first),
        gateway_process(tmp_path) as (two, second),
        taken_for_a_bridge() as bridge,
        envoy(gateway=f"{one.address},{two.address}", bridge=bridge, folder=tmp_path) as url,
        connect(url.removeprefix("http://")) as channel,
    ):
        front = RunningGateway(address=url.removeprefix("http://"), channel=channel)
        await front.create_run("r")
        await front.register_model(engine.url)
        yield front, [first, second]


async def test_a_rollout_stays_with_one_replica_behind_envoy(
    front: tuple[RunningGateway, list[Process]], tmp_path: Path
) -> None:
    gateway, _ = front
    names = [f"a{number}" for number in range(40)]  # all at one of the two: once in 10^12 runs
    for name in names:
        await gateway.create_rollout(name)
        for _ in range(3):
            request = rollout_pb2.GetRolloutRequest(name=f"rollouts/{name}")
            await gateway.rollouts.GetRollout(request, metadata=(("whippletree-rollout", name),))
    async with httpx.AsyncClient() as client:  # a rollout's path says the same
        assert (await client.get(f"http://{gateway.address}/api/rollouts/a0")).json()["rollout"]["state"]
    places: dict[str, set[str]] = {}
    while len(places) < len(names) or min(map(len, places.values())) < 1:
        for line in (tmp_path / "access.log").read_text().splitlines():
            entry = json.loads(line)
            if entry["rpc"].endswith("/GetRollout") and entry["rollout"]:
                places.setdefault(entry["rollout"], set()).add(entry["upstream"])
        await asyncio.sleep(0.05)
    assert [len(place) for place in places.values()] == [1] * len(names)
    assert len(set.union(*places.values())) == 2, "both have rollouts"


async def test_work_behind_envoy_goes_on_when_a_replica_is_killed(
    front: tuple[RunningGateway, list[Process]], engine: FakeEngine
) -> None:
    gateway, processes = front
    stop = asyncio.Event()
    done: list[str] = []

    async def play(name: str) -> None:
        await again(lambda: gateway.create_rollout(name, start=False))
        await again(lambda: start_once(gateway, name))
        await again(lambda: gateway.generate(name, [1, 2], request_id=f"g-{name}"))
        done.append(name)

    async def work(worker: int) -> None:
        turn = 0
        while not stop.is_set():
            await play(f"w{worker}-{turn}")
            turn += 1

    async with asyncio.TaskGroup() as group:
        for worker in range(4):
            group.create_task(work(worker))
        while len(done) < 20:
            await asyncio.sleep(0.01)
        processes[0].kill()
        before = len(done)
        while len(done) < before + 40:
            await asyncio.sleep(0.01)
        await again(lambda: publish(gateway))
        stop.set()
    found = [await gateway.list_events(name) for name in done]
    assert [len(events) for events in found] == [1] * len(done), "each call is there, once"
    sequences = sorted(event.sequence for events in found for event in events)
    assert len(set(sequences)) == len(sequences)


async def start_once(gateway: RunningGateway, name: str) -> None:
    await gateway.rollouts.StartRollout(
        rollout_pb2.StartRolloutRequest(name=f"rollouts/{name}", worker="w", request_id=f"s-{name}")
    )


async def again(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call on UNAVAILABLE, as every client of ours does."""
    while True:
        try:
            await call()
            return
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.05)
