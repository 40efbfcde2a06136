"""Events: owners, payloads, and a sequence whose gaps deletions explain."""

import math
from collections.abc import Iterable
from itertools import pairwise

from sqlalchemy import Connection, and_, func, or_, select

from gateway_svc.facts import number
from gateway_svc.schema import attempts, calls, counters, deletions, events, rollouts, turns
from gateway_svc.verify.report import Report

SHOWN = 20
"""Faults of one kind that are named one by one."""
_KINDS = ("call", "reward", "note", "log")


def check(connection: Connection, report: Report) -> None:
    """Look at every event and at the numbers given."""
    _owners(connection, report)
    _payloads(connection, report)
    _gaps(connection, report)


def _owners(connection: Connection, report: Report) -> None:
    """Rows of a rollout that is not there, and not on its way out."""
    going = select(deletions.c.ordinal).where(deletions.c.purged.is_(False))
    for table in (attempts, events, calls, turns):
        query = select(table.c.rollout, func.count()).where(
            table.c.rollout.not_in(select(rollouts.c.ordinal)), table.c.rollout.not_in(going)
        )
        for ordinal, count in connection.execute(query.group_by(table.c.rollout).limit(SHOWN)):
            report.fault(table.name, f"{count} rows belong to rollout {ordinal}, which does not exist")
    query = select(events.c.sequence, events.c.attempt, rollouts.c.rollout_id, rollouts.c.attempt)
    query = query.join(rollouts, rollouts.c.ordinal == events.c.rollout)
    wrong = or_(events.c.attempt < 1, events.c.attempt > rollouts.c.attempt)
    for sequence, attempt, rollout_id, last in connection.execute(query.where(wrong).limit(SHOWN)):
        where = f"rollouts/{rollout_id}/events/{sequence}"
        report.fault(where, f"was written by attempt {attempt}, of which there are {last}")


def _payloads(connection: Connection, report: Report) -> None:
    for kind, count in connection.execute(select(events.c.kind, func.count()).group_by(events.c.kind)):
        report.count(f"events of kind {kind}", count)
        if kind not in _KINDS:
            report.fault("events", f"{count} of unknown kind {kind}")
    for sequence, value in connection.execute(
        select(events.c.sequence, events.c.value).where(events.c.kind == "reward")
    ):
        if value is None or not math.isfinite(value):
            report.fault(f"events/{sequence}", f"its reward {value} is no finite number")
    of_call = and_(calls.c.call_id == events.c.call_id, calls.c.rollout == events.c.rollout)
    query = select(events.c.sequence, events.c.call_id).where(events.c.kind == "reward", events.c.call_id != "")
    for sequence, call_id in connection.execute(query.where(~select(1).where(of_call).exists()).limit(SHOWN)):
        report.fault(f"events/{sequence}", f"its reward is for call {call_id}, which the rollout does not have")
    same = and_(calls.c.sequence == events.c.sequence, calls.c.call_id == events.c.call_id)
    same = and_(same, calls.c.rollout == events.c.rollout, calls.c.attempt == events.c.attempt)
    query = select(events.c.sequence).where(events.c.kind == "call", ~select(1).where(same).exists())
    _each(report, connection.execute(query.limit(SHOWN)).scalars(), "is a call, but its tokens are missing")
    query = select(calls.c.sequence).where(~select(1).where(same, events.c.kind == "call").exists())
    _each(report, connection.execute(query.limit(SHOWN)).scalars(), "has tokens of a call, but is no event of it")
    query = select(turns.c.sequence).where(turns.c.sequence.not_in(select(calls.c.sequence)))
    _each(report, connection.execute(query.limit(SHOWN)).scalars(), "is known to retries, but there is no such call")


def _each(report: Report, sequences: Iterable[int], what: str) -> None:
    for sequence in sequences:
        report.fault(f"events/{sequence}", what)


def _gaps(connection: Connection, report: Report) -> None:
    """Numbers are given without gaps, so those that are missing must be those that were deleted."""
    given = connection.execute(select(counters.c.sequence)).scalar_one()
    changes = connection.execute(select(counters.c.change)).scalar_one()
    stored, last = connection.execute(select(func.count(), func.max(events.c.sequence)).select_from(events)).one()
    deleted = number(connection, "deleted_events")
    report.count("sequences given", given)
    report.count("sequences of deleted events", deleted)
    if (last or 0) > given:
        report.fault("counters", f"event {last} is stored, but only {given} sequences were given")
    latest = connection.execute(select(func.max(rollouts.c.change))).scalar() or 0
    if latest > changes:
        report.fault("counters", f"change {latest} is stored, but only {changes} were given")
    if given - stored != deleted:
        text = f"{given - stored} sequences are missing, and {deleted} events were deleted; gaps: "
        report.fault("events", text + ", ".join(_where(connection, given)))


def _where(connection: Connection, given: int) -> list[str]:
    """The first gaps, as `first-last`."""
    found: list[str] = []
    sequences = connection.execute(select(events.c.sequence).order_by(events.c.sequence)).scalars()
    for before, after in pairwise((0, *sequences, given + 1)):
        if after > before + 1:
            found.append(f"{before + 1}-{after - 1}")
        if len(found) == SHOWN:
            return [*found, "..."]
    return found
