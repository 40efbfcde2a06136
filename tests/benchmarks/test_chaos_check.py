"""The check after chaos finds what it looks for: every kind of fault, made on purpose."""

import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

from whippletree.v1 import event_pb2, rollout_pb2

from benchmarks import chaos_check
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from whippletree.client import open_client


async def noted(gateway: RunningGateway, rollout: str, key: str) -> int:
    """Append a note; its sequence."""
    note = event_pb2.Note(type="turn")
    note.data.update({"key": key})
    request = event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=1, note=note)
    return (await gateway.events.AppendEvent(request)).event.sequence


async def played(folder: Path) -> tuple[int, str]:
    """A gateway's record: rollout `a` ended with a note and a call; `b` runs, with a note and a call twice."""
    async with running_gateway(folder) as gateway, FakeEngine() as engine:
        await gateway.register_model(engine.url)
        await gateway.create_run("r")
        for name in ("a", "b"):
            await gateway.create_rollout(name)
            sequence = await noted(gateway, name, "1")
            call = (await gateway.generate(name, [1, 2], request_id=name)).call.call_id
        await noted(gateway, "b", "1")
        await gateway.generate("b", [1, 2], request_id="b2")
        await gateway.rollouts.CancelRollout(rollout_pb2.CancelRolloutRequest(name="rollouts/a"))
    return sequence, call


async def findings(folder: Path, *created: str) -> chaos_check.Findings:
    async with running_gateway(folder) as gateway, open_client(gateway.address) as client:
        found = await chaos_check.check(client, created, folder)
    chaos_check.check_store(folder / "record.db", found)
    return found


async def test_a_whole_record_is_clean(tmp_path: Path) -> None:
    await played(tmp_path)
    found = await findings(tmp_path, "a")
    assert found.clean
    assert (found.acknowledged, found.rollouts, found.calls) == (1, 1, 1)


async def test_doubled_and_unended_are_found(tmp_path: Path) -> None:
    await played(tmp_path)
    found = await findings(tmp_path, "a", "b")
    assert (found.doubled, found.not_terminal, found.missing, found.orphans) == (2, 1, 0, 0), found.details


async def test_what_was_acknowledged_and_is_not_there_is_missing(tmp_path: Path) -> None:
    sequence, call = await played(tmp_path)
    lines = [
        f'{{"sequence": {sequence}}}',
        f'{{"call_id": "{call}"}}',
        '{"sequence": 999}',
        '{"call_id": "none"}',
        '{"seq',
    ]
    (tmp_path / "b.1.1.log").write_text("\n".join(lines))
    found = await findings(tmp_path, "b", "lost")
    assert (found.missing, found.acknowledged) == (3, 6), found.details


async def test_rows_without_their_others_are_orphans(tmp_path: Path) -> None:
    await played(tmp_path)
    with closing(sqlite3.connect(tmp_path / "record.db")) as connection:
        connection.execute("delete from events where kind = 'call' and rollout = 1")
        connection.execute("update attempts set outcome = null where rollout = 1")
        connection.commit()
    found = chaos_check.Findings()
    chaos_check.check_store(tmp_path / "record.db", found)
    assert found.orphans == 4, found.details  # also the gap in the sequence, and an answer that names the event


def test_a_process_with_the_mark_is_found_while_it_lives() -> None:
    mark = uuid.uuid4().hex
    waiting = (sys.executable, "-c", "import sys; sys.stdin.read()")
    with subprocess.Popen(waiting, env={**os.environ, "MARK": mark}, stdin=subprocess.PIPE) as child:
        assert list(chaos_check.processes(mark)) == [child.pid]
    assert chaos_check.processes(mark) == {}
