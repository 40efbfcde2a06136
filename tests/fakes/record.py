"""What tests of deletions and of broken records do to a gateway."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import create_engine, text
from whippletree.v1 import event_pb2, rollout_pb2, run_pb2

from tests.fakes.gateway import RunningGateway, record_of


@contextlib.contextmanager
def hidden(folder: Path, table: str) -> Iterator[None]:
    """While the block runs the record in this folder lacks a table."""
    record = record_of(folder)
    engine = create_engine(f"sqlite:///{record}" if isinstance(record, Path) else record)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {table} RENAME TO hidden"))
        yield
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE hidden RENAME TO {table}"))
    finally:
        engine.dispose()


async def delete(gateway: RunningGateway, run: str, *, force: bool = False, request_id: str = "") -> int:
    request = run_pb2.DeleteRunRequest(name=f"runs/{run}", force=force, request_id=request_id)
    return (await gateway.runs.DeleteRun(request)).deleted_rollout_count


async def finish(gateway: RunningGateway, rollout: str) -> None:
    state = rollout_pb2.ROLLOUT_STATE_SUCCEEDED
    request = rollout_pb2.TransitionRolloutRequest(name=f"rollouts/{rollout}", state=state)
    await gateway.rollouts.TransitionRollout(request)


async def log(gateway: RunningGateway, rollout: str, text: str, request_id: str = "") -> int:
    payload = event_pb2.Log(stream="stdout", text=text)
    request = event_pb2.AppendEventRequest(parent=f"rollouts/{rollout}", attempt=1, log=payload, request_id=request_id)
    return (await gateway.events.AppendEvent(request)).event.sequence


async def log_of_other(gateway: RunningGateway) -> None:
    await gateway.create_run("other")
    await gateway.create_rollout("x", run_id="other")
    await log(gateway, "x", "line")
