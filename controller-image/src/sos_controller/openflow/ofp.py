"""OpenFlow 1.3 on the wire: flow-mods, packet-outs, barriers and requests rendered with struct; messages of switches parsed by slicing.

Clause numbers are those of OpenFlow Switch Specification 1.3.5. An object of Ryu costs tens of microseconds, a function of this module a
few. Matches are in `oxm`, rarer actions and groups in `rewrite`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from sos_controller.core.commands import ApplyGroup
from sos_controller.core.openflow.election import Granted
from sos_controller.core.openflow.flow_entries import UNKNOWN, Action, FlowEntry, Goto, Match, Output, SetEthDst, SetEthSrc, ToGroup
from sos_controller.core.openflow.groups import ApplyFailovers
from sos_controller.core.openflow.pipeline import PORT_NORMAL
from sos_controller.core.types import MacAddress, Port, PortNo
from sos_controller.openflow import rewrite
from sos_controller.openflow.oxm import ETH_DST, ETH_SRC, decode_match, encode_match

VERSION: Final = 4
HEADER_BYTES: Final = 8
MAX_MESSAGE: Final = 65_535

HELLO: Final = 0
ERROR: Final = 1
ECHO_REQUEST: Final = 2
ECHO_REPLY: Final = 3
MARKER_BYTES: Final = 8
MARKED_REPLY_BYTES: Final = 8 + MARKER_BYTES
FEATURES_REPLY: Final = 6
SET_CONFIG: Final = 9
PACKET_IN: Final = 10
FLOW_REMOVED: Final = 11
PORT_STATUS: Final = 12
PACKET_OUT: Final = 13
FLOW_MOD: Final = 14
GROUP_MOD: Final = 15
MULTIPART_REQUEST: Final = 18
MULTIPART_REPLY: Final = 19
BARRIER_REQUEST: Final = 20
BARRIER_REPLY: Final = 21
ROLE_REQUEST: Final = 24
ROLE_REPLY: Final = 25
MULTIPART_FLOW, MULTIPART_TABLE_FEATURES, MULTIPART_PORT_DESC = 1, 12, 13
REPLY_MORE: Final = 1
HELLO_VERSIONS: Final = 1
MAX_HELLO_BYTES: Final = 64
"""Maximum length of a Hello. A header and one bitmap take 16 bytes; a much longer Hello would list thousands of versions."""
MAX_ERROR_TYPE, MAX_ERROR_CODE = 17, 21
"""Highest values named by OpenFlow 1.3.5, 7.4.4; higher values are counted together, so that a switch cannot add metrics at will."""

TABLE_FULL: Final = struct.pack("!HH", 5, 1)
"""Type OFPET_FLOW_MOD_FAILED, code OFPFMFC_TABLE_FULL (7.4.4)."""
STALE: Final = struct.pack("!HH", 11, 0)
"""Type OFPET_ROLE_REQUEST_FAILED, code OFPRRFC_STALE (7.4.4.11)."""
IS_SLAVE: Final = struct.pack("!HH", 1, 10)
"""Type OFPET_BAD_REQUEST, code OFPBRC_IS_SLAVE (7.4.4.2)."""
ERROR_BYTES, FLOW_MOD_TABLE = 12, 24
"""Size of an error's header, and offset of the table in a flow-mod."""

NO_BUFFER: Final = 0xFFFFFFFF
ANY: Final = 0xFFFFFFFF
ALL_TABLES: Final = 0xFF
WHOLE_PACKET: Final = 0xFFFF
"""OFPCML_NO_BUFFER (7.2.5)."""
ADD: Final = 0
DELETE_STRICT: Final = 4
SEND_FLOW_REMOVED: Final = 1
GROUP_DELETE, GROUP_ADD_OR_MODIFY = 2, 0x8000
"""OFPGC_DELETE, and OFPGC11_ADD_OR_MOD of Open vSwitch: an agent's switch is always one of our bridges."""
INDIRECT, FAST_FAILOVER = 2, 3
PORT_STATUS_DELETE: Final = 1
PORT_DOWN, NO_PACKET_IN = 1, 1 << 6
"""Flags of a port's configuration (7.2.1)."""
LINK_DOWN, LIVE = 1, 1 << 2
"""Flags of a port's state (7.2.1)."""

