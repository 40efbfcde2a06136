"""Looks through a whole record for what must not be. In: a connection. Out: what was counted, and every fault."""

from sqlalchemy import Connection

from gateway_svc.verify import calls, requests, rollouts, sequences
from gateway_svc.verify.report import Fault, Report

__all__ = ["Fault", "Report", "verify"]


def verify(connection: Connection) -> Report:
    """Check everything on the snapshot of this connection; nothing is changed."""
    report = Report()
    for check in (rollouts.check, sequences.check, calls.check, requests.check):
        check(connection, report)
    return report
