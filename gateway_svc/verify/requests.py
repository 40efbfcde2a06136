"""Answers that are kept for repeated requests: whole, and about what is or was there."""

from typing import Any

import orjson
from sqlalchemy import Connection, Row, select

from gateway_svc.facts import number
from gateway_svc.schema import counters, events, requests
from gateway_svc.verify.report import Report

_OF_EVENTS = ("AppendEvent", "Generate")
"""Methods whose answer is a sequence."""


def check(connection: Connection, report: Report) -> None:
    """Look at every answer."""
    given = connection.execute(select(counters.c.sequence)).scalar_one()
    deleted = number(connection, "deleted_events")
    for row in connection.execute(select(requests).execution_options(yield_per=1000)):
        report.count("requests")
        fault = _fault(row, given)
        if not fault and not deleted and row.method in _OF_EVENTS:
            query = select(events.c.sequence).where(events.c.sequence == orjson.loads(row.answer))
            fault = (
                "" if connection.execute(query).first() else f"its answer names event {row.answer.decode()}: missing"
            )
        if fault:
            report.fault(f"requests/{row.request_id}", fault)


def _fault(row: Row[Any], given: int) -> str:
    if len(row.digest) != 16:
        return f"its digest has {len(row.digest)} bytes"
    try:
        answer = orjson.loads(row.answer)
    except ValueError:
        return "its answer cannot be read"
    if row.method in _OF_EVENTS and not (isinstance(answer, int) and 0 < answer <= given):
        return f"its answer {answer} was never given as a sequence"
    return ""
