"""Encoding and decoding of agents' reports of connections that they left plain (spec/order.md 14)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from sos_controller.core.types import FlowKey
from sos_controller.core.wire.order import OrderError

MAX_ROWS = 16
"""Maximum number of counters, and of connections, in one PlainReport."""
ACCELERATED = 0
"""Reason code of the counter of connections begun without an order, which are accelerated, not plain."""

_HEAD = struct.Struct("!HH4x")
_ROW = struct.Struct("!8sH6xQ")
_SAMPLE = struct.Struct("!8sH2xHH16s16s")
_MAPPED = bytes(10) + b"\xff\xff"


class PlainRow(NamedTuple):
    """Connections of a service with one reason, since the agent's start."""

    mark: bytes
    reason: int
    connections: int


class PlainSample(NamedTuple):
    """One connection that went plain."""

    mark: bytes
    reason: int
    key: FlowKey


class PlainReport(NamedTuple):
    """Connections that an ingress agent has left plain."""

    rows: tuple[PlainRow, ...]
    samples: tuple[PlainSample, ...]


def decode_plain_report(data: bytes) -> PlainReport:
    """Return the value of a PlainReport body; raise OrderError if it is invalid."""
    if len(data) < _HEAD.size:
        raise OrderError("length")
    rows, samples = _HEAD.unpack_from(data)
    middle = _HEAD.size + _ROW.size * rows
    if rows > MAX_ROWS or samples > MAX_ROWS or len(data) != middle + _SAMPLE.size * samples:
        raise OrderError("length")
    counted = tuple(PlainRow(*_ROW.unpack_from(data, _HEAD.size + _ROW.size * i)) for i in range(rows))
    return PlainReport(counted, tuple(_sample(data, middle + _SAMPLE.size * i) for i in range(samples)))


def encode_plain_report(report: PlainReport) -> bytes:
    """Return the body of a PlainReport (agents send it; tests and tools write it)."""
    head = _HEAD.pack(len(report.rows), len(report.samples))
    samples = (_SAMPLE.pack(s.mark, s.reason, *_ports(s.key), _MAPPED + s.key[:4], _MAPPED + s.key[4:8]) for s in report.samples)
    return head + b"".join(_ROW.pack(*row) for row in report.rows) + b"".join(samples)


def _ports(key: FlowKey) -> tuple[int, int]:
    return int.from_bytes(key[8:10], "big"), int.from_bytes(key[10:], "big")


def _sample(data: bytes, at: int) -> PlainSample:
    mark, reason, client_port, server_port, client, server = _SAMPLE.unpack_from(data, at)
    if client[:12] != _MAPPED or server[:12] != _MAPPED:
        raise OrderError("address")
    key = client[12:] + server[12:] + client_port.to_bytes(2, "big") + server_port.to_bytes(2, "big")
    return PlainSample(mark, reason, FlowKey(key))
