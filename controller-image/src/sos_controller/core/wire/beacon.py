"""Encoding and decoding of agents' beacons (spec/beacon.md)."""

from __future__ import annotations

import struct

import msgspec

from sos_controller.core.types import Address, AgentId, MacAddress, map_address, unmap_address
from sos_controller.core.wire import keys

MAGIC = b"SOSB"
VERSION = 1
TYPE = 1
MAX_BYTES = 512
FIXED_BYTES = 120
FLAG_DRAINING = 1
FLAG_WILLING = 2

_FIXED = struct.Struct("!4sBBHHHHH16sQQQIIQHHHHHBBI16s6sHQ")


class Beacon(msgspec.Struct, frozen=True, kw_only=True):
    """One beacon. Units as in spec/beacon.md 2."""

    key_id: int
    site_id: int
    flags: int
    agent_id: AgentId
    boot_id: int
    sequence: int
    time_ms: int
    sessions: int
    session_limit: int
    bytes_per_second: int
    cpu_permille: int
    streams: int
    order_port: int
    first_stream_port: int
    stream_ports: int
    address: Address
    mac: MacAddress
    capacity_bps: int
    name: str
    service_types: tuple[str, ...]


class BeaconError(Exception):
    """A message that is not a beacon of this version; the argument is the reason counted."""


def encode(beacon: Beacon, key: bytes) -> bytes:
    """Return the bytes of a beacon with its tag."""
    name = beacon.name.encode()
    types = [t.encode("ascii") for t in beacon.service_types]
    tail = name + b"".join(bytes([len(t)]) + t for t in types)
    b = beacon
    head = _FIXED.pack(
        *(MAGIC, VERSION, TYPE, b.key_id, b.site_id, b.flags, FIXED_BYTES + len(tail) + keys.TAG_BYTES, 0, b.agent_id),
        *(b.boot_id, b.sequence, b.time_ms, b.sessions, b.session_limit, b.bytes_per_second, b.cpu_permille, b.streams),
        *(b.order_port, b.first_stream_port, b.stream_ports, len(name), len(types), 0, map_address(b.address), b.mac, 0),
        b.capacity_bps,
    )
    message = head + tail
    return message + keys.tag(key, message)


def decode(data: bytes) -> Beacon:
    """Return the value of a beacon whose tag the caller checks with `signed_by`; raise BeaconError if the bytes are no beacon."""
    if not FIXED_BYTES + keys.TAG_BYTES <= len(data) <= MAX_BYTES:
        raise BeaconError("length")
    f = _FIXED.unpack_from(data)
    if f[0] != MAGIC:
        raise BeaconError("magic")
    if f[1] != VERSION or f[2] != TYPE:
        raise BeaconError("version")
    if f[6] != len(data):
        raise BeaconError("length")
    address = unmap_address(f[23])
    if address is None:
        raise BeaconError("address")
    name, types = _tail(data[FIXED_BYTES : -keys.TAG_BYTES], f[20], f[21])
    return Beacon(
        key_id=f[3], site_id=f[4], flags=f[5], agent_id=AgentId(f[8]), boot_id=f[9], sequence=f[10], time_ms=f[11], sessions=f[12],
        session_limit=f[13], bytes_per_second=f[14], cpu_permille=f[15], streams=f[16], order_port=f[17], first_stream_port=f[18],
        stream_ports=f[19], address=address, mac=MacAddress(f[24]), capacity_bps=f[26], name=name, service_types=types,
    )  # fmt: skip


def signed_by(data: bytes, key: bytes) -> bool:
    """Return whether the tag at the end is valid."""
    return keys.verify(key, data[: -keys.TAG_BYTES], data[-keys.TAG_BYTES :])


def _tail(tail: bytes, name_length: int, count: int) -> tuple[str, tuple[str, ...]]:
    if not 1 <= name_length <= 63 or not 1 <= count <= 8 or name_length > len(tail):
        raise BeaconError("length")
    rest, types = tail[name_length:], []
    try:
        name = tail[:name_length].decode()
        for _ in range(count):
            length = rest[0] if rest else 0
            if not 1 <= length <= 31 or len(rest) <= length:
                raise BeaconError("length")
            types.append(rest[1 : 1 + length].decode("ascii"))
            rest = rest[1 + length :]
    except UnicodeDecodeError as error:
        raise BeaconError("text") from error
    if rest:
        raise BeaconError("length")
    return name, tuple(types)
