"""Second parser of hosts' packets: slow, written from the RFCs and independently of `core.wire.packets`.

Functions return `None` if the frame has no packet of their kind. Docstrings name the fields that the fuzzer compares.
"""

from __future__ import annotations

import ipaddress
import struct

ETHERTYPE_IPV4, ETHERTYPE_ARP = 0x0800, 0x0806


def ipv4(frame: bytes) -> tuple[int, int, int, bytes] | None:
    """Return protocol, source, destination and payload of an unfragmented IPv4 packet (RFC 791, 3.1)."""
    if len(frame) < 14 + 20 or struct.unpack_from("!H", frame, 12)[0] != ETHERTYPE_IPV4:
        return None
    version_ihl, _, _, _, flags_offset, _, protocol, _, source, destination = struct.unpack_from("!BBHHHBBHII", frame, 14)
    header = 4 * (version_ihl & 0x0F)
    more, offset = bool(flags_offset & 0x2000), flags_offset & 0x1FFF
    if version_ihl >> 4 != 4 or header < 20 or more or offset:
        return None
    return protocol, source, destination, frame[14 + header :]


def syn(frame: bytes) -> tuple[str, str, int, int, int] | None:
    """Return addresses, ports and sequence number of a segment with SYN and none of FIN, RST, ACK (RFC 9293, 3.1)."""
    packet = ipv4(frame)
    if packet is None or packet[0] != 6 or len(packet[3]) < 20:
        return None
    source_port, destination_port, sequence, _, _, flags = struct.unpack_from("!HHIIBB", packet[3])
    fin, syn_, rst, ack = (bool(flags & bit) for bit in (1, 2, 4, 16))
    if not syn_ or fin or rst or ack:
        return None
    return str(ipaddress.IPv4Address(packet[1])), str(ipaddress.IPv4Address(packet[2])), source_port, destination_port, sequence


def option_kinds(frame: bytes) -> list[int] | None:
    """Return the kinds of a segment's TCP options in order (RFC 9293, 3.2), or None if the header or an option exceeds the segment."""
    packet = ipv4(frame)
    assert packet is not None
    segment = packet[3]
    size = 4 * (segment[12] >> 4)
    if not 20 <= size <= len(segment):
        return None
    rest, kinds = list(segment[20:size]), []
    while rest:
        kind = rest.pop(0)
        if kind == 0:
            break
        kinds.append(kind)
        if kind == 1:
            continue
        if not rest or rest[0] < 2 or rest[0] - 1 > len(rest):
            return None
        del rest[: rest[0] - 1]
    return kinds


def datagram(frame: bytes) -> tuple[str, str, int, int, bytes] | None:
    """Return addresses, ports and payload of a complete UDP datagram (RFC 768)."""
    packet = ipv4(frame)
    if packet is None or packet[0] != 17 or len(packet[3]) < 8:
        return None
    source_port, destination_port, length, _ = struct.unpack_from("!HHHH", packet[3])
    if not 8 <= length <= len(packet[3]):
        return None
    addresses = str(ipaddress.IPv4Address(packet[1])), str(ipaddress.IPv4Address(packet[2]))
    return (*addresses, source_port, destination_port, packet[3][8:length])


def arp(frame: bytes) -> tuple[int, bytes, str, str] | None:
    """Return operation, sender's addresses and target address of ARP for IPv4 over Ethernet (RFC 826)."""
    if len(frame) < 14 + 28 or struct.unpack_from("!H", frame, 12)[0] != ETHERTYPE_ARP:
        return None
    hardware, protocol, hlen, plen, operation = struct.unpack_from("!HHBBH", frame, 14)
    if (hardware, protocol, hlen, plen) != (1, ETHERTYPE_IPV4, 6, 4) or operation not in (1, 2):
        return None
    return operation, frame[22:28], str(ipaddress.IPv4Address(frame[28:32])), str(ipaddress.IPv4Address(frame[38:42]))
