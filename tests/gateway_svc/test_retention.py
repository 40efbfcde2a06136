"""Deletion seen from the store's file: what is left, what a kill leaves, retention."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import grpc
import pytest
from whippletree.v1 import event_pb2, rollout_pb2, run_pb2

from gateway_svc import deletion, facts
from gateway_svc.catalog import Catalog
from gateway_svc.settings import StoreSettings
from gateway_svc.store import Store
from gateway_svc.types import Micros, ModelName, Run, RunId, Sampling
from tests.fakes.gateway import RunningGateway, gateway_process, refused, running_gateway
from tests.fakes.record import delete, finish, log
from whippletree.errors import NotFoundError, ResumeTokenExpiredError, WrongStateError

DATABASES = ("sqlite",)
TABLES = ("rollouts", "attempts", "events", "calls", "turns")


def counts(path: Path) -> dict[str, int]:
    """Rows of every table that holds something of a rollout."""
    with sqlite3.connect(path) as connection:
        return {table: connection.execute(f"select count(*) from {table}").fetchone()[0] for table in TABLES}


async def opened(path: Path, now: int) -> Store:
    return await Store.open(path, synchronous="NORMAL", capacity=9, readers=1, clock=lambda: Micros(now))


async def test_a_run_goes_with_everything_and_another_stays(ready: RunningGateway, tmp_path: Path) -> None:
    await ready.create_run("other")
    await ready.create_rollout("x", run_id="other")
    for rollout in ("a", "x"):
        await ready.generate(rollout, [1, 2])
        await log(ready, rollout, "line")
    await finish(ready, "a")
    assert await delete(ready, "r") == 1
    async with refused(NotFoundError):
        await ready.runs.GetRun(run_pb2.GetRunRequest(name="runs/r"))
    async with refused(NotFoundError):
        await ready.list_events("a")
    assert len(await ready.list_events("x")) == 2
    found = counts(tmp_path / "record.db")
    assert (found["rollouts"], found["attempts"], found["events"], found["calls"]) == (1, 1, 2, 1)


async def test_a_token_older_than_forgotten_deletions_has_expired(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a", start=False)
        first = await anext(aiter(gateway.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest())))
        event = await anext(aiter(gateway.events.WatchEvents(event_pb2.WatchEventsRequest())))
        await delete(gateway, "r", force=True)
    later = Micros(1 << 60)
    store = await opened(tmp_path / "record.db", later)
    await store.write(lambda tx: facts.forget_deletions(tx, Micros(0)))
    await store.close()
    async with running_gateway(tmp_path) as gateway:
        async with refused(ResumeTokenExpiredError):
            request = rollout_pb2.WatchRolloutsRequest(resume_token=first.resume_token)
            await anext(aiter(gateway.rollouts.WatchRollouts(request)))
        async with refused(ResumeTokenExpiredError):
            await anext(
                aiter(gateway.events.WatchEvents(event_pb2.WatchEventsRequest(resume_token=event.resume_token)))
            )


async def test_numbers_are_never_given_again(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        sequence = await log(gateway, "a", "line")
        page = await gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest(page_size=1))
        assert not page.next_page_token
        await delete(gateway, "r", force=True)
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("b")
        assert await log(gateway, "b", "line") > sequence
    with sqlite3.connect(tmp_path / "record.db") as connection:
        assert connection.execute("select ordinal from rollouts").fetchone()[0] == 2


async def test_a_killed_deletion_goes_on_at_the_next_start(tmp_path: Path) -> None:
    async with gateway_process(tmp_path) as (gateway, process):
        await gateway.create_run("r")
        await gateway.create_run("other")
        await gateway.create_rollout("x", run_id="other")
        await log(gateway, "x", "line")
        for number in range(20):
            await gateway.create_rollout(f"d{number}")
        await asyncio.gather(*(log(gateway, f"d{number % 20}", "x" * 1000) for number in range(4000)))
        deleting = asyncio.create_task(delete(gateway, "r", force=True))
        while "r" in [run.name[5:] for run in (await gateway.runs.ListRuns(run_pb2.ListRunsRequest())).runs]:
            pass
        process.kill()
        await asyncio.wait([deleting])
    left = counts(tmp_path / "record.db")["events"]
    async with running_gateway(tmp_path) as gateway:
        with contextlib.suppress(grpc.aio.AioRpcError):  # gone already
            await delete(gateway, "r", force=True)
        await gateway.create_run("r")
    found = counts(tmp_path / "record.db")
    assert left > 1, "the kill came before the end"
    assert (found["rollouts"], found["events"], found["attempts"]) == (1, 1, 1)


async def test_a_run_that_is_being_deleted_cannot_be_made_again(tmp_path: Path) -> None:
    store = await opened(tmp_path / "record.db", 1)
    await store.write(lambda tx: facts.put(tx, deletion.MARK + "r"))
    catalog = await Catalog.load(store)
    run = Run(
        run_id=RunId("r"),
        policy=ModelName("m"),
        train_sampling=Sampling(),
        eval_sampling=Sampling(),
        max_hold=Micros(1),
    )
    with pytest.raises(WrongStateError):
        await catalog.create_run(run, None)
    await store.write(lambda tx: deletion.end(tx, RunId("r"), None))
    await catalog.create_run(run, None)
    await store.close()


@pytest.mark.parametrize(
    ("now", "gone"),
    [
        pytest.param(150, set(), id="too young"),
        pytest.param(211, {"old"}, id="old"),
        pytest.param(10_000, {"old"}, id="open stays"),
    ],
)
async def test_runs_that_ended_long_ago_are_outlived(tmp_path: Path, now: int, gone: set[str]) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("old")
        await gateway.create_run("open")
        await gateway.create_rollout("a", run_id="old")
        await gateway.create_rollout("b", run_id="open")
        await finish(gateway, "a")
    path = tmp_path / "record.db"
    with sqlite3.connect(path) as connection:
        connection.execute("update runs set create_time = 50")
        connection.execute("update rollouts set create_time = 60, finish_time = 110 where rollout_id = 'a'")
    store = await opened(path, now)
    assert set(await store.read(lambda connection: deletion.outlived(connection, Micros(now - 100)))) == gone
    await store.close()


async def test_retention_is_off_by_default_and_deletes_when_set(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("old")
        await gateway.create_rollout("a", run_id="old")
        await finish(gateway, "a")
    path = tmp_path / "record.db"
    with sqlite3.connect(path) as connection:
        connection.execute("update runs set create_time = 50")
        connection.execute("update rollouts set create_time = 60, finish_time = 110")
    async with running_gateway(tmp_path) as gateway:
        assert (await gateway.runs.GetRun(run_pb2.GetRunRequest(name="runs/old"))).run.name == "runs/old"
    async with running_gateway(tmp_path, store=StoreSettings(path=path, retention_days=1.0)) as gateway:
        async with asyncio.timeout(20):
            while (await gateway.runs.ListRuns(run_pb2.ListRunsRequest())).runs:
                await asyncio.sleep(0.01)
    assert counts(path)["rollouts"] == 0
