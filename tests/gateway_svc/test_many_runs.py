"""Many runs on one gateway: two trainers never see each other, and a judge is proxied and recorded, never trained."""

import asyncio
import json
from pathlib import Path

from whippletree.v1 import event_pb2, inference_pb2, model_pb2, phase_pb2, rollout_pb2

from openai_bridge import server
from openai_bridge.settings import BridgeSettings
from tests.fakes.bridge import BODY, read, request, stub
from tests.fakes.chat_model import write_chat_model
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, packed, refused
from tests.fakes.record import delete, finish, log
from trainer_svc import forest
from trainer_svc.gateway import connected
from trainer_svc.types import RolloutId, RunId, State, Status
from whippletree.channel import connect
from whippletree.errors import NotFoundError

HELPER = model_pb2.MODEL_ROLE_AUXILIARY


async def two_runs(gateway: RunningGateway, engine: FakeEngine) -> None:
    """Runs `r` and `s` with policies of their own, each with an open rollout, and a judge for both."""
    for name in ("tiny", "other"):
        await gateway.register_model(engine.url, name=name)
    await register_judge(gateway, engine)
    await gateway.create_run("s", policy="other")
    await gateway.create_rollout("a")
    await gateway.create_rollout("x", run_id="s")


async def register_judge(gateway: RunningGateway, engine: FakeEngine, tokenizer_path: str = "") -> None:
    model = model_pb2.Model(
        name="models/judge",
        role=HELPER,
        engines=[model_pb2.Engine(address=engine.url)],
        context_length=2048,
        vocabulary_size=1024,
        tokenizer_path=tokenizer_path,
    )
    await gateway.models.RegisterModel(model_pb2.RegisterModelRequest(model=model))


async def call(gateway: RunningGateway, rollout: str, model: str, prompt: list[int]) -> inference_pb2.GenerateResponse:
    """One call whose reply its harness got."""
    request = inference_pb2.GenerateRequest(
        rollout=f"rollouts/{rollout}", attempt=1, model=f"models/{model}", prompt_token_ids=packed(prompt)
    )
    answer = await gateway.inference.Generate(request)
    mark = inference_pb2.MarkDeliveredRequest(rollout=request.rollout, call_ids=[answer.call.call_id])
    await gateway.inference.MarkDelivered(mark)
    return answer


async def set_phase(gateway: RunningGateway, run: str, phase: phase_pb2.Phase.ValueType) -> None:
    await gateway.phases.SetPhase(phase_pb2.SetPhaseRequest(run=f"runs/{run}", phase=phase))


async def test_lists_and_watches_of_a_run_show_nothing_of_another(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    for rollout in ("a", "x"):
        await log(gateway, rollout, f"of {rollout}")
    for run, mine in (("r", "a"), ("s", "x")):
        listed = await gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest(run=f"runs/{run}"))
        assert [item.name for item in listed.rollouts] == [f"rollouts/{mine}"]
        watch = aiter(gateway.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(run=f"runs/{run}")))
        assert (await anext(watch)).rollout.name == f"rollouts/{mine}"
        assert (await anext(watch)).HasField("bookmark")
        events = aiter(gateway.events.WatchEvents(event_pb2.WatchEventsRequest(parent=f"runs/{run}")))
        assert (await anext(events)).event.log.text == f"of {mine}"
        assert (await anext(events)).HasField("bookmark")


async def test_a_trainers_watch_shows_its_own_run_alone(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    await finish(gateway, "x")
    async with connected(gateway.address, patience=5) as trainer:
        seen: list[str] = []
        async for status in trainer.watch(RunId("r")):
            seen.append(status.rollout_id)
            if status.state is State.RUNNING:
                await finish(gateway, "a")
            if status.state is State.SUCCEEDED:
                break
        assert set(seen) == {"a"}


async def test_a_rollout_cannot_call_the_policy_of_another_run(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    async with refused(NotFoundError):
        await call(gateway, "a", "other", [1])
    assert (await call(gateway, "a", "tiny", [1])).call.call_id
    assert await gateway.list_events("x") == []


async def test_a_held_run_holds_no_other(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    await set_phase(gateway, "s", phase_pb2.PHASE_UPDATING)
    held = asyncio.create_task(call(gateway, "x", "other", [1]))
    assert (await call(gateway, "a", "tiny", [1])).call.call_id
    assert not held.done()
    await set_phase(gateway, "s", phase_pb2.PHASE_ROLLOUT)
    assert (await held).call.call_id


async def test_deleting_a_run_leaves_the_other_as_it_was(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    await call(gateway, "x", "other", [1])
    await delete(gateway, "r", force=True)
    assert len(await gateway.list_events("x")) == 1
    assert (await call(gateway, "x", "other", [1, 2])).call.call_id


async def test_a_judge_is_recorded_with_its_role_and_never_trained(gateway: RunningGateway, engine: FakeEngine) -> None:
    await two_runs(gateway, engine)
    await call(gateway, "a", "tiny", [1, 2])
    await call(gateway, "a", "judge", [1, 2, 5, 6, 7, 8])  # extends the policy's call: stored as an addition to it
    await call(gateway, "a", "tiny", [1, 2, 5, 6, 7, 9])
    await finish(gateway, "a")
    roles = [(event.model_call.model, event.model_call.role) for event in await gateway.list_events("a")]
    policy = model_pb2.MODEL_ROLE_POLICY
    assert roles == [("models/tiny", policy), ("models/judge", HELPER), ("models/tiny", policy)]
    async with connected(gateway.address, patience=5) as trainer:
        status = Status(rollout_id=RolloutId("a"), state=State.SUCCEEDED, attempt=1, message="")
        (of_policy,) = await trainer.records([status], "tiny")
        (of_judge,) = await trainer.records([status], "judge")
    assert [kept.model for kept in of_policy.calls] == ["tiny", "tiny"]
    samples = forest.grow(of_policy.rollout_id, of_policy.calls).samples
    assert [sample.token_ids.tolist() for sample in samples] == [[1, 2, 5, 6, 7, 9, 5, 6, 7]]
    assert of_judge.calls == (), "not even a trainer that asks for the judge by name gets its calls"


async def test_a_judge_is_called_by_name_through_the_bridge(
    gateway: RunningGateway, engine: FakeEngine, tmp_path: Path
) -> None:
    model = str(write_chat_model(tmp_path / "model"))
    await gateway.register_model(engine.url, tokenizer_path=model)
    await gateway.register_model(engine.url, name="other", tokenizer_path=model)
    await register_judge(gateway, engine, model)
    await gateway.create_rollout("a")
    async with (
        server.serving(BridgeSettings(gateway=gateway.address, grace=0, insecure_dev=True)) as ports,
        connect(f"127.0.0.1:{ports.grpc}") as channel,
    ):
        asked = {}
        for name in ("judge", "other"):
            body = json.dumps({**BODY, "model": name}).encode()
            asked[name] = await read(stub(channel).ChatCompletions(request(body, "a")))
    assert asked["judge"][0] == 200
    assert asked["other"][0] == 404, "another run's policy is not there for this rollout"
    (event,) = await gateway.list_events("a")
    assert (event.model_call.model, event.model_call.role) == ("models/judge", HELPER)
