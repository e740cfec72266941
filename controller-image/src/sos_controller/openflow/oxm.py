"""OpenFlow 1.3 on the wire: matches (OXM, OpenFlow Switch Specification 1.3.5, 7.2.2 and 7.2.3).

TCP flags are matched by the ONF extension that Open vSwitch accepts and reports in OpenFlow 1.3 (ovs-fields(7), "TCP flags").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from sos_controller.core.openflow.flow_entries import Match
from sos_controller.core.openflow.pipeline import ETH_IPV4, PROTO_TCP
from sos_controller.core.types import MacAddress
from sos_controller.openflow.nicira import IP_FRAG_M, REG0, REG2, REG3

_OXM: Final = 0x8000_0000


def _oxm(field: int, size: int, masked: bool = False) -> int:
    return _OXM | field << 9 | (size * 2 | 0x100 if masked else size)


_IN_PORT: Final = struct.Struct("!II").pack
_ETH: Final = struct.Struct("!I6s").pack
_U16: Final = struct.Struct("!IH").pack
_U16M: Final = struct.Struct("!IHH").pack
_U8: Final = struct.Struct("!IB").pack
_U8M: Final = struct.Struct("!IBB").pack
_U32: Final = struct.Struct("!II").pack
_U32M: Final = struct.Struct("!III").pack

ETH_DST, ETH_SRC = _oxm(3, 6), _oxm(4, 6)
_H_IN_PORT, _H_ETH_TYPE, _H_PROTO = _oxm(0, 4), _oxm(5, 2), _oxm(10, 1)
_H_SRC, _H_SRC_M, _H_DST, _H_DST_M = _oxm(11, 4), _oxm(11, 4, True), _oxm(12, 4), _oxm(12, 4, True)
_H_TCP_SRC, _H_TCP_SRC_M, _H_TCP_DST, _H_TCP_DST_M = _oxm(13, 2), _oxm(13, 2, True), _oxm(14, 2), _oxm(14, 2, True)
_H_UDP_DST: Final = _oxm(16, 2)
_H_ICMP_TYPE: Final = _oxm(19, 1)
_H_VLAN: Final = _oxm(6, 2)
_H_ARP_OP, _H_SPA, _H_SPA_M, _H_TPA, _H_TPA_M = _oxm(21, 2), _oxm(22, 4), _oxm(22, 4, True), _oxm(23, 4), _oxm(23, 4, True)
_H_FLAGS_M: Final = 0xFFFF << 16 | 42 << 9 | 0x108
_ONF: Final = 0x4F4E4600
_FLAGS_M: Final = struct.Struct("!IIHH").pack
"""ONFOXM_ET_TCP_FLAGS, masked (ONF extension 109): an experimenter field, so four bytes of the length are ONF's number."""
_EXACT_IP, _EXACT_PORT = 0xFFFFFFFF, 0xFFFF


_UNTAGGED: Final = _U16(_H_VLAN, 0)
"""OFPVID_NONE: the frame has no 802.1Q tag."""
_FLOW: Final = struct.Struct("!25sI4sI4sH4sH7x").pack
_FLOW_AND_FLAGS: Final = struct.Struct("!25sI4sI4sH4sH8sHH3x").pack
"""Complete match of one connection in one direction, as in most entries: without and with TCP flags."""
_TCP_OF_IPV4: Final = _U16(_H_ETH_TYPE, ETH_IPV4) + _UNTAGGED + _U8(_H_PROTO, PROTO_TCP) + _H_SRC.to_bytes(4, "big")
_FLOW_BEGINS: Final = struct.pack("!HH", 1, 49) + _TCP_OF_IPV4
_FLOW_AND_FLAGS_BEGINS: Final = struct.pack("!HH", 1, 61) + _TCP_OF_IPV4
_TO, _FROM_PORT, _TO_PORT = (header.to_bytes(4, "big") for header in (_H_DST, _H_TCP_SRC, _H_TCP_DST))
_FLAGS: Final = struct.pack("!II", _H_FLAGS_M, _ONF)
"""Constant parts of these matches, headers included: copying bytes costs less than packing numbers each time."""


