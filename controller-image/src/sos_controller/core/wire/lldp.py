"""Probes: LLDP frames (IEEE 802.1AB) that carry their sender and egress port, and a keyed tag, so that no host can forge a probe.

Parsed by slicing, after the ethertype has been checked. A probe is accepted only while it is fresh, so that a recorded probe cannot
announce a link elsewhere for long, and a link counts only when both directions have been seen (`topology.links`).
"""

from __future__ import annotations

import hmac
import struct
from typing import Final, NamedTuple

from sos_controller.core.openflow.pipeline import ETH_LLDP
from sos_controller.core.types import DatapathId, Location, MacAddress, PortNo
from sos_controller.core.wire import keys
from sos_controller.core.wire.packets import ethertype

LLDP_MULTICAST: Final = b"\x01\x80\xc2\x00\x00\x0e"
ORGANISATION: Final = b"\x02\x53\x4f"
"""A locally administered identifier for our TLV (IEEE 802.1AB-2016, 8.6)."""
SUBTYPE: Final = 1
MAX_AGE_MS: Final = 1_500
"""Maximum age of a probe at its arrival: one and a half probe intervals. A genuine probe takes milliseconds."""
TAG_BYTES: Final = 16
MAX_TLVS: Final = 16

_BODY: Final = struct.Struct("!IQIQ")
_OWN_BYTES: Final = 4 + _BODY.size + TAG_BYTES


class Probe(NamedTuple):
    """A probe that arrived, with its origin."""

    controller_id: int
    origin: Location
    sent_ms: int


def encode(key: bytes, probe: Probe, mac: MacAddress) -> bytes:
    """Return the frame to send out of `probe.origin`; `mac`: MAC address of the port."""
    dpid, port_no = probe.origin
    body = _BODY.pack(probe.controller_id, dpid, port_no, probe.sent_ms)
    own = ORGANISATION + bytes([SUBTYPE]) + body + keys.tag(key, body)[:TAG_BYTES]
    chassis = b"\x07" + f"dpid:{dpid:016x}".encode()
    port = b"\x07" + str(port_no).encode()
    tlvs = (_tlv(1, chassis), _tlv(2, port), _tlv(3, b"\x00\x04"), _tlv(127, own), b"\x00\x00")
    source = bytes([mac[0] & 0xFE]) + mac[1:]
    return LLDP_MULTICAST + source + b"\x88\xcc" + b"".join(tlvs)


def decode(key: bytes, data: bytes, clock: tuple[int, int]) -> Probe | None:
    """Return the probe in a frame if it is recent and signed with this key, else None. `clock`: the earliest time at which the frame may
    have arrived, and the present, in milliseconds."""
    if ethertype(data) != ETH_LLDP:
        return None
    at = 14
    for _ in range(MAX_TLVS):
        if at + 2 > len(data):
            return None
        kind, length = data[at] >> 1, (data[at] & 1) << 8 | data[at + 1]
        value = data[at + 2 : at + 2 + length]
        if kind == 0 or len(value) != length:
            return None
        if kind == 127 and length == _OWN_BYTES and value[:4] == ORGANISATION + bytes([SUBTYPE]):
            return _decode_own(key, value[4:], clock)
        at += 2 + length
    return None


def _decode_own(key: bytes, value: bytes, clock: tuple[int, int]) -> Probe | None:
    body, given = value[: _BODY.size], value[_BODY.size :]
    if not hmac.compare_digest(keys.tag(key, body)[:TAG_BYTES], given):
        return None
    controller_id, dpid, port_no, sent_ms = _BODY.unpack(body)
    if not clock[0] - MAX_AGE_MS <= sent_ms <= clock[1]:
        return None
    return Probe(controller_id, Location(DatapathId(dpid), PortNo(port_no)), sent_ms)


def _tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value
