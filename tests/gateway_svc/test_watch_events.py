"""WatchEvents: snapshot, bookmark, changes, resumption, slow readers, a killed gateway."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
from whippletree.v1 import event_pb2, rollout_pb2

from gateway_svc import archive
from tests.fakes.gateway import RunningGateway, gateway_process, refused, running_gateway
from whippletree.errors import InvalidFieldError, NotFoundError, OverloadedError, ResumeTokenExpiredError


class Watcher:
    """Reads one watch message by message."""

    def __init__(self, gateway: RunningGateway, parent: str = "", token: str = "", **fields: Any) -> None:
        request = event_pb2.WatchEventsRequest(parent=parent, resume_token=token, **fields)
        self._messages = aiter(gateway.events.WatchEvents(request))
        self.token = token

    async def message(self) -> event_pb2.WatchEventsResponse:
        """The next one."""
        async with asyncio.timeout(20):
            found = await anext(self._messages)
        self.token = found.resume_token
        return found

    async def next(self) -> str:
        """Rollout and text of the next log, `deleted NAME`, or `bookmark`."""
        found = await self.message()
        match found.WhichOneof("record"):
            case "bookmark":
                return "bookmark"
            case "deleted":
                return f"deleted {found.deleted}"
            case _:
                return f"{found.event.name.split('/')[1]} {found.event.log.text}"

    async def changed(self) -> str:
        """The next message that is no bookmark."""
        while (found := await self.next()) == "bookmark":
            pass
        return found


async def write(gateway: RunningGateway, rollout: str, text: str) -> int:
    """Append one log; its sequence."""
    log = event_pb2.Log(stream="stdout", text=text)
    request = event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=1, log=log)
    return (await gateway.events.AppendEvent(request)).event.sequence


async def test_a_watch_sends_what_is_there_then_a_bookmark_then_what_comes(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a")
    await write(gateway, "a", "1")
    await write(gateway, "a", "2")
    watcher = Watcher(gateway, "rollouts/a")
    assert [await watcher.next() for _ in range(3)] == ["a 1", "a 2", "bookmark"]
    await write(gateway, "a", "3")
    assert await watcher.changed() == "a 3"


async def test_a_quiet_watch_sends_bookmarks(gateway: RunningGateway) -> None:
    watcher = Watcher(gateway)
    assert [await watcher.next(), await watcher.next()] == ["bookmark", "bookmark"]


async def test_a_watch_sends_only_the_run_or_rollout_asked_for(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    for name, run in (("a", "r"), ("b", "r"), ("x", "other")):
        await gateway.create_rollout(name, run_id=run)
    of_run, of_rollout, of_all = Watcher(gateway, "runs/r"), Watcher(gateway, "rollouts/b"), Watcher(gateway)
    for watcher in (of_run, of_rollout, of_all):
        assert await watcher.next() == "bookmark"
    for name in ("x", "a", "b"):
        await write(gateway, name, "new")
    assert [await of_run.changed(), await of_run.changed()] == ["a new", "b new"]
    assert await of_rollout.changed() == "b new"
    assert [await of_all.changed() for _ in range(3)] == ["x new", "a new", "b new"]


async def test_a_watch_shows_calls_in_the_view_asked_for(ready: RunningGateway) -> None:
    await ready.generate("a", [1, 2, 3])
    whole = await Watcher(ready, "rollouts/a", view=event_pb2.EVENT_VIEW_FULL).message()
    assert list(whole.event.model_call.prompt_token_ids) == [1, 2, 3]
    brief = await Watcher(ready, "rollouts/a").message()
    assert (brief.event.model_call.prompt_token_count, list(brief.event.model_call.prompt_token_ids)) == (3, [])


async def test_a_watch_of_nothing_known_is_refused(gateway: RunningGateway) -> None:
    async with refused(NotFoundError):
        await Watcher(gateway, "rollouts/nobody").next()
    async with refused(InvalidFieldError):
        await Watcher(gateway, "models/tiny").next()


async def test_a_long_snapshot_of_many_runs_is_complete_and_in_order(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    await gateway.create_rollout("a")
    await gateway.create_rollout("x", run_id="other")
    await asyncio.gather(*(write(gateway, "x", "-") for _ in range(1100)))
    await asyncio.gather(*(write(gateway, "a", "+") for _ in range(150)))
    watcher, sequences = Watcher(gateway, "runs/r"), []
    while (found := await watcher.message()).WhichOneof("record") == "event":
        sequences.append(found.event.sequence)
    assert len(sequences) == 150
    assert sequences == sorted(set(sequences))


async def test_a_token_of_another_store_has_expired(gateway: RunningGateway, tmp_path: Path) -> None:
    watcher = Watcher(gateway)
    await watcher.next()
    async with running_gateway(tmp_path / "other") as other:
        async with refused(ResumeTokenExpiredError):
            await Watcher(other, token=watcher.token).next()
        async with refused(InvalidFieldError):
            await Watcher(other, token="nonsense").next()


async def test_a_slow_reader_is_told_and_goes_on_from_its_token(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, watch_patience=0.3) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        text, count = "x" * 60_000, 300  # more than gRPC takes for a reader that stands still
        await asyncio.gather(*(write(gateway, "a", text) for _ in range(count)))
        watcher, sequences = Watcher(gateway, "rollouts/a"), []
        sequences.append((await watcher.message()).event.sequence)
        await asyncio.sleep(1.0)
        async with refused(OverloadedError):
            while True:
                sequences.append((await watcher.message()).event.sequence)
        assert len(sequences) < count
        again = Watcher(gateway, "rollouts/a", watcher.token)
        while len(sequences) < count:
            sequences.append((await again.message()).event.sequence)
        assert sequences == list(range(sequences[0], sequences[0] + count))


async def test_a_watcher_misses_nothing_across_kills_of_the_gateway(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    received: list[int] = []
    states: list[tuple[str, int]] = []
    tokens = {"events": "", "rollouts": ""}

    async def keep_writing(gateway: RunningGateway) -> None:
        while True:
            acknowledged.add(await write(gateway, "a", "line"))

    async def follow_events(gateway: RunningGateway) -> None:
        watcher = Watcher(gateway, "runs/r", tokens["events"])
        while True:
            found = await watcher.message()
            if found.HasField("event"):
                received.append(found.event.sequence)
            tokens["events"] = found.resume_token

    async def follow_rollouts(gateway: RunningGateway) -> None:
        request = rollout_pb2.WatchRolloutsRequest(run="runs/r", resume_token=tokens["rollouts"])
        async for found in gateway.rollouts.WatchRollouts(request):
            if found.HasField("rollout"):
                states.append((found.rollout.name, found.rollout.revision))
            tokens["rollouts"] = found.resume_token

    async def until_cut(work: Any) -> None:
        try:
            await work
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise

    for life in range(3):
        async with gateway_process(tmp_path) as (gateway, process):
            if not life:
                await gateway.create_run("r")
                await gateway.create_rollout("a")
            await gateway.create_rollout(f"b{life}")
            goal = len(acknowledged) + 60
            async with asyncio.TaskGroup() as group:
                for work in (*(keep_writing(gateway) for _ in range(4)), follow_events(gateway)):
                    group.create_task(until_cut(work))
                group.create_task(until_cut(follow_rollouts(gateway)))
                while len(acknowledged) < goal:
                    await asyncio.sleep(0.01)
                process.kill()
    async with gateway_process(tmp_path) as (gateway, _):
        last = await write(gateway, "a", "last")
        watcher = Watcher(gateway, "runs/r", tokens["events"])
        while not received or received[-1] != last:
            found = await watcher.message()
            received += [found.event.sequence] if found.HasField("event") else []
        everything = [event.sequence for event in await gateway.list_events("a")]
    assert acknowledged <= set(everything)
    assert sorted(set(received)) == everything, "every event was sent, and none that is not in the record"
    assert {name for name, _ in states} >= {"rollouts/a", "rollouts/b0", "rollouts/b1"}
    path = tmp_path / "record.db"
    assert not path.exists() or not archive.look_through(path).faults
