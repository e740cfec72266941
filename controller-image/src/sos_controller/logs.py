"""Log lines as text or JSON, on standard error. Addresses of users appear at DEBUG only, keys and tokens never."""

from __future__ import annotations

import json
import logging
import sys
import time


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object per record."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def setup(level: str, form: str) -> None:
    """Configure logging once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("ryu", "ofp_event", "Handshake"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # What a switch sent that Ryu cannot parse is reported by `connection`, without a traceback.
    logging.getLogger("ryu.ofproto.ofproto_parser").setLevel(logging.CRITICAL)
