"""Rollouts and attempts: states that agree with the attempts, and runs that exist."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, select

from gateway_svc.schema import attempts, facts, rollouts, runs
from gateway_svc.types import Outcome, RolloutState
from gateway_svc.verify.report import Report

PAGE = 500
_ROLLOUT = (
    rollouts.c.ordinal,
    rollouts.c.rollout_id,
    rollouts.c.run_id,
    rollouts.c.state,
    rollouts.c.attempt,
    rollouts.c.finish_time,
)


def check(connection: Connection, report: Report) -> None:
    """Look at every rollout with its attempts."""
    known = set(connection.execute(select(runs.c.run_id)).scalars())
    report.count("runs", len(known))
    deleting = connection.execute(select(facts.c.name).where(facts.c.name.startswith("deleting "))).scalars()
    known |= {name.removeprefix("deleting ") for name in deleting}
    after = 0
    while True:
        query = select(*_ROLLOUT).where(rollouts.c.ordinal > after).order_by(rollouts.c.ordinal).limit(PAGE)
        found = connection.execute(query).all()
        if not found:
            return
        tried = _attempts(connection, found[0].ordinal, found[-1].ordinal)
        for row in found:
            if row.run_id not in known:
                report.fault(f"rollouts/{row.rollout_id}", f"its run runs/{row.run_id} does not exist")
            _check_rollout(row, tried.get(row.ordinal, []), report)
        after = found[-1].ordinal


def _attempts(connection: Connection, first: int, last: int) -> dict[int, list[Row[Any]]]:
    query = select(attempts).where(attempts.c.rollout.between(first, last))
    rows = connection.execute(query.order_by(attempts.c.rollout, attempts.c.number)).all()
    return {ordinal: list(group) for ordinal, group in groupby(rows, key=lambda row: row.rollout)}


def _check_rollout(row: Any, tried: Sequence[Row[Any]], report: Report) -> None:
    name = f"rollouts/{row.rollout_id}"
    report.count("rollouts")
    report.count("attempts", len(tried))
    if row.state not in list(RolloutState):
        report.fault(name, f"unknown state {row.state}")
        return
    state = RolloutState(row.state)
    numbers = [attempt.number for attempt in tried]
    if numbers != list(range(1, row.attempt + 1)):
        report.fault(name, f"attempts 1 to {row.attempt} were opened, stored are {numbers}")
    if state in (RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.RUNNING) and not row.attempt:
        report.fault(name, f"{state} without an attempt")
    if state.ended != (row.finish_time is not None):
        report.fault(name, f"{state}, but {'no' if state.ended else 'a'} time of its end")
    for attempt in tried:
        if (attempt.outcome is None) != (attempt.number == row.attempt and state is RolloutState.RUNNING):
            what = "is open" if attempt.outcome is None else f"ended {attempt.outcome}"
            report.fault(f"{name}/attempts/{attempt.number}", f"{what} while the rollout is {state}")
    if state is RolloutState.SUCCEEDED and tried and tried[-1].outcome not in (Outcome.SUCCEEDED, None):
        report.fault(name, f"succeeded, but its last attempt ended {tried[-1].outcome}")
