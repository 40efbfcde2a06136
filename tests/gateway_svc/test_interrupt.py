"""Interrupted generations: they leave their engine when weights change, and go on by the new ones, recorded once."""

import asyncio
import itertools
from collections.abc import Sequence

from whippletree.v1 import inference_pb2, model_call_pb2, model_pb2, phase_pb2

from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, packed, refused
from whippletree.errors import HeldTooLongError
from whippletree.tokens import unpack_ids

INTERRUPT = phase_pb2.IN_FLIGHT_INTERRUPT


def publish(gateway: RunningGateway, version: str = "v1") -> "asyncio.Future[model_pb2.PublishWeightsResponse]":
    request = model_pb2.PublishWeightsRequest(
        name="models/tiny", weight_version=version, weights_path=f"weights/{version}", in_flight=INTERRUPT
    )
    return asyncio.ensure_future(gateway.models.PublishWeights(request))


async def set_phase(gateway: RunningGateway, phase: phase_pb2.Phase.ValueType) -> None:
    await gateway.phases.SetPhase(phase_pb2.SetPhaseRequest(run="runs/r", phase=phase, in_flight=INTERRUPT))


def parts(*replies: Sequence[int], after: int = 1) -> tuple[list[asyncio.Event], list[Reply]]:
    """Replies that stand still after their first tokens, each until its event; the last goes through."""
    events = [asyncio.Event() for _ in replies[:-1]]
    held = [Reply(ids, gates={after: event}) for ids, event in zip(replies, events, strict=False)]
    return events, [*held, Reply(replies[-1])]


def scripted(engine: FakeEngine, replies: list[Reply]) -> None:
    waiting = iter(replies)
    engine.reply = lambda ids: next(waiting)


def spans(answer: inference_pb2.GenerateResponse) -> list[tuple[str, int, int]]:
    return [(span.weight_version, span.start, span.end) for span in answer.call.weight_versions]


def ids(answer: inference_pb2.GenerateResponse) -> list[int]:
    found: list[int] = unpack_ids(answer.response_token_ids).tolist()
    return found


async def test_a_generation_goes_on_under_new_weights_with_the_tokens_it_has(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    _, replies = parts([5, 6, 7], [8, 9], after=2)
    scripted(engine, replies)
    call = asyncio.create_task(ready.generate("a", [1, 2], max_tokens=16))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 2)
    await publish(ready)
    answer = await call
    assert ids(answer) == [5, 6, 8, 9]
    assert spans(answer) == [("default", 0, 2), ("v1", 2, 4)]
    second = engine.requests("/generate")[1].body
    assert second["input_ids"] == [1, 2, 5, 6]
    assert second["sampling_params"]["max_new_tokens"] == 14
    (event,) = await ready.list_events("a")
    assert list(event.model_call.prompt_token_ids) == [1, 2]
    assert list(event.model_call.response_token_ids) == [5, 6, 8, 9]
    assert event.model_call.sampling.max_tokens == 16
    assert event.model_call.hold_duration.ToMicroseconds() > 0


async def test_nothing_reaches_the_engine_while_weights_change(ready: RunningGateway, engine: FakeEngine) -> None:
    engine.loading.clear()
    _, replies = parts([5, 6], [7])
    scripted(engine, replies)
    call = asyncio.create_task(ready.generate("a", [1]))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 1)
    publishing = publish(ready)
    await engine.wait_received("/update_weights_from_disk")
    assert (await engine.wait_finished(first.body["rid"])).finish is not None
    assert (await ready.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).in_flight_count == 0
    assert len(engine.requests("/generate")) == 1
    engine.loading.set()
    await publishing
    assert ids(await call) == [5, 7]


async def test_a_generation_may_be_interrupted_again_and_again(ready: RunningGateway, engine: FakeEngine) -> None:
    _, replies = parts([5, 6], [7, 8], [9, 10], [11])
    scripted(engine, replies)
    call = asyncio.create_task(ready.generate("a", [1]))
    for number in (1, 2, 3):
        latest = (await engine.wait_received("/generate", number))[-1]
        await engine.wait_tokens(latest.body["rid"], 1)
        await publish(ready, f"v{number}")
    answer = await call
    assert ids(answer) == [5, 7, 9, 11]
    assert spans(answer) == [("default", 0, 1), ("v1", 1, 2), ("v2", 2, 3), ("v3", 3, 4)]
    rids = [one.body["rid"] for one in engine.requests("/generate")]
    assert len(set(rids)) == 4