def encode_match(m: Match) -> bytes:
    """Return ofp_match with padding (7.2.2)."""
    return _encode_flow(m) or _encode_any(m)


def _encode_flow(m: Match) -> bytes | None:
    """Encode the match of one connection's entries in one step; return None for other matches."""
    source, target, sport, dport = m.ipv4_src, m.ipv4_dst, m.tcp_src, m.tcp_dst
    if source is None or target is None or sport is None or dport is None or m.eth_type != ETH_IPV4 or m.ip_proto != PROTO_TCP:
        return None
    if source[1] & target[1] != _EXACT_IP or sport[1] & dport[1] != _EXACT_PORT or _has_more(m):
        return None
    flags = m.tcp_flags
    if flags is None:
        return _FLOW(_FLOW_BEGINS, source[0], _TO, target[0], _FROM_PORT, sport[0], _TO_PORT, dport[0])
    begins, more = _FLOW_AND_FLAGS_BEGINS, _FLAGS
    return _FLOW_AND_FLAGS(begins, source[0], _TO, target[0], _FROM_PORT, sport[0], _TO_PORT, dport[0], more, flags[0], flags[1])


def _has_more(m: Match) -> bool:
    """Return whether a match has fields that a connection's entries do not have."""
    ethernet = m.in_port is not None or m.eth_dst is not None or m.eth_src is not None
    others = m.udp_dst is not None or m.arp_op is not None or m.arp_sender is not None or m.arp_target is not None
    ip = m.icmp_type is not None or m.ip_frag is not None
    registers = m.reg0 is not None or m.reg2 is not None or m.reg3 is not None
    return ethernet or others or ip or registers or m.any_vlan or m.raw is not None


def _encode_any(m: Match) -> bytes:
    oxms = m.raw if m.raw is not None else b"".join(_fields(m))
    length = 4 + len(oxms)
    return struct.pack("!HH", 1, length) + oxms + bytes(-length % 8)


def _fields(m: Match) -> Iterator[bytes]:
    for register, value in ((REG0, m.reg0), (REG2, m.reg2), (REG3, m.reg3)):
        if value is not None:
            yield _U32(register, value)
    if m.in_port is not None:
        yield _IN_PORT(_H_IN_PORT, m.in_port)
    for header, mac in ((ETH_DST, m.eth_dst), (ETH_SRC, m.eth_src)):
        if mac is not None:
            yield _ETH(header, mac)
    if m.eth_type is not None:
        yield _U16(_H_ETH_TYPE, m.eth_type)
    if not m.any_vlan:
        yield _UNTAGGED
    if m.ip_proto is not None:
        yield _U8(_H_PROTO, m.ip_proto)
    yield from _address_fields(m)
    if m.ip_frag is not None:
        yield _U8M(IP_FRAG_M, *m.ip_frag)
    if m.ip_proto is not None:
        yield from _transport_fields(m)
    if m.arp_op is not None or m.arp_sender is not None or m.arp_target is not None:
        yield from _arp_fields(m)


def _address_fields(m: Match) -> Iterator[bytes]:
    for whole, masked, address in ((_H_SRC, _H_SRC_M, m.ipv4_src), (_H_DST, _H_DST_M, m.ipv4_dst)):
        if address is not None:
            yield _U32(whole, address[0]) if address[1] == _EXACT_IP else _U32M(masked, *address)


def _transport_fields(m: Match) -> Iterator[bytes]:
    if m.tcp_src is not None:
        yield _U16(_H_TCP_SRC, m.tcp_src[0]) if m.tcp_src[1] == _EXACT_PORT else _U16M(_H_TCP_SRC_M, *m.tcp_src)
    if m.tcp_dst is not None:
        yield _U16(_H_TCP_DST, m.tcp_dst[0]) if m.tcp_dst[1] == _EXACT_PORT else _U16M(_H_TCP_DST_M, *m.tcp_dst)
    if m.udp_dst is not None:
        yield _U16(_H_UDP_DST, m.udp_dst)
    if m.icmp_type is not None:
        yield _U8(_H_ICMP_TYPE, m.icmp_type)
    if m.tcp_flags is not None:
        yield _FLAGS_M(_H_FLAGS_M, _ONF, *m.tcp_flags)


