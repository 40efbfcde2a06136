"""Schema upgrades: from the first released schema on, with data, on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, MetaData, Table, create_engine, insert, select

from gateway_svc import migrations, schema
from gateway_svc.backend import Numbers
from gateway_svc.store import migrate, numbers
from tests.fakes import postgresql


@pytest.fixture
def empty(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """A database without any table."""
    if database == "postgresql":
        server: postgresql.Server = request.getfixturevalue("server")
        url = server.empty(f"empty_{request.node.name.partition('[')[0]}"[:60])
    else:
        url = f"sqlite:///{tmp_path / 'record.db'}"
    engine = create_engine(url)
    yield engine
    engine.dispose()


def fill(connection: Connection) -> None:
    """Data as the first released gateway left it: a run, a rollout with its attempt, events, calls, a request."""
    rows = {
        "runs": {
            "ordinal": 1,
            "run_id": "r",
            "policy": "tiny",
            "train_sampling": "{}",
            "eval_sampling": "{}",
            "max_hold": 1,
            "phase": "updating",
            "create_time": 5,
        },
        "rollouts": {
            "ordinal": 7,
            "rollout_id": "a",
            "run_id": "r",
            "group_id": "",
            "split": "train",
            "max_attempts": 1,
            "create_time": 5,
            "change": 41,
            "state": "running",
            "attempt": 1,
            "outcome": None,
            "message": "",
            "start_time": 6,
            "finish_time": None,
            "revision": 1,
            "input": b"i",
            "runner": b"r",
            "metadata": b"m",
        },
        "attempts": {"rollout": 7, "number": 1, "worker": "w", "start_time": 6, "message": ""},
        "requests": {"request_id": "q", "method": "m", "digest": b"d", "create_time": 6, "answer": b"null"},
    }
    tables = {table.name: table for table in old_tables(connection)}
    for name, row in rows.items():
        connection.execute(insert(tables[name]), row)
    event = {"rollout": 7, "attempt": 1, "create_time": 8, "may_ignore": False, "label": "", "value": None, "body": b""}
    call = {"rollout": 7, "attempt": 1, "prompt_count": 1, "response_count": 1, "length": 2, "digest": b"x"}
    call |= {"parent_call_id": "", "shared": 0, "delivered": True, "head": "{}"}
    call |= {"response": b"1234", "logprobs": b"1234", "suffix": b"1234"}
    for sequence in (11, 12):
        known = {"sequence": sequence, "call_id": f"c{sequence}"}
        connection.execute(insert(tables["events"]), event | known | {"kind": "call"})
        connection.execute(insert(tables["calls"]), call | known)


def old_tables(connection: Connection) -> list[Table]:
    """The tables that are there."""
    known = MetaData()
    known.reflect(connection)
    return list(known.tables.values())


def everything(connection: Connection) -> dict[str, list[dict[str, object]]]:
    """All rows of all tables."""
    return {
        table.name: [dict(row) for row in connection.execute(select(table)).mappings()]
        for table in old_tables(connection)
    }


def test_the_migrations_make_the_schema_of_the_code(empty: Engine) -> None:
    with empty.begin() as connection:
        migrate(connection)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []


def test_an_upgrade_from_the_first_schema_keeps_all_data_and_goes_on_counting(empty: Engine) -> None:
    with empty.begin() as connection:
        migrate(connection, "0001")
        fill(connection)
        before = everything(connection)
        del before["alembic_version"]
    assert [len(before[name]) for name in ("events", "calls", "rollouts", "requests")] == [2, 2, 1, 1]
    with empty.begin() as connection:
        migrate(connection)
        after = everything(connection)
        assert {name: after[name] for name in before} == before
        assert numbers(connection) == Numbers(change=41, sequence=12)
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_an_upgrade_may_stop_at_every_step(empty: Engine) -> None:
    with empty.begin() as connection:
        migrate(connection, "0001")
        fill(connection)
    steps = len(list(Path(migrations.__file__).parent.glob("versions/v[0-9]*.py"))) - 1
    for _ in range(steps):
        with empty.begin() as connection:
            migrate(connection, "+1")
            assert len(connection.execute(select(schema.events.c.sequence)).all()) == 2
    with empty.begin() as connection:
        assert numbers(connection).sequence == 12
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_a_migrated_store_stays_as_it_is(empty: Engine) -> None:
    with empty.begin() as connection:
        migrate(connection)
        connection.execute(insert(schema.models), MODEL)
        before = everything(connection)
        migrate(connection)
        assert everything(connection) == before


MODEL = {
    "name": "m",
    "role": "policy",
    "engines": "[]",
    "weight_version": "",
    "weights_path": "",
    "tokenizer_path": "",
    "context_length": 1,
    "vocabulary_size": 1,
    "create_time": 1,
}
