"""A real gateway, scraped as Prometheus does it."""

import asyncio
from pathlib import Path

from whippletree.v1 import phase_pb2

from tests.fakes.engine import Failure, FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused, running_gateway
from tests.fakes.scrape import listener, scrape, scrape_until
from whippletree.errors import EngineUnavailableError, TokenOutOfVocabularyError


async def test_calls_are_counted_by_what_they_were_and_what_they_cost(tmp_path: Path) -> None:
    metrics = listener()
    async with (
        FakeEngine(lambda ids: Reply([5, 6, 7])) as engine,
        running_gateway(tmp_path, metrics=metrics) as gateway,
    ):
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        for request_id in ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"):
            await gateway.generate("a", [1, 2, 3, 4], request_id=request_id)
        await gateway.generate("a", [1, 2, 3, 4], request_id="11111111-1111-4111-8111-111111111111")
        found = await scrape_until(metrics, lambda s: s.value("whippletree_gateway_repeats_total") == 1)
        call = {"model": "tiny", "dialect": "openai.chat", "mode": "train"}
        assert found.value("whippletree_gateway_calls_total", **call) == 2
        assert found.value("whippletree_gateway_tokens_total", model="tiny", part="prompt") == 8
        assert found.value("whippletree_gateway_tokens_total", model="tiny", part="response") == 6
        assert found.value("whippletree_gateway_repeats_total", how="replayed") == 1
        assert found.value("whippletree_gateway_engine_seconds_count", model="tiny") == 2
        assert found.value("whippletree_gateway_commit_operations_sum") >= 6
        assert found.value("whippletree_gateway_store_writable") == 1
        assert "a" not in {value for sample in found.samples for value in sample.labels.values()}


async def test_what_is_under_way_and_what_is_held_is_shown_by_run_and_model(tmp_path: Path) -> None:
    metrics, gate = listener(), asyncio.Event()
    async with (
        FakeEngine(lambda ids: Reply([5], gates={0: gate})) as engine,
        running_gateway(tmp_path, metrics=metrics) as gateway,
    ):
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        first = asyncio.create_task(gateway.generate("a", [1]))
        await engine.wait_received("/generate")
        drain = phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_UPDATING)
        closing = asyncio.ensure_future(gateway.phases.SetPhase(drain))
        while await phase_of(gateway) == phase_pb2.PHASE_ROLLOUT:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(gateway.generate("a", [2]))
        found = await scrape_until(metrics, lambda s: s.value("whippletree_gateway_run_generations_held", run="r") == 1)
        assert found.value("whippletree_gateway_run_generations_in_flight", run="r") == 1
        assert found.value("whippletree_gateway_model_generations_in_flight", model="tiny") == 1
        gate.set()
        await asyncio.gather(first, closing)
        await gateway.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase_pb2.PHASE_ROLLOUT))
        await second
        found = await scrape(metrics)
        assert found.value("whippletree_gateway_hold_seconds_count", model="tiny") >= 1
        assert "whippletree_gateway_run_generations_held" not in found.names  # nothing under way: no label is left


async def phase_of(gateway: RunningGateway) -> phase_pb2.Phase.ValueType:
    return (await gateway.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).phase


async def test_rollouts_are_counted_by_state(tmp_path: Path) -> None:
    metrics = listener()
    async with running_gateway(tmp_path, metrics=metrics) as gateway:
        await gateway.register_model("http://127.0.0.1:9")
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        await gateway.create_rollout("b", start=False)
        found = await scrape(metrics)
        assert {state: found.value("whippletree_gateway_rollouts", state=state) for state in ("running", "queued")} == {
            "running": 1,
            "queued": 1,
        }


async def test_failures_are_counted_by_what_callers_are_told(tmp_path: Path) -> None:
    metrics = listener()
    async with FakeEngine() as engine, running_gateway(tmp_path, metrics=metrics) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        async with refused(TokenOutOfVocabularyError):
            await gateway.generate("a", [99999])
        engine.fail("/generate", Failure(drop=True), times=100)
        async with refused(EngineUnavailableError):
            await gateway.generate("a", [1])
        found = await scrape(metrics)
        reasons = ("TOKEN_OUT_OF_VOCABULARY", "ENGINE_UNAVAILABLE")
        assert [found.value("whippletree_gateway_generation_failures_total", reason=reason) for reason in reasons] == [
            1,
            1,
        ]
