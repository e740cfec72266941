"""Encoding and decoding of agents' reports of paths and services (spec/order.md 13)."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from sos_controller.core.types import AgentId
from sos_controller.core.wire.order import OrderError

MAX_ROWS = 16
"""Maximum number of paths, and of services, in one PathReport."""

_HEAD = struct.Struct("!QHH4x")
_PATH = struct.Struct("!16sBxHII4xQQ")
_SERVICE = struct.Struct("!8sI4xQQ")


class PathRow(NamedTuple):
    """Counters of one path: a label towards another agent. Round trips in microseconds, 0 = unknown."""

    peer: AgentId
    label: int
    streams: int
    rtt_us: int
    min_rtt_us: int
    sent: int
    received: int


class ServiceRow(NamedTuple):
    """Counters of one service at an ingress agent."""

    mark: bytes
    sessions: int
    up: int
    down: int


class PathReport(NamedTuple):
    """Counters of an agent since its start, all read at the same time."""

    sampled_ms: int
    paths: tuple[PathRow, ...]
    services: tuple[ServiceRow, ...]


def service_mark(service_id: str) -> bytes:
    """Return the mark that represents a service's id."""
    return hashlib.sha256(service_id.encode()).digest()[:8]


def decode_path_report(data: bytes) -> PathReport:
    """Return the value of a PathReport body; raise OrderError if it is invalid."""
    if len(data) < _HEAD.size:
        raise OrderError("length")
    sampled_ms, paths, services = _HEAD.unpack_from(data)
    middle = _HEAD.size + _PATH.size * paths
    if paths > MAX_ROWS or services > MAX_ROWS or len(data) != middle + _SERVICE.size * services:
        raise OrderError("length")
    found = (PathRow(*_PATH.unpack_from(data, _HEAD.size + _PATH.size * i)) for i in range(paths))
    counted = (ServiceRow(*_SERVICE.unpack_from(data, middle + _SERVICE.size * i)) for i in range(services))
    return PathReport(sampled_ms, tuple(row._replace(peer=AgentId(row.peer)) for row in found), tuple(counted))


def encode_path_report(report: PathReport) -> bytes:
    """Return the body of a PathReport (agents send it; tests and tools write it)."""
    head = _HEAD.pack(report.sampled_ms, len(report.paths), len(report.services))
    return head + b"".join(_PATH.pack(*row) for row in report.paths) + b"".join(_SERVICE.pack(*row) for row in report.services)
