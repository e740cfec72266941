"""Parsing and building of packets by slicing bytes. Hosts' packets are parsed only here, and never by a packet library (CVE-2024-28732
family).

Every function is total: for any bytes it returns a value or None, in time bounded by the length of the header.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from sos_controller.core.openflow.pipeline import ETH_ARP, ETH_IPV4, ICMP_ERRORS, PROTO_ICMP, PROTO_TCP, PROTO_UDP, TCP_ACK, TCP_RST
from sos_controller.core.types import Address, FlowKey, MacAddress

ETHERNET_BYTES: Final = 14
ICMP_HEADER_BYTES: Final = 8
BROADCAST: Final = MacAddress(b"\xff" * 6)
ETH_VLAN, ETH_RARP = 0x8100, 0x8035
TCP_FLAGS_FIN_SYN_RST_ACK: Final = 0x17
OPTION_END, OPTION_NOP = 0, 1
SPECIAL_OPTIONS: Final = frozenset((19, 29, 30))
"""TCP MD5 (RFC 2385), TCP-AO (RFC 5925), MPTCP (RFC 8684): a relay would break their guarantees, so their flows stay plain."""

_TAG_BYTES: Final = frozenset((b"\x81\x00", b"\x88\xa8"))
"""TPIDs of 802.1Q and 802.1ad."""
_MAX_TAGS: Final = 2
_CHECKSUMS: Final = {PROTO_TCP: (20, 16), PROTO_UDP: (8, 6)}
"""Protocols with an Internet checksum over header and payload: bytes of the header, and offset of the checksum."""
_ARP: Final = struct.Struct("!6s6sHHHBBH6s4s6s4s")
_IP: Final = struct.Struct("!BBHHHBBH4s4s")


class Syn(NamedTuple):
    """A bare SYN."""

    key: FlowKey
    isn: bytes
    client: Address
    server: Address
    client_port: int
    server_port: int
    mac: MacAddress
    special: bool


class Segment(NamedTuple):
    """Any TCP segment. `back` is the key of the flow in the other direction, `size` the length of its payload."""

    back: FlowKey
    flags: int
    seq: int
    ack: int
    size: int


class Arp(NamedTuple):
    """An ARP packet for IPv4 over Ethernet (RFC 826)."""

    request: bool
    sender_mac: MacAddress
    sender: Address
    target: Address


def is_claim(packet: Arp) -> bool:
    """Return whether an ARP packet is a probe or an announcement of the sender's own address (RFC 5227, 1.1). An answer to it, or a copy of
    it sent to other hosts, would signal a conflict."""
    return packet.sender in (0, packet.target)


class IcmpError(NamedTuple):
    """An ICMP error about a TCP segment: its receiver, and the segment's addresses and ports."""

    target: Address
    source: Address
    destination: Address
    source_port: int
    destination_port: int


class Datagram(NamedTuple):
    """A UDP datagram in an unfragmented IPv4 packet."""

    source: Address
    destination: Address
    source_port: int
    destination_port: int
    payload: bytes


class Ends(NamedTuple):
    """Addresses and ports of a first packet that `parse_syn` does not accept."""

    key: FlowKey
    client: Address
    server: Address
    server_port: int
    is_tagged: bool


def ethertype(data: bytes) -> int:
    """Return the ethertype of a frame, 0 if there is none."""
    return data[12] << 8 | data[13] if len(data) >= ETHERNET_BYTES else 0


