"""Log lines as text or JSON, on standard error.

Addresses of users appear at DEBUG only, except in the audit log, which contains them in every record and can be turned off. Keys and tokens
never appear.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from sos_controller import audit as audit_log

# Attributes of every LogRecord. Other attributes come from `extra=` and are printed as fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields"}
_ENCODE = json.JSONEncoder(default=str).encode


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the values of `extra=`. The value `fields` contains further fields, whose names may equal a LogRecord's own attributes
    (`name`)."""
    found = {name: getattr(record, name) for name in sorted(vars(record).keys() - _STANDARD)}
    found.update(getattr(record, "fields", ()))
    return found


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return one JSON object per record."""
        stamp = audit_log.stamp(int(record.created * 1000))
        line: dict[str, Any] = {"time": stamp, "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _ENCODE({**line, **_fields(record), **line})  # in this order, so that no field of the line is overwritten


class _Text(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, with the fields after the message."""
        return " ".join((super().formatMessage(record), *(f"{name}={value}" for name, value in _fields(record).items())))


def setup(level: str, form: str, *, audit: bool = True) -> None:
    """Configure logging once. Audit records have level INFO, so a higher `level` excludes them as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    audit_log.LOG.disabled = not audit
    # These fields are not printed, and with eventlet's threads, determining them is half of a line's cost.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for noisy in ("ryu", "ofp_event", "Handshake"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # `connection` reports messages that Ryu cannot parse, without a traceback.
    logging.getLogger("ryu.ofproto.ofproto_parser").setLevel(logging.CRITICAL)
