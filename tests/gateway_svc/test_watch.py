"""WatchRollouts: snapshot, bookmark, changes, resumption."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from whippletree.v1 import rollout_pb2

from tests.fakes.gateway import RunningGateway, refused, running_gateway
from whippletree.errors import InvalidFieldError, ResumeTokenExpiredError, WhippletreeError

QUEUED = rollout_pb2.ROLLOUT_STATE_QUEUED


class Watcher:
    """Reads one watch message by message."""

    def __init__(self, gateway: RunningGateway, token: str = "", **fields: Any) -> None:
        self.call = gateway.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(resume_token=token, **fields))
        self._messages = aiter(self.call)
        self.token = token

    async def next(self) -> str:
        """Name and state of the next rollout, or `bookmark`."""
        async with asyncio.timeout(20):
            message = await anext(self._messages)
        self.token = message.resume_token
        if message.WhichOneof("record") == "bookmark":
            return "bookmark"
        return f"{message.rollout.name[9:]} {rollout_pb2.RolloutState.Name(message.rollout.state)[14:].lower()}"

    async def changed(self) -> str:
        """The next message that is no bookmark."""
        while (found := await self.next()) == "bookmark":
            pass
        return found


async def test_a_watch_sends_what_is_there_then_a_bookmark_then_changes(gateway: RunningGateway) -> None:
    await gateway.create_rollout("a")
    await gateway.create_rollout("b", start=False)
    watcher = Watcher(gateway)
    assert [await watcher.next() for _ in range(3)] == ["a running", "b queued", "bookmark"]
    await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/b"))
    assert await watcher.changed() == "b cancelled"


async def test_a_quiet_watch_sends_bookmarks(gateway: RunningGateway) -> None:
    watcher = Watcher(gateway)
    assert [await watcher.next(), await watcher.next()] == ["bookmark", "bookmark"]


async def test_a_watch_sends_only_the_run_and_states_asked_for(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    await gateway.create_rollout("x", run_id="other", start=False)
    await gateway.create_rollout("a")
    watcher = Watcher(gateway, run="runs/r", states=[QUEUED])
    assert await watcher.next() == "bookmark"
    await gateway.create_rollout("b", start=False)
    assert await watcher.changed() == "b queued"


async def test_a_watch_goes_on_from_its_token_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a", start=False)
        await gateway.create_rollout("b", start=False)
        watcher = Watcher(gateway)
        assert await watcher.next() == "a queued"
        await gateway.create_rollout("c", start=False)
    async with running_gateway(tmp_path) as gateway:
        again = Watcher(gateway, watcher.token)
        assert [await again.next() for _ in range(3)] == ["b queued", "c queued", "bookmark"]


async def test_a_stopping_gateway_ends_its_watches_with_unavailable(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, grace=30.0) as gateway:
        watcher = Watcher(gateway)
        assert await watcher.next() == "bookmark"
        waiting = asyncio.create_task(watcher.changed())
    async with refused(WhippletreeError) as caught:
        await waiting
    assert caught[0].reason == "SHUTTING_DOWN"


async def test_a_token_of_another_store_has_expired(gateway: RunningGateway, tmp_path: Path) -> None:
    await gateway.create_rollout("a")
    watcher = Watcher(gateway)
    await watcher.next()
    async with running_gateway(tmp_path / "other") as other:
        async with refused(ResumeTokenExpiredError):
            await Watcher(other, watcher.token).next()
        async with refused(InvalidFieldError):
            await Watcher(other, "nonsense").next()


@pytest.mark.parametrize("count", [1203])
async def test_a_long_snapshot_is_complete_and_in_order(gateway: RunningGateway, count: int) -> None:
    for begin in range(0, count, 1000):
        asked = [
            rollout_pb2.CreateRolloutRequest(rollout_id=f"r{number}", rollout=rollout_pb2.Rollout(run="runs/r"))
            for number in range(begin, min(begin + 1000, count))
        ]
        await gateway.rollouts.BatchCreateRollouts(rollout_pb2.BatchCreateRolloutsRequest(requests=asked))
    watcher = Watcher(gateway)
    assert [await watcher.next() for _ in range(count)] == [f"r{number} queued" for number in range(count)]
    assert await watcher.next() == "bookmark"
