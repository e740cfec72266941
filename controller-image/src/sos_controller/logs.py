"""Log lines as text or JSON, on standard error.

Addresses of users appear at DEBUG only, but for the audit log, which is made of them and which an operator can turn off. Keys and tokens
appear never.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from sos_controller import audit as audit_log

# What a LogRecord has by itself; the rest came by `extra=` and is printed as fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields"}
_ENCODE = json.JSONEncoder(default=str).encode


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What came by `extra=`. One called `fields` holds some more, whose names may be those of a LogRecord's own attributes (`name`)."""
    found = {name: getattr(record, name) for name in sorted(vars(record).keys() - _STANDARD)}
    found.update(getattr(record, "fields", ()))
    return found


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object per record."""
        stamp = audit_log.stamp(int(record.created * 1000))
        line: dict[str, Any] = {"time": stamp, "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _ENCODE({**line, **_fields(record), **line})  # in this order, and nothing of the line is overwritten


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, with the fields behind the message."""
        return " ".join((super().formatMessage(record), *(f"{name}={value}" for name, value in _fields(record).items())))


def setup(level: str, form: str, *, audit: bool = True) -> None:
    """Configure logging once. Audit records are of level INFO: a higher `level` leaves them out too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    audit_log.LOG.disabled = not audit
    # Nothing prints them, and under eventlet's threads to find them out is half of what a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for noisy in ("ryu", "ofp_event", "Handshake"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # What a switch sent that Ryu cannot parse is reported by `connection`, without a traceback.
    logging.getLogger("ryu.ofproto.ofproto_parser").setLevel(logging.CRITICAL)