def parse_syn(data: bytes) -> Syn | None:
    """Return the bare SYN in a frame, None for other frames."""
    if len(data) < 54 or data[12] != 0x08 or data[13] != 0x00 or data[23] != PROTO_TCP:
        return None
    first = data[14]
    if first >> 4 != 4 or (data[20] << 8 | data[21]) & 0x3FFF:
        return None
    tcp = ETHERNET_BYTES + (first & 15) * 4
    if tcp < 34 or len(data) < tcp + 20 or data[tcp + 13] & TCP_FLAGS_FIN_SYN_RST_ACK != 0x02:
        return None
    key = data[26:38] if tcp == 34 else data[26:34] + data[tcp : tcp + 4]
    end = tcp + (data[tcp + 12] >> 4) * 4
    return Syn(
        FlowKey(key),
        data[tcp + 4 : tcp + 8],
        Address(int.from_bytes(key[:4], "big")),
        Address(int.from_bytes(key[4:8], "big")),
        key[8] << 8 | key[9],
        key[10] << 8 | key[11],
        MacAddress(data[6:12]),
        _has_special_option(data[tcp + 20 : end]) if end <= len(data) and end >= tcp + 20 else True,
    )


def parse_ends(data: bytes) -> Ends | None:
    """Return addresses and ports of a TCP segment that begins in a frame, even with a VLAN tag, in a fragment or with invalid lengths."""
    is_tagged = ethertype(data) == ETH_VLAN
    ip = ETHERNET_BYTES + 4 * is_tagged
    if len(data) < ip + 24 or data[ip - 2 : ip] != b"\x08\x00" or data[ip] >> 4 != 4 or data[ip + 9] != PROTO_TCP:
        return None
    tcp = ip + (data[ip] & 15) * 4
    if tcp < ip + 20 or len(data) < tcp + 4 or (data[ip + 6] << 8 | data[ip + 7]) & 0x1FFF:
        return None
    key = data[ip + 12 : ip + 20] + data[tcp : tcp + 4]
    client, server = (Address(int.from_bytes(key[at : at + 4], "big")) for at in (0, 4))
    return Ends(FlowKey(key), client, server, key[10] << 8 | key[11], is_tagged)


def parse_segment(data: bytes) -> Segment | None:
    """Return the TCP segment in a frame, None if there is none or its headers are truncated."""
    if len(data) < 54 or ethertype(data) != ETH_IPV4 or data[23] != PROTO_TCP or data[14] >> 4 != 4:
        return None
    if (data[20] << 8 | data[21]) & 0x3FFF:
        return None
    tcp = ETHERNET_BYTES + (data[14] & 15) * 4
    if tcp < 34 or len(data) < tcp + 20:
        return None
    size = (data[16] << 8 | data[17]) - (tcp - ETHERNET_BYTES) - (data[tcp + 12] >> 4) * 4
    if size < 0:
        return None
    back = FlowKey(data[30:34] + data[26:30] + data[tcp + 2 : tcp + 4] + data[tcp : tcp + 2])
    seq, ack = struct.unpack_from("!II", data, tcp + 4)
    return Segment(back, data[tcp + 13], seq, ack, size)


def _has_special_option(options: bytes) -> bool:
    """Return whether the flow must stay plain because of an option, or because its options are malformed."""
    at, end = 0, len(options)
    while at < end:
        kind = options[at]
        if kind == OPTION_END:
            return False
        if kind == OPTION_NOP:
            at += 1
            continue
        if kind in SPECIAL_OPTIONS or at + 1 >= end or options[at + 1] < 2:
            return True
        at += options[at + 1]
    return at > end


def ipv4_destination(data: bytes) -> Address | None:
    """Return the destination of the IPv4 packet in a frame, None if there is none."""
    if len(data) < 34 or ethertype(data) != ETH_IPV4 or data[14] >> 4 != 4:
        return None
    return Address(int.from_bytes(data[30:34], "big"))


def ipv4_source(data: bytes) -> Address | None:
    """Return the source of the IPv4 packet in a frame, None if there is none."""
    if len(data) < 34 or ethertype(data) != ETH_IPV4 or data[14] >> 4 != 4:
        return None
    return Address(int.from_bytes(data[26:30], "big"))