async def test_one_interrupted_before_its_first_token_begins_anew(ready: RunningGateway, engine: FakeEngine) -> None:
    _, replies = parts([5], [6], after=0)
    scripted(engine, replies)
    call = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    await publish(ready)
    assert (ids(await call), spans(await call)) == ([6], [("v1", 0, 1)])


async def test_one_that_ends_although_it_was_interrupted_is_whole(ready: RunningGateway, engine: FakeEngine) -> None:
    (event,), replies = parts([5, 6], [99])
    scripted(engine, replies)
    engine.fail("/abort_request", times=1)
    call = asyncio.create_task(ready.generate("a", [1]))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 1)
    publishing = publish(ready)
    await engine.wait_received("/abort_request")
    event.set()
    await publishing
    assert (ids(await call), spans(await call)) == ([5, 6], [("default", 0, 2)])


async def test_a_phase_interrupts_and_holds_until_rollout(ready: RunningGateway, engine: FakeEngine) -> None:
    _, replies = parts([5, 6], [7])
    scripted(engine, replies)
    call = asyncio.create_task(ready.generate("a", [1]))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 1)
    await set_phase(ready, phase_pb2.PHASE_UPDATING)
    assert not call.done()
    assert (await ready.phases.GetPhase(phase_pb2.GetPhaseRequest(run="runs/r"))).held_count == 1
    await set_phase(ready, phase_pb2.PHASE_ROLLOUT)
    assert ids(await call) == [5, 7]


async def test_one_held_too_long_after_its_interruption_is_told_and_not_recorded(
    gateway: RunningGateway, engine: FakeEngine
) -> None:
    await gateway.register_model(engine.url)
    await gateway.create_run("short", max_hold_s=0)
    await gateway.create_rollout("a", run_id="short")
    _, replies = parts([5, 6], [7])
    scripted(engine, replies)
    call = asyncio.create_task(gateway.generate("a", [1]))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 1)
    request = phase_pb2.SetPhaseRequest(run="runs/short", phase=phase_pb2.PHASE_UPDATING, in_flight=INTERRUPT)
    await gateway.phases.SetPhase(request)
    async with refused(HeldTooLongError) as caught:
        await call
    assert caught[0].retry_after
    assert not await gateway.list_events("a")


async def test_a_stop_string_cannot_hide_on_both_sides_of_an_interruption(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    _, replies = parts([5, 6, 7], [8, 9], after=3)
    scripted(engine, replies)
    asked = inference_pb2.GenerateRequest(
        rollout="rollouts/a",
        attempt=1,
        prompt_token_ids=packed([1]),
        sampling=model_call_pb2.SamplingParams(max_tokens=9, stop=["END"]),
    )
    call = asyncio.ensure_future(ready.inference.Generate(asked))
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 3)
    await publish(ready)
    assert ids(await call) == [8, 9], "any of the first tokens may have begun the stop string"
    assert engine.requests("/generate")[1].body["input_ids"] == [1]


async def test_a_retry_of_the_same_request_joins_an_interrupted_generation(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    _, replies = parts([5, 6], [7])
    scripted(engine, replies)
    calls = [asyncio.create_task(ready.generate("a", [1], request_id="q")) for _ in range(2)]
    (first,) = await engine.wait_received("/generate")
    await engine.wait_tokens(first.body["rid"], 1)
    await publish(ready)
    assert [ids(await call) for call in calls] == [[5, 7], [5, 7]]
    assert len(await ready.list_events("a")) == 1


async def test_many_generations_are_interrupted_at_once(ready: RunningGateway, engine: FakeEngine) -> None:
    count = itertools.count()
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5, 6], gates={1: gate}) if next(count) < 50 else Reply([7])
    calls = [asyncio.create_task(ready.generate("a", [1, number])) for number in range(50)]
    for request in await engine.wait_received("/generate", 50):
        await engine.wait_tokens(request.body["rid"], 1)
    await publish(ready)
    assert [ids(answer) for answer in await asyncio.gather(*calls)] == [[5, 7]] * 50
    assert len(await ready.list_events("a")) == 50
