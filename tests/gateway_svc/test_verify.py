"""`record verify`: a sound record has no faults, and each kind of damage is found and named."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from whippletree.v1 import event_pb2

from gateway_svc import archive
from gateway_svc.sqlite import PAGE
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, running_gateway
from tests.fakes.record import delete, finish, log

DATABASES = ("sqlite",)


async def live(gateway: RunningGateway, engine: FakeEngine) -> None:
    """A record with everything in it: dialogues, rewards, ended and open rollouts, a deleted run, kept answers."""
    await gateway.register_model(engine.url)
    await gateway.create_run("gone")
    await gateway.create_rollout("g", run_id="gone")
    await log(gateway, "g", "deleted later")
    await gateway.create_run("r")
    for name in ("a", "b"):
        await gateway.create_rollout(name)
        first = (await gateway.generate(name, [1, 2, 3], request_id=f"first-{name}")).call
        await gateway.generate(name, [1, 2, 3, 5, 6, 7, 9], request_id=f"second-{name}")
        reward = event_pb2.Reward(value=1.0, call_id=first.call_id)
        await gateway.events.AppendEvent(
            event_pb2.AppendEventRequest(parent=f"rollouts/{name}", attempt=1, reward=reward)
        )
    await finish(gateway, "a")
    await gateway.create_rollout("c", start=False)
    await delete(gateway, "gone", force=True)


@pytest.fixture
async def record(tmp_path: Path, engine: FakeEngine) -> Path:
    """The file of a record that is sound."""
    async with running_gateway(tmp_path) as gateway:
        await live(gateway, engine)
    return tmp_path / "record.db"


async def test_a_sound_record_has_no_faults_and_everything_is_counted(record: Path) -> None:
    report = archive.look_through(record)
    assert report.faults == []
    counts = report.counts
    assert (counts["runs"], counts["rollouts"], counts["attempts"], counts["calls"]) == (1, 3, 2, 4)
    assert (counts["events of kind call"], counts["events of kind reward"]) == (4, 2)
    assert (counts["sequences given"], counts["sequences of deleted events"]) == (7, 1)
    assert (counts["tokens of prompts"], counts["tokens of prompts as stored"]) == (20, 8)
    assert counts["requests"] == 4


async def test_a_record_is_looked_through_while_it_is_served(tmp_path: Path, engine: FakeEngine) -> None:
    async with running_gateway(tmp_path) as gateway:
        await live(gateway, engine)
        assert archive.look_through(tmp_path / "record.db").faults == []


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        pytest.param("delete from events where kind = 'reward' and rollout = 2", "sequences are missing", id="gap"),
        pytest.param("update counters set sequence = sequence + 3", "1-1, 8-10", id="gap at the end"),
        pytest.param("update counters set sequence = 2", "only 2 sequences were given", id="number given twice"),
        pytest.param("update counters set change = 1", "only 1 were given", id="change given twice"),
        pytest.param("delete from calls where shared > 0", "its tokens are missing", id="event without its call"),
        pytest.param("delete from events where kind = 'call'", "is no event of it", id="orphan call"),
        pytest.param("update calls set call_id = 'x' || call_id", "its tokens are missing", id="call of another id"),
        pytest.param("delete from rollouts where rollout_id = 'b'", "which does not exist", id="rows of no rollout"),
        pytest.param("update events set attempt = 4", "by attempt 4, of which there are 1", id="attempt to come"),
        pytest.param("update events set kind = 'odd' where kind = 'reward'", "unknown kind odd", id="unknown kind"),
        pytest.param("update events set value = 9e999 where kind = 'reward'", "no finite number", id="reward"),
        pytest.param(
            "update events set call_id = 'nobody' where kind = 'reward'", "for call nobody", id="reward for no call"
        ),
        pytest.param(
            "update calls set parent = 999 where parent is not null", "no earlier call of its rollout", id="no parent"
        ),
        pytest.param("update calls set parent = sequence where shared > 0", "no earlier call", id="its own parent"),
        pytest.param("update calls set parent = null where shared > 0", "does not name", id="parent not named"),
        pytest.param(
            "update calls set shared = 5 where shared > 0", "shares 5 tokens with its parent", id="prefix too short"
        ),
        pytest.param("update calls set parent_call_id = 'x' where shared > 0", "is call", id="another parent"),
        pytest.param(
            "update calls set suffix = x'020000000200000003000000' where shared = 0",
            "do not give its digest",
            id="prompt changed",
        ),
        pytest.param(
            "update calls set response = zeroblob(length(response)) where shared = 0",
            "do not give its digest",
            id="response changed",
        ),
        pytest.param(
            "update calls set suffix = cast(suffix || x'01000000' as blob)", "instead of", id="prompt too long"
        ),
        pytest.param("update calls set logprobs = zeroblob(4)", "1 log-probabilities", id="log-probabilities missing"),
        pytest.param(
            "update calls set logprobs = zeroblob(length(logprobs))",
            "do not give their checksum",
            id="log-probabilities changed",
        ),
        pytest.param("update calls set length = 99", "its length 99", id="length"),
        pytest.param("update calls set head = '{}'", "cannot be read", id="head"),
        pytest.param(
            "update calls set head = replace(head, '\"end\":3', '\"end\":2')", "weight versions cover", id="spans"
        ),
        pytest.param("delete from attempts", "attempts 1 to 1 were opened, stored are []", id="attempts missing"),
        pytest.param(
            "update rollouts set attempt = 0 where rollout_id = 'a'", "succeeded without an attempt", id="no attempt"
        ),
        pytest.param(
            "update attempts set outcome = null, finish_time = null", "is open while the rollout is", id="open attempt"
        ),
        pytest.param("update attempts set outcome = 'failed'", "last attempt ended failed", id="other outcome"),
        pytest.param("update rollouts set finish_time = null", "no time of its end", id="no end"),
        pytest.param("update rollouts set state = 'lost'", "unknown state lost", id="unknown state"),
        pytest.param("delete from runs", "its run runs/r does not exist", id="no run"),
        pytest.param("update requests set answer = x'ff'", "cannot be read", id="answer"),
        pytest.param(
            "update requests set answer = '77' where method = 'Generate'",
            "never given as a sequence",
            id="answer of no event",
        ),
        pytest.param("update requests set digest = x'00'", "its digest has 1 bytes", id="digest of a request"),
    ],
)
async def test_damage_is_found(record: Path, damage: str, found: str) -> None:
    with sqlite3.connect(record) as connection:
        assert connection.execute(damage).rowcount > 0
        connection.commit()
    faults = archive.look_through(record).faults
    assert any(found in fault.what for fault in faults), faults


async def test_log_probabilities_from_before_there_were_checksums_are_believed(record: Path) -> None:
    with sqlite3.connect(record) as connection:
        connection.execute("update calls set head = json_remove(head, '$.checksum')")
        connection.commit()
    assert archive.look_through(record).faults == []


async def test_a_file_whose_pages_are_damaged_is_not_believed(record: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    archive.back_up(record, broken)
    content = bytearray(broken.read_bytes())
    content[PAGE * 3 : PAGE * 3 + 64] = b"\xff" * 64
    broken.write_bytes(content)
    assert archive.look_through(broken).faults
    (tmp_path / "other.db").write_text("text")
    assert "not a database" in archive.look_through(tmp_path / "other.db").faults[0].what
    sqlite3.connect(tmp_path / "empty.db").close()
    shutil.copy(tmp_path / "empty.db", tmp_path / "none.db")
    assert archive.look_through(tmp_path / "none.db").faults[0].what == "it is no record"