def _arp_fields(m: Match) -> Iterator[bytes]:
    if m.arp_op is not None:
        yield _U16(_H_ARP_OP, m.arp_op)
    if m.arp_sender is not None:
        yield _U32(_H_SPA, m.arp_sender[0]) if m.arp_sender[1] == _EXACT_IP else _U32M(_H_SPA_M, *m.arp_sender)
    if m.arp_target is not None:
        yield _U32(_H_TPA, m.arp_target[0]) if m.arp_target[1] == _EXACT_IP else _U32M(_H_TPA_M, *m.arp_target)


def decode_match(oxms: bytes) -> Match:
    """Return the match of OXM bytes. If the bytes contain a field that we never write, the match has only `raw`."""
    found: dict[str, object] = {"any_vlan": True}
    at = 0
    while at + 4 <= len(oxms):
        header = int.from_bytes(oxms[at : at + 4], "big")
        size = header & 0xFF
        value = oxms[at + 4 : at + 4 + size]
        field = ("any_vlan", False) if oxms[at : at + 6] == _UNTAGGED else _decode_field(header, value)
        if field is None or len(value) != size:
            return Match(raw=oxms)
        found[field[0]] = field[1]
        at += 4 + size
    known = at == len(oxms) and ("ip_proto" in found or _OF_TRANSPORT.isdisjoint(found))
    return Match(**found) if known else Match(raw=oxms)  # type: ignore[arg-type]


_OF_TRANSPORT: Final = frozenset(("tcp_src", "tcp_dst", "udp_dst", "icmp_type", "tcp_flags"))
"""Fields that have IP_PROTO as a prerequisite (7.2.3.8). A match with such a field but without IP_PROTO is not ours: it is kept as raw
bytes."""


_PLAIN_FIELDS: Final = {
    _H_IN_PORT: ("in_port", 4),
    _H_ETH_TYPE: ("eth_type", 2),
    _H_PROTO: ("ip_proto", 1),
    _H_UDP_DST: ("udp_dst", 2),
    _H_ICMP_TYPE: ("icmp_type", 1),
    _H_ARP_OP: ("arp_op", 2),
    REG0: ("reg0", 4),
    REG2: ("reg2", 4),
    REG3: ("reg3", 4),
}
_MASKED_FIELDS: Final = {
    _H_SRC: "ipv4_src",
    _H_SRC_M: "ipv4_src",
    _H_DST: "ipv4_dst",
    _H_DST_M: "ipv4_dst",
    _H_TCP_SRC: "tcp_src",
    _H_TCP_SRC_M: "tcp_src",
    _H_TCP_DST: "tcp_dst",
    _H_TCP_DST_M: "tcp_dst",
    _H_SPA: "arp_sender",
    _H_SPA_M: "arp_sender",
    _H_TPA: "arp_target",
    _H_TPA_M: "arp_target",
    IP_FRAG_M: "ip_frag",
}


def _decode_field(header: int, value: bytes) -> tuple[str, object] | None:
    if header in (ETH_DST, ETH_SRC):
        return ("eth_dst" if header == ETH_DST else "eth_src", MacAddress(value))
    if header in _PLAIN_FIELDS:
        return (_PLAIN_FIELDS[header][0], int.from_bytes(value, "big"))
    if header == _H_FLAGS_M and value[:4] == _ONF.to_bytes(4, "big"):
        return ("tcp_flags", struct.unpack_from("!HH", value, 4)) if len(value) == 8 else None
    name = _MASKED_FIELDS.get(header)
    if name is None:
        return None
    if not header & 0x100:
        return (name, (int.from_bytes(value, "big"), (1 << 8 * len(value)) - 1))
    half = len(value) // 2
    return (name, (int.from_bytes(value[:half], "big"), int.from_bytes(value[half:], "big")))