def parse_icmp_error(data: bytes) -> IcmpError | None:
    """Return the ICMP error in a frame that quotes a TCP segment's addresses and ports (RFC 792: at least 64 bits of it), None for other
    frames.

    An error to a host that did not send the quoted segment yields None, since that host would ignore the error.
    """
    if len(data) < 34 or ethertype(data) != ETH_IPV4 or data[14] >> 4 != 4 or data[23] != PROTO_ICMP:
        return None
    icmp = ETHERNET_BYTES + (data[14] & 15) * 4
    if icmp < 34 or (data[20] << 8 | data[21]) & 0x3FFF or len(data) < icmp + ICMP_HEADER_BYTES + 20 or data[icmp] not in ICMP_ERRORS:
        return None
    quoted = icmp + ICMP_HEADER_BYTES
    tcp = quoted + (data[quoted] & 15) * 4
    if data[quoted] >> 4 != 4 or tcp < quoted + 20 or len(data) < tcp + 8 or data[quoted + 9] != PROTO_TCP:
        return None
    if (data[quoted + 6] << 8 | data[quoted + 7]) & 0x1FFF:  # a later fragment: it has no ports
        return None
    source, destination, sport, dport = struct.unpack_from("!II", data, quoted + 12) + struct.unpack_from("!HH", data, tcp)
    target = int.from_bytes(data[30:34], "big")
    return IcmpError(Address(target), Address(source), Address(destination), sport, dport) if target == source else None


def readdress_icmp_error(data: bytes, address: Address, port: int) -> bytes:
    """Return the frame of an ICMP error (`parse_icmp_error`) as if the quoted segment had come from this address and port."""
    icmp = ETHERNET_BYTES + (data[14] & 15) * 4
    quoted = icmp + ICMP_HEADER_BYTES
    tcp = quoted + (data[quoted] & 15) * 4
    made, end = bytearray(data), min(len(data), ETHERNET_BYTES + (data[16] << 8 | data[17]))
    made[30:34] = made[quoted + 12 : quoted + 16] = address.to_bytes(4, "big")
    made[tcp : tcp + 2] = port.to_bytes(2, "big")
    for start, stop, at in ((ETHERNET_BYTES, icmp, ETHERNET_BYTES + 10), (quoted, tcp, quoted + 10), (icmp, end, icmp + 2)):
        made[at : at + 2] = bytes(2)
        made[at : at + 2] = _checksum(bytes(made[start:stop]) + bytes(stop - start & 1))
    return bytes(made)


def parse_arp(data: bytes) -> Arp | None:
    """Return the ARP packet in a frame, None if the frame is not ARP for IPv4 over Ethernet."""
    if len(data) < ETHERNET_BYTES + 28 or ethertype(data) != ETH_ARP:
        return None
    _, _, _, hardware, protocol, hlen, plen, operation, sha, spa, _, tpa = _ARP.unpack_from(data)
    if (hardware, protocol, hlen, plen) != (1, ETH_IPV4, 6, 4) or operation not in (1, 2):
        return None
    return Arp(operation == 1, MacAddress(sha), Address(int.from_bytes(spa, "big")), Address(int.from_bytes(tpa, "big")))


def build_arp_reply(asked: Arp, mac: MacAddress) -> bytes:
    """Return the reply that resolves the requested target to this MAC address."""
    target, sender = asked.target.to_bytes(4, "big"), asked.sender.to_bytes(4, "big")
    return _ARP.pack(asked.sender_mac, mac, ETH_ARP, 1, ETH_IPV4, 6, 4, 2, mac, target, asked.sender_mac, sender)


def build_arp_request(mac: MacAddress, sender: Address, target: Address) -> bytes:
    """Return the broadcast frame that requests the MAC address of a target. The sender is an address in use, and never 0, which would make
    the request a probe: a host that takes the target's address at that time would see a conflict (RFC 5227, 2.1.1)."""
    addresses = (sender.to_bytes(4, "big"), bytes(6), target.to_bytes(4, "big"))
    return _ARP.pack(BROADCAST, mac, ETH_ARP, 1, ETH_IPV4, 6, 4, 1, mac, *addresses)


