"""Logs as JSON, one object a line, on standard error (requirements E6).

Fields: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and what the caller adds with `extra={"fields": {...}}`;
where a request or a decision is concerned that is `trace_id` and `span_id`. Prompts, bodies and secrets are never given
to it: no caller has them.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LOGGER = "pointsman"


class JsonFormatter(logging.Formatter):
    """Renders a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry.update(fields)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def start_logging(level: str, stream: TextIO | None = None) -> None:
    """Send pointsman's log lines to `stream` (standard error by default); other libraries' from warning on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(LOGGER).setLevel(level.upper())
    # It logs what clients sent, headers and queries included; the admin server tells its own faults (admin.py).
    logging.getLogger("aiohttp.server").disabled = True


def event(message: str, level: int = logging.INFO, /, *, error: Exception | None = None, **fields: object) -> None:
    """Log one state change with its fields, and with the trace of the error that caused it."""
    logging.getLogger(LOGGER).log(level, message, extra={"fields": fields}, exc_info=error)
