"""One JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

# Attributes of every LogRecord; all others come from `extra=` and are printed as fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "settings", "k8s_skip", "k8s_ref"}


class JsonFormatter(logging.Formatter):
    """Formats a record with its extra fields as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        line.update({k: v for k, v in vars(record).items() if k not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Log to standard error as JSON; kopf and the clients log only warnings, except at level DEBUG."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("kopf", "aiohttp.access", "kubernetes", "asyncio"):
        logging.getLogger(chatty).setLevel(level if level == "DEBUG" else "WARNING")
