"""One JSON line per log record, with the ids of the work that it belongs to. Set up in `__main__` alone.

Fields, in this order, those of the ids only where they are known:

time       RFC 3339, UTC, milliseconds
level      DEBUG, INFO, WARNING, ERROR
logger     module that speaks
message    text; bearer tokens in it are masked
rollout    id of the rollout
attempt    number of the attempt
run        id of the run
call       id of the model call, as recorded
request    id of the HTTP request, as in Envoy's access log (`request_id`)
trace      id of the trace, as in Envoy's access log (`trace_id`)
exception  traceback

The ids are set once for an rpc, by `observe.py`, and go with every task that the rpc starts.
"""

import json
import logging
import re
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson

SECRETS = re.compile(r"(?i:\bbearer\s+\S+)|\beyJ[\w-]+\.[\w-]+\.[\w-]*")
"""Authorization headers and signed tokens: they never belong into a message, whoever put them there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ids:
    """What the current task works for; empty = not known, or for nothing in particular."""

    rollout: str = ""
    attempt: int = 0
    run: str = ""
    call: str = ""
    request: str = ""
    traceparent: str = ""
    """W3C trace context of the span that is open: whatever is called from here gets it as its parent."""

    @property
    def trace(self) -> str:
        """The trace's id, 32 hexadecimal digits."""
        return self.traceparent[3:35]


IDS: ContextVar[Ids] = ContextVar("ids", default=Ids())  # noqa: B039  # frozen


def about(**known: Any) -> None:
    """Add what is known of the current task's work: fields of `Ids`."""
    IDS.set(replace(IDS.get(), **known))


class JsonFormatter(logging.Formatter):
    """Record -> one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": SECRETS.sub("[masked]", record.getMessage()),
        }
        ids = IDS.get()
        for name in ("rollout", "attempt", "run", "call", "request", "trace"):
            if value := getattr(ids, name):
                line[name] = value
        if record.exc_info:
            line["exception"] = SECRETS.sub("[masked]", self.formatException(record.exc_info))
        try:
            return orjson.dumps(line).decode()
        except TypeError:  # text that is not UTF-8, such as half of a surrogate pair
            return json.dumps(line)


def configure(level: str = "INFO") -> None:
    """Send every record of `level` and above to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
