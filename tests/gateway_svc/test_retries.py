"""Retries of a harness at the real gateway: they join or get the record; siblings are kept; what is left is ended."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whippletree.v1 import event_pb2, inference_pb2, model_call_pb2, rollout_pb2

from gateway_svc.settings import GatewaySettings
from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, gateway_process, packed, refused, running_gateway
from whippletree.errors import RolloutEndedError, StaleAttemptError

RETRY_PATIENCE = 60.0
"""Seconds; only a fault ever takes that long."""


async def ask(
    gateway: RunningGateway,
    request_id: str,
    *,
    body: bytes = b"body",
    retry: bool = False,
    key: str = "",
    choice: int = 0,
    attempt: int = 1,
    rollout: str = "a",
) -> str:
    """One call with the prompt [1]; its call id."""
    request = inference_pb2.GenerateRequest(
        rollout=f"rollouts/{rollout}",
        attempt=attempt,
        prompt_token_ids=packed([1]),
        request_id=request_id,
        choice_index=choice,
        body_digest=body,
        idempotency_key=key,
        is_retry=retry,
    )
    answer = await gateway.inference.Generate(request, timeout=RETRY_PATIENCE)
    return answer.call.call_id


async def lost(gateway: RunningGateway, *request_ids: str) -> None:
    """What a bridge reports when a harness went away."""
    await gateway.inference.MarkUndelivered(
        inference_pb2.MarkUndeliveredRequest(rollout="rollouts/a", request_ids=request_ids)
    )


async def delivered(gateway: RunningGateway, *call_ids: str) -> None:
    """What a bridge reports when a reply was written out."""
    await gateway.inference.MarkDelivered(inference_pb2.MarkDeliveredRequest(rollout="rollouts/a", call_ids=call_ids))


async def recorded(gateway: RunningGateway) -> list[str]:
    """Call ids in the record, in order."""
    return [event.model_call.call_id for event in await gateway.list_events("a")]


async def leave(caller: "asyncio.Task[str]") -> None:
    """The caller's connection breaks."""
    caller.cancel()
    await asyncio.wait([caller])


@pytest.fixture
async def patient(tmp_path: Path, engine: FakeEngine) -> AsyncIterator[RunningGateway]:
    """As `ready`, where a generation that was left waits for a retry as long as a slow machine takes."""
    async with running_gateway(tmp_path, retry_grace=60.0) as running:
        await running.create_run("r")
        await running.register_model(engine.url)
        await running.create_rollout("a")
        yield running


async def test_equal_bodies_are_siblings_while_open_and_when_delivered(ready: RunningGateway) -> None:
    first = await ask(ready, "r1")
    second = await ask(ready, "r2")
    await delivered(ready, first, second)
    third = await ask(ready, "r3")
    assert await recorded(ready) == [first, second, third]
    assert len({first, second, third}) == 3


async def test_a_retry_gets_the_recorded_reply_of_the_latest_call(ready: RunningGateway, engine: FakeEngine) -> None:
    first, second = await ask(ready, "r1"), await ask(ready, "r2")
    await delivered(ready, first, second)
    assert await ask(ready, "r3", retry=True) == second
    assert await ask(ready, "r3", retry=True) == second, "the bridge may repeat it"
    assert await ask(ready, "r4", retry=True, body=b"other") not in (first, second), "nothing to retry: sampled"
    assert len(await recorded(ready)) == len(engine.requests("/generate")) == 3


async def test_a_key_names_the_call_that_is_retried(ready: RunningGateway) -> None:
    first = await ask(ready, "r1", key="k1")
    second = await ask(ready, "r2", key="k2")
    assert first != second
    assert await ask(ready, "r3", key="k1") == first
    assert await ask(ready, "r4", key="k1", body=b"other") not in (first, second)


async def test_a_lost_reply_is_replayed_once_and_then_siblings_follow(ready: RunningGateway) -> None:
    first = await ask(ready, "r1")
    await lost(ready, "r1")
    assert await ask(ready, "r2") == first
    second = await ask(ready, "r3")
    assert second != first, "r2 holds the reply now"
    await lost(ready, "r1", "unknown", "")
    assert await ask(ready, "r4") != first, "r1 holds it no more"
    await lost(ready, "r2")
    assert await ask(ready, "r5") == first
    await delivered(ready, first)
    await lost(ready, "r5")
    assert await ask(ready, "r6") != first, "delivered is delivered"


async def test_the_record_says_what_became_of_a_reply(ready: RunningGateway) -> None:
    async def said() -> int:
        ((event,), (packed_event,)) = [
            await ready.list_events("a", view) for view in (event_pb2.EVENT_VIEW_BASIC, event_pb2.EVENT_VIEW_PACKED)
        ]
        assert event.model_call.delivery == packed_event.model_call.delivery
        assert event.model_call.delivered == (event.model_call.delivery == model_call_pb2.DELIVERY_DELIVERED)
        return event.model_call.delivery

    first = await ask(ready, "r1")
    assert await said() == model_call_pb2.DELIVERY_UNKNOWN
    await lost(ready, "r1")
    assert await said() == model_call_pb2.DELIVERY_LOST
    assert await ask(ready, "r2") == first
    assert await said() == model_call_pb2.DELIVERY_UNKNOWN, "a retry has it"
    await lost(ready, "r1")
    assert await said() == model_call_pb2.DELIVERY_UNKNOWN, "a report that comes late is not about the retry"
    await delivered(ready, first)
    await lost(ready, "r2")
    assert await said() == model_call_pb2.DELIVERY_DELIVERED


