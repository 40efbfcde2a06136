"""DeleteRun: what goes, what stays, who is told."""

import asyncio

from whippletree.v1 import event_pb2, rollout_pb2

from tests.fakes.engine import FakeEngine, Reply
from tests.fakes.gateway import RunningGateway, refused
from tests.fakes.record import delete, finish, log, log_of_other
from whippletree.errors import NotFoundError, RequestIdReusedError, WrongStateError


async def test_a_run_with_open_rollouts_is_refused_unless_forced(ready: RunningGateway) -> None:
    async with refused(WrongStateError) as caught:
        await delete(ready, "r")
    assert caught[0].metadata["rollout"] == "rollouts/a"
    assert (await ready.rollouts.GetRollout(rollout_pb2.GetRolloutRequest(name="rollouts/a"))).rollout.attempt == 1
    assert await delete(ready, "r", force=True) == 1
    assert not (await ready.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest())).rollouts


async def test_a_repeated_deletion_gets_the_first_answer(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a", start=False)
    assert await delete(gateway, "r", force=True, request_id="d") == 1
    assert await delete(gateway, "r", force=True, request_id="d") == 1
    async with refused(RequestIdReusedError):
        await delete(gateway, "r", request_id="d")
    async with refused(NotFoundError):
        await delete(gateway, "r", force=True)


async def test_many_callers_wait_for_one_deletion(gateway: RunningGateway) -> None:
    asked = [
        rollout_pb2.CreateRolloutRequest(rollout_id=f"q{number}", rollout=rollout_pb2.Rollout(run="runs/r"))
        for number in range(450)
    ]
    await gateway.rollouts.BatchCreateRollouts(rollout_pb2.BatchCreateRolloutsRequest(requests=asked))
    found = await asyncio.gather(*(delete(gateway, "r", force=True) for _ in range(3)))
    assert found == [450] * 3


async def test_watchers_are_told_of_deletions(ready: RunningGateway) -> None:
    await finish(ready, "a")
    await log_of_other(ready)
    rollouts = aiter(ready.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(run="runs/r")))
    events = aiter(ready.events.WatchEvents(event_pb2.WatchEventsRequest(parent="runs/r")))
    while not (await anext(rollouts)).HasField("bookmark"):
        pass
    while not (token := await anext(events)).HasField("bookmark"):
        pass
    await delete(ready, "r", force=True)
    async with asyncio.timeout(20):
        seen: list[str] = []
        while len(seen) < 1:
            message = await anext(rollouts)
            seen += [message.deleted] if message.deleted else []
        assert seen == ["rollouts/a"]
        while not (told := await anext(events)).deleted:
            pass
        assert told.deleted == "rollouts/a"
    again = aiter(
        ready.events.WatchEvents(event_pb2.WatchEventsRequest(parent="runs/r", resume_token=token.resume_token))
    )
    assert (await anext(again)).deleted == "rollouts/a", "a token from before the deletion is told of it too"


async def test_requests_about_what_was_deleted_are_told_so(ready: RunningGateway) -> None:
    await ready.generate("a", [1], request_id="g")
    await log(ready, "a", "line", request_id="e")
    await delete(ready, "r", force=True)
    async with refused(NotFoundError):
        await ready.generate("a", [1], request_id="g")
    async with refused(NotFoundError):
        await log(ready, "a", "line", request_id="e")


async def test_a_generation_in_flight_ends_with_not_found(ready: RunningGateway, engine: FakeEngine) -> None:
    gate = asyncio.Event()
    engine.reply = lambda ids: Reply([5, 6], gates={0: gate})
    running = asyncio.create_task(ready.generate("a", [1]))
    await engine.wait_received("/generate")
    await delete(ready, "r", force=True)
    gate.set()
    async with refused(NotFoundError):
        await running


async def test_other_writers_are_not_held_up(ready: RunningGateway) -> None:
    for number in range(40):
        await ready.create_rollout(f"d{number}")
    await asyncio.gather(*(log(ready, f"d{number % 40}", "x" * 1000) for number in range(4000)))
    await log_of_other(ready)
    deleting = asyncio.create_task(delete(ready, "r", force=True))
    written = 0
    while not deleting.done():
        await log(ready, "x", "beside")
        written += 1
    assert await deleting == 41
    assert written >= 10, "the deletion takes more than twenty steps, and others write between them"
