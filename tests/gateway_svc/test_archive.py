"""Back-up while serving, restore, compaction."""

import asyncio
import sqlite3
from pathlib import Path

import pytest
from whippletree.v1 import rollout_pb2

from gateway_svc import archive
from gateway_svc.archive import ArchiveError
from gateway_svc.sqlite import PAGE
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, gateway_process, refused, running_gateway
from tests.fakes.record import delete, log
from whippletree.errors import ResumeTokenExpiredError

DATABASES = ("sqlite",)


async def begin(gateway: RunningGateway, engine: FakeEngine) -> None:
    await gateway.register_model(engine.url)
    await gateway.create_run("r")
    await gateway.create_rollout("a")
    await gateway.generate("a", [1, 2, 3])


async def test_a_backup_taken_while_many_write_is_a_consistent_snapshot(tmp_path: Path, engine: FakeEngine) -> None:
    before: set[int] = set()
    async with gateway_process(tmp_path) as (gateway, _):
        await begin(gateway, engine)

        async def write() -> None:
            while True:
                before.add(await log(gateway, "a", "x" * 500))

        writers = [asyncio.create_task(write()) for _ in range(4)]
        while len(before) < 100:
            await asyncio.sleep(0.01)
        acknowledged = set(before)
        await asyncio.to_thread(archive.back_up, tmp_path / "record.db", tmp_path / "copy.db")
        at_least = len(before)
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
    assert at_least > len(acknowledged), "the gateway went on while the copy was taken"
    assert not archive.look_through(tmp_path / "copy.db").faults
    archive.restore(tmp_path / "copy.db", tmp_path / "new" / "record.db", replace=False)
    async with running_gateway(tmp_path / "new") as gateway:
        found = [event.sequence for event in await gateway.list_events("a")]
    assert acknowledged <= set(found)
    assert found == list(range(1, len(found) + 1))


async def test_a_restored_store_goes_on_and_tokens_of_before_expire(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        archive.back_up(path, tmp_path / "copy.db")
        await gateway.create_rollout("later")
        with pytest.raises(ArchiveError, match="in use"):
            archive.restore(tmp_path / "copy.db", path, replace=True)
        watch = gateway.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest())
        token = (await anext(aiter(watch))).resume_token
        watch.cancel()
    with pytest.raises(ArchiveError, match="--replace"):
        archive.restore(tmp_path / "copy.db", path, replace=False)
    aside = archive.restore(tmp_path / "copy.db", path, replace=True)
    async with running_gateway(tmp_path) as gateway:
        names = [
            item.name for item in (await gateway.rollouts.ListRollouts(rollout_pb2.ListRolloutsRequest())).rollouts
        ]
        assert names == ["rollouts/a"]
        await gateway.create_rollout("b")
        async with refused(ResumeTokenExpiredError):
            request = rollout_pb2.WatchRolloutsRequest(resume_token=token)
            await anext(aiter(gateway.rollouts.WatchRollouts(request)))
    assert aside is not None
    with sqlite3.connect(aside) as connection:
        found = connection.execute("select rollout_id from rollouts order by ordinal").fetchall()
    assert found == [("a",), ("later",)], "what was there is kept beside"


async def test_a_damaged_backup_is_refused_and_nothing_is_touched(tmp_path: Path, engine: FakeEngine) -> None:
    path, copy = tmp_path / "record.db", tmp_path / "copy.db"
    async with running_gateway(tmp_path) as gateway:
        await begin(gateway, engine)
    archive.back_up(path, copy)
    whole, content = path.read_bytes(), bytearray(copy.read_bytes())
    content[PAGE * 5 : PAGE * 5 + 8] = b"\xff" * 8  # the head of a page
    copy.write_bytes(content)
    with pytest.raises(ArchiveError):
        archive.restore(copy, path, replace=True)
    copy.write_text("no database at all")
    with pytest.raises(ArchiveError, match="not a database"):
        archive.restore(copy, path, replace=True)
    assert path.read_bytes() == whole


async def test_a_backup_with_faults_is_refused(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_gateway(tmp_path) as gateway:
        await begin(gateway, engine)
    archive.back_up(tmp_path / "record.db", tmp_path / "copy.db")
    with sqlite3.connect(tmp_path / "copy.db") as connection:
        connection.execute("update calls set digest = zeroblob(16)")
    with pytest.raises(ArchiveError, match="digest"):
        archive.restore(tmp_path / "copy.db", tmp_path / "new.db", replace=False)
    assert not (tmp_path / "new.db.restoring").exists()
    assert not (tmp_path / "new.db").exists()


def test_an_existing_file_is_never_overwritten_by_a_backup(tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(ArchiveError, match="exists"):
        archive.back_up(tmp_path / "record.db", tmp_path / "copy.db")
    with pytest.raises(ArchiveError, match="does not exist"):
        archive.back_up(tmp_path / "record.db", tmp_path / "other.db")


async def test_compaction_gives_back_what_deletion_freed(tmp_path: Path) -> None:
    path = tmp_path / "record.db"
    async with running_gateway(tmp_path) as gateway:
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        for _ in range(40):
            await log(gateway, "a", "x" * 50_000)
        await delete(gateway, "r", force=True)
        with pytest.raises(ArchiveError, match="in use"):
            archive.compact(path)
    before, after = archive.compact(path)
    assert before > 2_000_000 > 400_000 > after
    assert not archive.look_through(path).faults