async def test_two_requests_for_one_lost_reply_are_a_retry_and_a_sibling(ready: RunningGateway) -> None:
    first = await ask(ready, "r1")
    await lost(ready, "r1")
    both = await asyncio.gather(ask(ready, "r2"), ask(ready, "r3"))
    assert len({*both, first}) == 2
    assert len(await recorded(ready)) == 2


async def test_a_retry_joins_the_running_generation_after_the_connection_broke(
    patient: RunningGateway, engine: FakeEngine
) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    cut = asyncio.create_task(ask(patient, "r1"))
    await engine.wait_received("/generate")
    await leave(cut)
    again = asyncio.create_task(ask(patient, "r2", retry=True))
    marked = asyncio.create_task(ask(patient, "r3", retry=True))
    sibling = asyncio.create_task(ask(patient, "r4", body=b"other"))
    await engine.wait_received("/generate", 2)
    gate.set()
    assert await again == await marked != await sibling
    assert len(engine.requests("/generate")) == len(await recorded(patient)) == 2
    assert not engine.requests("/abort_request")
    assert await ask(patient, "r2", retry=True) == await again, "known by its own id too"


async def test_an_open_call_has_a_sibling_but_is_joined_by_a_retry(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5], gates={0: gate})
    first = asyncio.create_task(ask(ready, "r1"))
    await engine.wait_received("/generate")
    second = asyncio.create_task(ask(ready, "r2"))
    await engine.wait_received("/generate", 2)
    retry = asyncio.create_task(ask(ready, "r3", retry=True))
    other = asyncio.create_task(ask(ready, "r4", body=b"other"))
    await engine.wait_received("/generate", 3)
    gate.set()
    assert await retry == await second != await first
    await other
    assert len(await recorded(ready)) == 3


async def test_each_choice_is_a_call_of_its_own(ready: RunningGateway) -> None:
    calls = [await ask(ready, f"r{choice}", choice=choice) for choice in range(2)]
    await lost(ready, "r0", "r1")
    again = await asyncio.gather(*(ask(ready, f"s{choice}", choice=choice) for choice in range(2)))
    assert list(again) == calls == await recorded(ready)


async def test_a_generation_that_nobody_comes_back_for_is_aborted_within_a_second(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    engine.reply = lambda ids: Reply([5], gates={0: asyncio.Event()})
    caller = asyncio.create_task(ask(ready, "r1"))
    sent = (await engine.wait_received("/generate"))[0]
    await leave(caller)
    assert (await engine.wait_received("/abort_request"))[0].body == {"rid": sent.body["rid"]}
    assert GatewaySettings(insecure_dev=True).retry_grace < 1
    assert not await recorded(ready)
    engine.reply = lambda ids: Reply([6])
    assert [await ask(ready, "r2", retry=True)] == await recorded(ready), "sampled afresh"


async def test_a_retry_is_of_its_own_attempt_and_of_a_running_one(ready: RunningGateway) -> None:
    first = await ask(ready, "r1")
    await lost(ready, "r1")
    failed = 3  # ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE
    end = rollout_pb2.FinishRolloutRequest(name="rollouts/a", attempt=1)
    end.outcome = failed  # type: ignore[assignment]
    await ready.rollouts.FinishRollout(end)
    await ready.rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name="rollouts/a"))
    async with refused(StaleAttemptError):
        await ask(ready, "r2", retry=True)
    assert await ask(ready, "r3", retry=True, attempt=2) != first
    await ready.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/a"))
    async with refused(RolloutEndedError):
        await ask(ready, "r4", retry=True, attempt=2)


async def test_equal_requests_of_two_rollouts_have_nothing_to_do_with_one_another(
    ready: RunningGateway, engine: FakeEngine
) -> None:
    await ready.create_rollout("b")
    first = await ask(ready, "r1", key="session")
    await lost(ready, "r1")
    other = await ask(ready, "r2", key="session", retry=True, rollout="b")
    assert other != first
    assert await ask(ready, "r3", key="session", retry=True) == first
    assert await recorded(ready) == [first]
    assert len(engine.requests("/generate")) == 2


async def test_without_grace_nothing_waits(tmp_path: Path, engine: FakeEngine) -> None:
    engine.reply = lambda ids: Reply([5], gates={0: asyncio.Event()})
    async with running_gateway(tmp_path, retry_grace=0.0) as gateway:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        caller = asyncio.create_task(ask(gateway, "r1"))
        await engine.wait_received("/generate")
        await leave(caller)
        await engine.wait_received("/abort_request")


@pytest.mark.parametrize("joined", [False, True], ids=["of the first request", "of one that joined"])
async def test_a_gateway_killed_before_the_answer_arrived_gives_the_recorded_reply_to_the_same_request(
    tmp_path: Path, engine: FakeEngine, joined: bool
) -> None:
    async with gateway_process(tmp_path) as (gateway, process):
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        call = await ask(gateway, "r1")
        if joined:
            await lost(gateway, "r1")
            assert await ask(gateway, "r2") == call
        process.kill()
    async with gateway_process(tmp_path) as (gateway, _):
        assert await ask(gateway, "r2" if joined else "r1") == call
        assert await recorded(gateway) == [call]
        await lost(gateway, "r2" if joined else "r1")
        assert await ask(gateway, "r3") == call, "what was lost is known after the kill"
        assert len(engine.requests("/generate")) == 1
