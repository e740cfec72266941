"""Audit log: one record for each session that has ended, with addresses and ports of client and server (docs/security.md)."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

from sos_controller.core.commands import SessionOver
from sos_controller.core.types import AgentId, format_address
from sos_controller.core.wire.order import ENDS, Ended

LOG = logging.getLogger("sos_controller.audit")

AGENT_ID_BYTES = 16
LABELS = 8


def record(over: SessionOver) -> None:
    """Write the record, unless the level excludes it: thousands of sessions may end in a second."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info("session", extra={"fields": fields(over)})


def fields(over: SessionOver) -> dict[str, Any]:
    """Return the fields of the record. None marks a value unknown to the controller; adopted sessions have many unknown values."""
    key = over.key
    told = [end for end in (over.ingress_end, over.egress_end) if isinstance(end, Ended)]
    return {
        "uuid": over.uuid.hex(),
        "service": over.service or None,
        "client": _end_point(key[:4], key[8:10]),
        "server": _end_point(key[4:8], key[10:]),
        "ingress": _agent(over.ingress),
        "egress": _agent(over.egress),
        "labels": None if over.adopted else _labels(over.labels),
        "adopted": over.adopted,
        "began": stamp(over.began_ms),
        "seconds": round(over.seconds, 3),
        "reason": over.reason,
        "ingressEnd": _end(over.ingress_end),
        "egressEnd": _end(over.egress_end),
        "bytesToServer": max((end.bytes_to_server for end in told), default=None),
        "bytesToClient": max((end.bytes_to_client for end in told), default=None),
    }


def _end_point(address: bytes, port: bytes) -> str:
    return f"{format_address(int.from_bytes(address, 'big'))}:{int.from_bytes(port, 'big')}"


def _agent(agent_id: AgentId) -> str | None:
    """Return the id, or None for an agent of an adopted session if the agent has never announced itself."""
    return agent_id.hex() if len(agent_id) == AGENT_ID_BYTES else None


def _end(end: Ended | str | None) -> str | None:
    if isinstance(end, Ended):
        return ENDS[end.reason] if end.reason < len(ENDS) else f"reason-{end.reason}"
    return end


def stamp(wall_ms: int) -> str:
    """Format a time in milliseconds since 1970 as in RFC 3339."""
    return f"{_second(wall_ms // 1000)}.{wall_ms % 1000:03d}Z"


@functools.lru_cache(maxsize=256)
def _second(wall_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))


@functools.lru_cache(maxsize=256)
def _labels(mask: int) -> list[int]:
    return [label for label in range(LABELS) if mask >> label & 1]