_HEADER: Final = struct.Struct("!BBHI")
_FLOW_MOD: Final = struct.Struct("!BBHIQQBBHHH12sHxx")
_ANYWHERE: Final = struct.pack("!III", NO_BUFFER, ANY, ANY)
"""Fields of a flow-mod: no packet to release, no output port or group that would narrow a deletion."""
_PACKET_OUT: Final = struct.Struct("!BBHIIIH6x")
_PORT: Final = struct.Struct("!I4x6s2x16sII")
_PORT_BYTES: Final = 64
_OUTPUT: Final = struct.Struct("!HHIH6x")
_GROUP_MOD: Final = struct.Struct("!BBHIHBxI")
_BUCKET: Final = struct.Struct("!HHII4x")
_APPLY: Final = struct.Struct("!HH4x")
_GOTO: Final = struct.Struct("!HHB3x")
_ROLE: Final = struct.Struct("!BBHII4xQ")
_TABLE_FEATURES: Final = struct.Struct("!HB5x32x8x8x4xI")
_FLOW_STATS: Final = struct.Struct("!HBxIIHHHH4xQQQ")

PLAIN_HELLO: Final = _HEADER.pack(VERSION, HELLO, HEADER_BYTES, 0)
"""A Hello that offers only OpenFlow 1.3."""

_SET_ETH: dict[type, bytes] = {
    SetEthDst: struct.pack("!HHI", 25, 16, ETH_DST),
    SetEthSrc: struct.pack("!HHI", 25, 16, ETH_SRC),
}


def encode_actions(actions: tuple[Action, ...]) -> bytes:
    """Return the ofp_action list (7.2.5) without Goto, which is an instruction."""
    parts = []
    for a in actions:
        if isinstance(a, Output):
            parts.append(_OUTPUT.pack(0, 16, a.port_no, WHOLE_PACKET))
        elif isinstance(a, SetEthDst | SetEthSrc):
            parts.append(_SET_ETH[type(a)] + a.mac + b"\0\0")
        elif not isinstance(a, Goto):
            parts.append(rewrite.encode_action(a))
    return b"".join(parts)


@lru_cache(maxsize=4_096)
def encode_instructions(actions: tuple[Action, ...]) -> bytes:
    """Return apply-actions, then goto-table (7.2.4). Cached: instructions that forward to an agent are the same for all its flows."""
    applied = encode_actions(actions)
    parts = _APPLY.pack(4, 8 + len(applied)) + applied if applied else b""
    last = actions[-1] if actions else None
    return parts + _GOTO.pack(1, 8, last.table) if isinstance(last, Goto) else parts


def flow_mod(entry: FlowEntry, command: int, xid: int) -> bytes:
    """Return ofp_flow_mod (7.3.4.2). A strict delete removes only the entry with the same cookie."""
    match = encode_match(entry.match)
    adding = command == ADD
    tail = match + encode_instructions(entry.actions) if adding else match
    idle, hard = (entry.idle_timeout, entry.hard_timeout) if adding else (0, 0)
    mask = 0 if adding else 0xFFFFFFFF_FFFFFFFF
    flags = SEND_FLOW_REMOVED if entry.told else 0
    size = _FLOW_MOD.size + len(tail)
    cookie, table, priority = entry.cookie, entry.table, entry.priority
    return _FLOW_MOD.pack(VERSION, FLOW_MOD, size, xid, cookie, mask, table, command, idle, hard, priority, _ANYWHERE, flags) + tail


def failover_group(group_id: int, port_no: PortNo, mac: MacAddress | None) -> bytes:
    """Return the messages for two groups (7.3.4.3). The first redirects to `mac` while `port_no` is live, else it points to the second
    group (`group_id` + 1), which forwards plainly. A bucket has to watch a port or group, and only the second group is always live. No
    `mac` = delete both groups."""
    plain = group_id + 1
    if mac is None:
        return _group_mod(GROUP_DELETE, FAST_FAILOVER, group_id, b"") + _group_mod(GROUP_DELETE, INDIRECT, plain, b"")
    redirected = _bucket(port_no, ANY, (SetEthDst(mac), Output(port_no)))
    otherwise = _bucket(ANY, plain, (ToGroup(plain),))
    normal = _bucket(ANY, ANY, (Output(PORT_NORMAL),))
    chooser = _group_mod(GROUP_ADD_OR_MODIFY, FAST_FAILOVER, group_id, redirected + otherwise)
    return _group_mod(GROUP_ADD_OR_MODIFY, INDIRECT, plain, normal) + chooser


