"""Encoding and decoding of orders between controller and agents (spec/order.md)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from sos_controller.core.types import MAPPED, Address, AgentId, FlowKey, flow_key, map_address, unmap_address
from sos_controller.core.wire import keys

MAGIC: Final = b"SOSO"
VERSION: Final = 1
HEADER_BYTES: Final = 64
MAX_BYTES: Final = 1_400
MAX_REPORTED: Final = 64
"""Maximum number of UUIDs in one chunk of a SessionReport."""
MAX_FLOWS: Final = 16
"""Maximum number of sessions in one chunk of a FlowReport."""

_HEADER: Final = struct.Struct("!4sBBHIHH16sQQQQ")
_PREPARE: Final = struct.Struct("!16sBBHIII16s16sHHIBBBBI16s16sH14x")
_UUID_BYTES, _CLIENT_AT, _AFTER_ENDS = 16, 32, 68
_REPORT: Final = struct.Struct("!IHHH6x")
_FLOW: Final = struct.Struct("!16sB3xHH16s16s16s")
_REFUSED: Final = struct.Struct("!16sH6x")
_READY: Final = struct.Struct("!16sB7x")
_ENDED: Final = struct.Struct("!16sH6xQQQ")


class OrderType(IntEnum):
    """Types of spec/order.md 2."""

    PREPARE = 1
    READY = 2
    REFUSED = 3
    RELEASE = 4
    ENDED = 5
    ENDED_ACK = 6
    SESSION_REPORT = 7
    WATCH = 8
    FLOW_REPORT = 9
    PATH_REPORT = 10
    PLAIN_REPORT = 11
    ABORT = 12


class Role(IntEnum):
    """Role of an agent in a session."""

    INGRESS = 1
    EGRESS = 2


ENDS: Final = ("closed", "client-reset", "server-reset", "server-refused", "server-unreachable", "peer-lost", "expired", "limit")
"""Reasons of an Ended (spec/order.md 6)."""

ACCEPT_EARLY: Final = 0
ACCEPT_CONFIRMED: Final = 1
"""The egress agent sends Ready only after it has connected to the server (spec/order.md 3)."""

REFUSED_BY_SERVER: Final = (9, 10, 11)
"""Reasons of a Refused that concern the server (spec/order.md 4): a reset, an ICMP error, no answer."""

CONGESTION: Final = {"Auto": 0, "Cubic": 1, "BBR": 2, "Reno": 3}
TRANSPORT_TCP_PARALLEL: Final = 1


class OrderError(Exception):
    """A message that is no acceptable order; the argument is the reason counted."""


class Header(NamedTuple):
    """Header fields that vary."""

    type: int
    key_id: int
    controller_id: int
    agent_id: AgentId
    boot_id: int
    sequence: int
    time_ms: int
    reply_to: int


class Prepare(NamedTuple):
    """Announcement of a client's connection. 0 = the agent decides."""

    uuid: bytes
    role: int
    streams: int
    block_bytes: int
    queue_bytes: int
    lease_ms: int
    client: Address
    server: Address
    client_port: int
    server_port: int
    labels: int
    congestion: int
    accept: int
    dscp: int
    ttl: int
    peer_id: AgentId
    peer_address: Address
    peer_stream_port: int


class Ended(NamedTuple):
    """A session is over."""

    uuid: bytes
    reason: int
    bytes_to_server: int
    bytes_to_client: int
    duration_ms: int


class Report(NamedTuple):
    """A chunk of an agent's list of sessions."""

    number: int
    chunk: int
    chunks: int
    uuids: tuple[bytes, ...]


class ReportedFlow(NamedTuple):
    """A session that was begun without an order, as reported by one of its agents."""

    uuid: bytes
    role: int
    key: FlowKey
    peer: AgentId


class FlowReport(NamedTuple):
    """A chunk of an agent's list of sessions without an order."""

    number: int
    chunk: int
    chunks: int
    flows: tuple[ReportedFlow, ...]


def encode(header: Header, body: bytes, key: bytes) -> bytes:
    """Return a complete order with its tag."""
    h = header
    message = (
        _HEADER.pack(
            MAGIC, VERSION, h.type, h.key_id, h.controller_id, len(body), 0, h.agent_id, h.boot_id, h.sequence, h.time_ms, h.reply_to
        )
        + body
    )
    return message + keys.tag(key, message)


def encode_prepare(p: Prepare) -> bytes:
    """Return the body of a Prepare."""
    return _PREPARE.pack(
        *(p.uuid, p.role, TRANSPORT_TCP_PARALLEL, p.streams, p.block_bytes, p.queue_bytes, p.lease_ms),
        *(map_address(p.client), map_address(p.server), p.client_port, p.server_port, p.labels),
        *(p.congestion, p.accept, p.dscp, p.ttl, 0),
        *(p.peer_id, map_address(p.peer_address), p.peer_stream_port),
    )


def prepare_form(p: Prepare) -> tuple[bytes, bytes]:
    """Return the parts of a Prepare's body before and after the flow's addresses and ports, for `fill_prepare`."""
    body = encode_prepare(p)
    return body[_UUID_BYTES:_CLIENT_AT], body[_AFTER_ENDS:]


def fill_prepare(before: bytes, after: bytes, uuid: bytes, key: FlowKey) -> bytes:
    """Return the body of a Prepare for a flow, from the parts of `prepare_form`."""
    return uuid + before + MAPPED + key[:4] + MAPPED + key[4:] + after