def build_presence(mac: MacAddress) -> bytes:
    """Return the broadcast frame by which switches learn where a host is, and which hosts ignore: a request of Reverse ARP (RFC 903), as
    QEMU sends for a machine that has arrived."""
    return _ARP.pack(BROADCAST, mac, ETH_RARP, 1, ETH_IPV4, 6, 4, 3, mac, bytes(4), mac, bytes(4))


def build_acknowledgement(source: MacAddress, target: MacAddress, key: FlowKey, number: int) -> bytes:
    """Return the frame of an empty segment of the flow `key`, with this number as both sequence and acknowledgement number."""
    tcp = key[8:12] + struct.pack("!IIHHHH", number, number, 0x5010, 0, 0, 0)
    pseudo = key[:8] + struct.pack("!HH", PROTO_TCP, len(tcp))
    tcp = tcp[:16] + _checksum(pseudo + tcp) + tcp[18:]
    ip = struct.pack("!HHHHHH", 0x4500, 20 + len(tcp), 0, 0x4000, 64 << 8 | PROTO_TCP, 0) + key[:8]
    return target + source + b"\x08\x00" + ip[:10] + _checksum(ip) + ip[12:] + tcp


def build_reset(data: bytes) -> bytes:
    """Return the frame that answers the TCP segment in a frame as a host without such a connection does (RFC 9293, 3.10.7.1); b"" if no
    reset is due: for a reset, for a fragment, whose length is unknown, and for any other frame."""
    if len(data) < 54 or ethertype(data) != ETH_IPV4 or data[23] != PROTO_TCP or data[14] >> 4 != 4:
        return b""
    tcp = ETHERNET_BYTES + (data[14] & 15) * 4
    if tcp < 34 or len(data) < tcp + 20 or (data[20] << 8 | data[21]) & 0x3FFF or data[tcp + 13] & TCP_RST:
        return b""
    flags, (seq, ack) = data[tcp + 13], struct.unpack_from("!II", data, tcp + 4)
    size = max(0, (data[16] << 8 | data[17]) - (tcp - ETHERNET_BYTES) - (data[tcp + 12] >> 4) * 4)
    if flags & TCP_ACK:
        numbers = struct.pack("!IIH", ack, 0, 0x5000 | TCP_RST)
    else:
        following = seq + size + (flags >> 1 & 1) + (flags & 1)  # SYN and FIN count
        numbers = struct.pack("!IIH", 0, following & 0xFFFFFFFF, 0x5000 | TCP_RST | TCP_ACK)
    ends = data[30:34] + data[26:30]
    segment = data[tcp + 2 : tcp + 4] + data[tcp : tcp + 2] + numbers + bytes(6)
    pseudo = ends + struct.pack("!HH", PROTO_TCP, len(segment))
    segment = segment[:16] + _checksum(pseudo + segment) + segment[18:]
    ip = struct.pack("!HHHHHH", 0x4500, 20 + len(segment), 0, 0x4000, 64 << 8 | PROTO_TCP, 0) + ends
    return data[6:12] + data[:6] + b"\x08\x00" + ip[:10] + _checksum(ip) + ip[12:] + segment


def _checksum(data: bytes) -> bytes:
    """Return the Internet checksum of an even number of bytes (RFC 1071)."""
    return (0xFFFF - int.from_bytes(data, "big") % 0xFFFF).to_bytes(2, "big")