def apply_group(command: ApplyGroup) -> bytes:
    """Return the messages of a command."""
    if command.otherwise == PORT_NORMAL:
        return failover_group(command.group_id, command.port_no, command.mac)
    if command.mac is None:
        return _group_mod(GROUP_DELETE, FAST_FAILOVER, command.group_id, b"")
    redirected = _bucket(command.port_no, ANY, (SetEthDst(command.mac), Output(command.port_no)))
    rejected = _bucket(command.otherwise, ANY, (Output(command.otherwise),))
    return _group_mod(GROUP_ADD_OR_MODIFY, FAST_FAILOVER, command.group_id, redirected + rejected)


def apply_failovers(command: ApplyFailovers) -> bytes:
    """Return the messages of a command (7.3.4.3): the group that the others fall back to is made first and deleted last."""
    parts = []
    if command.groups:
        parts.append(_group_mod(GROUP_ADD_OR_MODIFY, INDIRECT, command.plain_id, _bucket(ANY, ANY, (Output(PORT_NORMAL),))))
    otherwise = _bucket(ANY, command.plain_id, (ToGroup(command.plain_id),))
    for group in command.groups:
        ways = b"".join(_bucket(port_no, ANY, (SetEthDst(mac), Output(port_no))) for port_no, mac in group.ways)
        parts.append(_group_mod(GROUP_ADD_OR_MODIFY, FAST_FAILOVER, group.group_id, ways + otherwise))
    parts += [_group_mod(GROUP_DELETE, FAST_FAILOVER, number, b"") for number in command.deletes]
    return b"".join(parts)


def _group_mod(command: int, kind: int, group_id: int, buckets: bytes) -> bytes:
    return _GROUP_MOD.pack(VERSION, GROUP_MOD, _GROUP_MOD.size + len(buckets), 0, command, kind, group_id) + buckets


def _bucket(watch_port: int, watch_group: int, actions: tuple[Action, ...]) -> bytes:
    encoded = encode_actions(actions)
    return _BUCKET.pack(_BUCKET.size + len(encoded), 0, watch_port, watch_group) + encoded


def packet_out(in_port: int, actions: tuple[Action, ...], data: bytes, xid: int = 0) -> bytes:
    """Return ofp_packet_out (7.3.7). b"" if the packet would not fit into a message: it is dropped."""
    encoded = encode_actions(actions)
    length = _PACKET_OUT.size + len(encoded) + len(data)
    if length > MAX_MESSAGE:
        return b""
    return _PACKET_OUT.pack(VERSION, PACKET_OUT, length, xid, NO_BUFFER, in_port, len(encoded)) + encoded + data


def barrier_request(xid: int) -> bytes:
    """Return ofp_barrier_request (7.3.8)."""
    return _HEADER.pack(VERSION, BARRIER_REQUEST, 8, xid)


def echo_request(xid: int, payload: bytes = b"") -> bytes:
    """Return ofp_echo_request (7.5.2)."""
    return _HEADER.pack(VERSION, ECHO_REQUEST, 8 + len(payload), xid) + payload


def echo_marker(marker_ms: int) -> bytes:
    """Return the echo request whose reply returns a marker."""
    return echo_request(0, marker_ms.to_bytes(MARKER_BYTES, "big"))


def echo_reply(xid: int, payload: bytes) -> bytes:
    """Return ofp_echo_reply (7.5.3)."""
    return _HEADER.pack(VERSION, ECHO_REPLY, 8 + len(payload), xid) + payload


def role_request(xid: int, role: int, generation_id: int) -> bytes:
    """Return ofp_role_request (7.3.9)."""
    return _ROLE.pack(VERSION, ROLE_REQUEST, _ROLE.size, xid, role, generation_id)


def parse_role_reply(message: bytes) -> Granted:
    """Parse a role reply (7.3.9)."""
    if len(message) != _ROLE.size:
        raise WireError("bad role reply")
    _, _, _, xid, role, generation_id = _ROLE.unpack(message)
    return Granted(xid, role, generation_id)


def refused_role(message: bytes) -> bool:
    """Return whether an error is about a role request: at least 64 bytes of the refused message follow, or all (7.4.4)."""
    return len(message) > ERROR_BYTES + 1 and message[ERROR_BYTES + 1] == ROLE_REQUEST


def set_config() -> bytes:
    """Return ofp_switch_config (7.3.2): send whole packets to the controller, and do not treat fragments specially (OFPC_FRAG_NORMAL)."""
    return struct.pack("!BBHIHH", VERSION, SET_CONFIG, 12, 0, 0, WHOLE_PACKET)