def decode_prepare(body: bytes) -> Prepare:
    """Return the value of a Prepare body (the controller only sends it; tests and tools read it). Raise OrderError if it is invalid."""
    if len(body) != _PREPARE.size:
        raise OrderError("length")
    f = _PREPARE.unpack(body)
    return Prepare(
        uuid=f[0], role=f[1], streams=f[3], block_bytes=f[4], queue_bytes=f[5], lease_ms=f[6],
        client=Address(int.from_bytes(f[7][12:], "big")), server=Address(int.from_bytes(f[8][12:], "big")),
        client_port=f[9], server_port=f[10], labels=f[11], congestion=f[12], accept=f[13], dscp=f[14], ttl=f[15],
        peer_id=AgentId(f[17]), peer_address=Address(int.from_bytes(f[18][12:], "big")), peer_stream_port=f[19],
    )  # fmt: skip


def decode_header(data: bytes) -> Header:
    """Return the header of an order; the caller checks the tag with `signed_by`. Raise OrderError if it is no order."""
    if not HEADER_BYTES + keys.TAG_BYTES <= len(data) <= MAX_BYTES:
        raise OrderError("length")
    magic, version, type_, key_id, controller_id, length, _, agent_id, boot, sequence, time_ms, reply_to = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise OrderError("magic")
    if version != VERSION:
        raise OrderError("version")
    if length != len(data) - HEADER_BYTES - keys.TAG_BYTES:
        raise OrderError("length")
    return Header(type_, key_id, controller_id, AgentId(agent_id), boot, sequence, time_ms, reply_to)


def signed_by(data: bytes, key: bytes) -> bool:
    """Return whether the tag at the end is valid."""
    return keys.verify(key, data[: -keys.TAG_BYTES], data[-keys.TAG_BYTES :])


def body(data: bytes) -> bytes:
    """Return the bytes between header and tag."""
    return data[HEADER_BYTES : -keys.TAG_BYTES]


def decode_uuid(data: bytes) -> bytes:
    """Return the UUID in the body of Release, EndedAck or Abort."""
    if len(data) != 16:
        raise OrderError("length")
    return data


def decode_ready(data: bytes) -> tuple[bytes, bool]:
    """Return the UUID of a Ready body, and whether the server has accepted the connection."""
    if len(data) == 16:
        return data, False
    if len(data) != _READY.size:
        raise OrderError("length")
    uuid, accepted = _READY.unpack(data)
    if accepted != ACCEPT_CONFIRMED:
        raise OrderError("ready")
    return uuid, True


def encode_accepted(uuid: bytes) -> bytes:
    """Return the body of a Ready after the server has accepted."""
    return _READY.pack(uuid, ACCEPT_CONFIRMED)


def decode_refused(data: bytes) -> tuple[bytes, int]:
    """Return UUID and reason of a Refused body."""
    if len(data) != _REFUSED.size:
        raise OrderError("length")
    uuid, reason = _REFUSED.unpack(data)
    return uuid, reason


def encode_refused(uuid: bytes, reason: int) -> bytes:
    """Return the body of a Refused."""
    return _REFUSED.pack(uuid, reason)


def decode_ended(data: bytes) -> Ended:
    """Return the value of an Ended body."""
    if len(data) != _ENDED.size:
        raise OrderError("length")
    return Ended(*_ENDED.unpack(data))


def encode_ended(ended: Ended) -> bytes:
    """Return the body of an Ended."""
    return _ENDED.pack(*ended)


def decode_report(data: bytes) -> Report:
    """Return one chunk of a SessionReport."""
    if len(data) < _REPORT.size:
        raise OrderError("length")
    number, chunk, chunks, count = _REPORT.unpack_from(data)
    if count > MAX_REPORTED or len(data) != _REPORT.size + 16 * count or not chunk < chunks:
        raise OrderError("length")
    start = _REPORT.size
    return Report(number, chunk, chunks, tuple(data[start + 16 * i : start + 16 * i + 16] for i in range(count)))


def encode_report(report: Report) -> bytes:
    """Return the body of one chunk of a SessionReport."""
    return _REPORT.pack(report.number, report.chunk, report.chunks, len(report.uuids)) + b"".join(report.uuids)


def decode_flow_report(data: bytes) -> FlowReport:
    """Return one chunk of a FlowReport."""
    if len(data) < _REPORT.size:
        raise OrderError("length")
    number, chunk, chunks, count = _REPORT.unpack_from(data)
    if count > MAX_FLOWS or len(data) != _REPORT.size + _FLOW.size * count or not chunk < chunks:
        raise OrderError("length")
    return FlowReport(number, chunk, chunks, tuple(_reported(data, _REPORT.size + _FLOW.size * i) for i in range(count)))


def _reported(data: bytes, at: int) -> ReportedFlow:
    uuid, role, client_port, server_port, client, server, peer = _FLOW.unpack_from(data, at)
    addresses = unmap_address(client), unmap_address(server)
    if role not in (Role.INGRESS, Role.EGRESS) or addresses[0] is None or addresses[1] is None:
        raise OrderError("flow")
    return ReportedFlow(uuid, role, flow_key(addresses[0], addresses[1], client_port, server_port), AgentId(peer))


def encode_flow_report(report: FlowReport) -> bytes:
    """Return the body of one chunk of a FlowReport."""
    head = _REPORT.pack(report.number, report.chunk, report.chunks, len(report.flows))
    return head + b"".join(_encode_flow(flow) for flow in report.flows)


def _encode_flow(f: ReportedFlow) -> bytes:
    client, server = (map_address(int.from_bytes(f.key[at : at + 4], "big")) for at in (0, 4))
    ports = (f.key[8] << 8 | f.key[9], f.key[10] << 8 | f.key[11])
    return _FLOW.pack(f.uuid, f.role, *ports, client, server, f.peer)
