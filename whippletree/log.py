"""One JSON line per log record, with the ids of the call that it belongs to. Set up in `__main__` alone."""

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

ROLLOUT: ContextVar[str] = ContextVar("rollout", default="")
"""Id of the rollout that the current task works for; empty = none."""


class JsonFormatter(logging.Formatter):
    """Record -> one line: time (RFC 3339, UTC), level, logger, message, rollout, and the traceback of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if rollout := ROLLOUT.get():
            line["rollout"] = rollout
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str = "INFO") -> None:
    """Send every record of `level` and above to standard error as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