def flow_stats_request(xid: int, cookie: int, mask: int) -> bytes:
    """Return ofp_flow_stats_request for all entries of a cookie (7.3.5.2)."""
    body = struct.pack("!B3xII4xQQ", ALL_TABLES, ANY, ANY, cookie, mask) + encode_match(Match(any_vlan=True))
    return struct.pack("!BBHIHH4x", VERSION, MULTIPART_REQUEST, 16 + len(body), xid, MULTIPART_FLOW, 0) + body


def table_features_request(xid: int) -> bytes:
    """Return ofp_multipart_request for the features of all tables (7.3.5.5); a request without a body changes nothing."""
    return struct.pack("!BBHIHH4x", VERSION, MULTIPART_REQUEST, 16, xid, MULTIPART_TABLE_FEATURES, 0)


class WireError(Exception):
    """A switch sent an invalid message; its connection is closed."""


def split(data: bytes) -> tuple[list[bytes | tuple[int, ...]], int, bool]:
    """Return the complete messages at the start of a stream, the offset of the rest, and whether the stream can continue: it cannot after
    an invalid length.

    Consecutive barrier replies are one part: their tokens.
    """
    parts: list[bytes | tuple[int, ...]] = []
    answered: list[int] = []
    at, end, sound = 0, len(data), True
    while end - at >= HEADER_BYTES:
        length = data[at + 2] << 8 | data[at + 3]
        sound = length >= HEADER_BYTES
        if not sound or end - at < length:
            break
        if data[at + 1] == BARRIER_REPLY and data[at] == VERSION:
            answered.append(int.from_bytes(data[at + 4 : at + 8], "big"))
        else:
            if answered:
                parts.append(tuple(answered))
                answered = []
            parts.append(data[at : at + length])
        at += length
    if answered:
        parts.append(tuple(answered))
    return parts, at, sound


def parse_packet_in(message: bytes) -> tuple[int, PortNo, bytes]:
    """Return cookie, port and packet of an ofp_packet_in (7.4.1)."""
    if len(message) < 34:
        raise WireError("short packet-in")
    length = message[26] << 8 | message[27]
    end = 24 + length + (-length % 8) + 2
    if length < 4 or end > len(message):
        raise WireError("bad match in packet-in")
    if message[28:32] == b"\x80\x00\x00\x04":
        in_port = int.from_bytes(message[32:36], "big")
    else:
        in_port = decode_match(message[28 : 24 + length]).in_port or 0
    return int.from_bytes(message[16:24], "big"), PortNo(in_port), message[end:]


def parse_flow_removed(message: bytes) -> tuple[int, Match]:
    """Return cookie and match of the entry in an ofp_flow_removed (7.4.2)."""
    if len(message) < 56:
        raise WireError("short flow-removed")
    length = message[50] << 8 | message[51]
    if length < 4 or 48 + length > len(message):
        raise WireError("bad match in flow-removed")
    return int.from_bytes(message[8:16], "big"), decode_match(message[52 : 48 + length])


def parse_port(data: bytes) -> Port:
    """Parse ofp_port (7.2.1). The flag that disables packet-ins marks watched ports: no probe has to arrive there."""
    number, mac, name, config, state = _PORT.unpack_from(data)
    up = not (config & PORT_DOWN or state & LINK_DOWN)
    watched, live = bool(config & NO_PACKET_IN), bool(state & LIVE)
    return Port(PortNo(number), name.split(b"\0")[0].decode(errors="replace"), MacAddress(mac), up, watched, live)


def parse_ports(body: bytes) -> list[Port]:
    """Return the ports of a port description (7.3.5.7)."""
    if len(body) % _PORT_BYTES:
        raise WireError("bad port description")
    return [parse_port(body[at : at + _PORT_BYTES]) for at in range(0, len(body), _PORT_BYTES)]


def parse_port_status(message: bytes) -> tuple[Port, bool]:
    """Return the port and whether it is gone (7.4.3)."""
    if len(message) != 16 + _PORT_BYTES:
        raise WireError("bad port status")
    return parse_port(message[16:]), message[8] == PORT_STATUS_DELETE


def parse_error(message: bytes) -> tuple[int, int, int]:
    """Return type, code and transaction of an ofp_error_msg (7.4.4)."""
    if len(message) < 12:
        raise WireError("short error")
    kind, code = struct.unpack_from("!HH", message, 8)
    return kind, code, int.from_bytes(message[4:8], "big")


