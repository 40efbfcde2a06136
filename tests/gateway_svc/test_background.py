"""Tasks in the background outlive a failure that nobody foresaw: here a table is missing for a moment."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whippletree.v1 import event_pb2

from gateway_svc.settings import EngineSettings
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import running_gateway
from tests.fakes.record import hidden, log


async def said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(20):
        while words not in caplog.text:
            await asyncio.sleep(0.01)


async def next_log(watch: AsyncIterator[event_pb2.WatchEventsResponse]) -> str:
    while not (told := await anext(watch)).HasField("event"):
        pass
    return told.event.log.text


async def test_engines_are_looked_at_again_after_leases_could_not_be_read(
    tmp_path: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(tmp_path, engine=EngineSettings(check_pause=0.02)) as gateway:
        await gateway.register_model(engine.url)
        with hidden(tmp_path, "engines"):
            await said(caplog, "engines could not be read")
        seen = engine.checks
        async with asyncio.timeout(20):
            while engine.checks < seen + 2:
                await asyncio.sleep(0.01)


async def test_watchers_are_told_again_after_events_could_not_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_gateway(tmp_path, watch_quiet=60) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        watch = aiter(gateway.events.WatchEvents(event_pb2.WatchEventsRequest(parent="rollouts/a")))
        assert (await anext(watch)).HasField("bookmark")
        await log(gateway, "a", "before")
        assert await next_log(watch) == "before"
        with hidden(tmp_path, "events"):
            await gateway.create_run("other")
            await said(caplog, "events could not be read")
        await log(gateway, "a", "after")
        async with asyncio.timeout(20):
            assert await next_log(watch) == "after"