def parse_udp(data: bytes) -> Datagram | None:
    """Return the datagram in a frame, None if it is fragmented, truncated or not UDP over IPv4."""
    if len(data) < 42 or ethertype(data) != ETH_IPV4 or data[23] != PROTO_UDP or data[14] >> 4 != 4:
        return None
    udp = ETHERNET_BYTES + (data[14] & 15) * 4
    if udp < 34 or (data[20] << 8 | data[21]) & 0x3FFF or len(data) < udp + 8:
        return None
    source_port, destination_port, length = struct.unpack_from("!HHH", data, udp)
    if length < 8 or udp + length > len(data):
        return None
    source, destination = data[26:30], data[30:34]
    return Datagram(
        Address(int.from_bytes(source, "big")),
        Address(int.from_bytes(destination, "big")),
        source_port,
        destination_port,
        data[udp + 8 : udp + length],
    )


def complete_checksum(frame: bytes) -> bytes:
    """Return the frame of a TCP or UDP packet with its checksum filled in if the sender's kernel left that to the network card.

    With segmentation offload, the checksum field contains only the sum of the pseudo header (Linux: CHECKSUM_PARTIAL). A checksum that is
    wrong in any other way remains wrong. Sums of 16-bit words modulo 2^16 - 1 are one's complement sums (RFC 1071).
    """
    ip = _ipv4_at(frame)
    header, at = _CHECKSUMS.get(frame[ip + 9], (0, 0)) if ip else (0, 0)
    start = ip + (frame[ip] & 15) * 4 if header else 0
    end = ip + (frame[ip + 2] << 8 | frame[ip + 3]) if header else 0
    if not header or end > len(frame) or end < start + header:
        return frame
    segment, at = frame[start:end], start + at
    pseudo = int.from_bytes(frame[ip + 12 : ip + 20], "big") + frame[ip + 9] + len(segment)
    if (frame[at] << 8 | frame[at + 1]) % 0xFFFF != pseudo % 0xFFFF:
        return frame
    total = int.from_bytes(segment + bytes(len(segment) & 1), "big") % 0xFFFF
    checksum = (0xFFFF - total) & 0xFFFF
    if total == 0:
        return frame
    return frame[:at] + checksum.to_bytes(2, "big") + frame[at + 2 :]


def _ipv4_at(frame: bytes) -> int:
    """Return the offset of the IPv4 header of a frame, after its VLAN tags; 0 if there is none."""
    at = ETHERNET_BYTES
    while frame[at - 2 : at] in _TAG_BYTES and at < ETHERNET_BYTES + 4 * _MAX_TAGS:
        at += 4
    whole = len(frame) > at + 20 and frame[at - 2 : at] == b"\x08\x00" and frame[at] >> 4 == 4
    return at if whole else 0


class UdpTemplate:
    """Renderer of datagrams between two fixed parties; only length, identification and payload vary.

    The UDP checksum is 0, "not computed" (RFC 768): the payload carries an HMAC.
    """

    def __init__(self, ethernet: tuple[MacAddress, MacAddress], addresses: tuple[Address, Address], ports: tuple[int, int]) -> None:
        (self._ethernet, self._addresses) = (ethernet[1] + ethernet[0] + b"\x08\x00", addresses)
        self._ports = struct.pack("!HH", *ports)
        self._pseudo = addresses[0].to_bytes(4, "big") + addresses[1].to_bytes(4, "big")
        words = struct.unpack("!HHHH", self._pseudo)
        self._sum = 0x4500 + 0x4000 + (64 << 8 | PROTO_UDP) + sum(words)

    def render(self, payload: bytes) -> bytes:
        """Return a frame that carries the payload and must not be fragmented."""
        total = 28 + len(payload)
        checksum = self._sum + total
        checksum = (checksum & 0xFFFF) + (checksum >> 16)
        checksum = ~((checksum & 0xFFFF) + (checksum >> 16)) & 0xFFFF
        ip = struct.pack("!HHHHHH", 0x4500, total, 0, 0x4000, 64 << 8 | PROTO_UDP, checksum)
        return b"".join((self._ethernet, ip, self._pseudo, self._ports, struct.pack("!HH", total - 20, 0), payload))