def full_table(message: bytes) -> int | None:
    """Return the table of a flow-mod refused because the table is full (7.4.4.6; at least 64 bytes of the flow-mod follow), else None."""
    if message[8:12] != TABLE_FULL or len(message) <= ERROR_BYTES + FLOW_MOD_TABLE or message[ERROR_BYTES + 1] != FLOW_MOD:
        return None
    return message[ERROR_BYTES + FLOW_MOD_TABLE]


def error_name(kind: int, code: int) -> str:
    """Return the name under which an error is counted."""
    return f"{kind}-{code}" if kind <= MAX_ERROR_TYPE and code <= MAX_ERROR_CODE else "other"


def parse_flow_stats(body: bytes) -> list[FlowEntry]:
    """Return the entries of a flow-stats reply (7.3.5.2). Every length is checked: a length of zero must not cause an endless loop."""
    entries, at = [], 0
    while at < len(body):
        if at + _FLOW_STATS.size + 8 > len(body):
            raise WireError("short flow stats")
        length, table, _, _, priority, idle, hard, _, cookie, _, _ = _FLOW_STATS.unpack_from(body, at)
        if length < _FLOW_STATS.size + 8 or at + length > len(body):
            raise WireError("bad length in flow stats")
        entries.append(_parse_entry(body[at + _FLOW_STATS.size : at + length], (table, priority, cookie, hard, idle)))
        at += length
    return entries


def parse_table_features(body: bytes) -> dict[int, int]:
    """Return the capacity of tables by number, from a table-features reply (7.3.5.5). Properties are ignored."""
    found, at = {}, 0
    while at < len(body):
        if at + _TABLE_FEATURES.size > len(body):
            raise WireError("short table features")
        length, table, most = _TABLE_FEATURES.unpack_from(body, at)
        if length < _TABLE_FEATURES.size or at + length > len(body):
            raise WireError("bad length in table features")
        found[table] = most
        at += length
    return found


def _parse_entry(rest: bytes, fixed: tuple[int, int, int, int, int]) -> FlowEntry:
    length = rest[2] << 8 | rest[3]
    end = length + (-length % 8)
    if length < 4 or end > len(rest):
        raise WireError("bad match in flow stats")
    table, priority, cookie, hard, idle = fixed
    return FlowEntry(table, priority, decode_match(rest[4:length]), _parse_instructions(rest[end:]), cookie, hard, idle)


def _parse_instructions(data: bytes) -> tuple[Action, ...]:
    actions: list[Action] = []
    for kind, body in _tlvs(data):
        if kind == 4:
            first, others = rewrite.decode_leading(body[4:])
            actions.extend(() if first is None else (first,))
            actions.extend(_parse_action(k, b) for k, b in _tlvs(others))
        elif kind == 1 and body:
            actions.append(Goto(body[0]))
    return tuple(actions)


def _parse_action(kind: int, body: bytes) -> Action:
    """Return one of our actions, or UNKNOWN."""
    if kind == 0 and len(body) >= 4:
        return Output(PortNo(int.from_bytes(body[:4], "big")))
    if kind == 25 and len(body) >= 10:
        header = int.from_bytes(body[:4], "big")
        if header in (ETH_DST, ETH_SRC):
            mac = MacAddress(body[4:10])
            return SetEthDst(mac) if header == ETH_DST else SetEthSrc(mac)
    return rewrite.decode_action(kind, body) or UNKNOWN


def _tlvs(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type-length-value items of instructions and actions; raise WireError on an invalid length."""
    at = 0
    while at + 4 <= len(data):
        kind, length = struct.unpack_from("!HH", data, at)
        if length < 4 or at + length > len(data):
            raise WireError("bad length in a list")
        yield kind, data[at + 4 : at + length]
        at += length


def check_hello(message: bytes) -> None:
    """Raise WireError if a Hello has an element whose length would stall a parser, or if it does not offer OpenFlow 1.3 (7.5.1)."""
    if not HEADER_BYTES <= len(message) <= MAX_HELLO_BYTES:
        raise WireError("bad length of a hello")
    at, offered = 8, None
    while at + 4 <= len(message):
        kind, length = struct.unpack_from("!HH", message, at)
        if length < 4 or at + length > len(message):
            raise WireError("bad hello element")
        if kind == HELLO_VERSIONS:
            offered = int.from_bytes(message[at + 4 : at + min(length, 8)], "big")
        at += length + (-length % 8)
    speaks = message[0] >= VERSION if offered is None else bool(offered >> VERSION & 1)
    if not speaks:
        raise WireError("another version of OpenFlow")
