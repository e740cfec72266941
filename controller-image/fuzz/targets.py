"""Targets for arbitrary bytes: every parser of the controller that network input reaches.

Each function returns if the parser accepts the bytes or refuses them with its only declared error, and raises otherwise. A bit of the first
byte selects signed input, which passes the tag check and reaches the code behind the check.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import frames
from sos_controller.core.openflow.flow_entries import GiveTurn, Remember, RememberAnswers, TakeTurn
from sos_controller.core.types import MacAddress, format_address
from sos_controller.core.wire import beacon as beacons
from sos_controller.core.wire import keys, packets
from sos_controller.core.wire import lldp as probe
from sos_controller.core.wire import order as orders
from sos_controller.core.wire.order import OrderType
from sos_controller.core.wire.plain_report import decode_plain_report, encode_plain_report
from sos_controller.openflow import ofp, oxm

KEY = bytes(range(32))
NOW_MS = 1_000_000

_BEACON_RESERVED = ((14, 16), (84, 88), (110, 112))
_ORDER_RESERVED = ((14, 16),)
"""Fields that are written as zero and ignored on receipt (spec/beacon.md 2, spec/order.md 1)."""


def _zeroed(data: bytes, reserved: tuple[tuple[int, int], ...]) -> bytes:
    cleared = bytearray(data)
    for start, end in reserved:
        cleared[start:end] = bytes(end - start)
    return bytes(cleared)


def beacon(data: bytes) -> None:
    """Check that a decoded beacon, except for reserved fields, is encoded to the same bytes."""
    try:
        said = beacons.decode(data)
    except beacons.BeaconError as error:
        assert str(error)
        return
    written = beacons.encode(said, KEY)
    assert written[: -keys.TAG_BYTES] == _zeroed(data, _BEACON_RESERVED)[: -keys.TAG_BYTES]
    assert beacons.signed_by(written, KEY)


def order(data: bytes) -> None:
    """Check that a decoded order, header and body, is encoded to the same bytes, except for reserved fields."""
    try:
        header = orders.decode_header(data)
        body = orders.body(data)
        again, reserved = _body(header.type, body)
    except orders.OrderError as error:
        assert str(error)
        return
    assert again == _zeroed(body, reserved)
    written = orders.encode(header, body, KEY)
    assert written[: -keys.TAG_BYTES] == _zeroed(data, _ORDER_RESERVED)[: -keys.TAG_BYTES]
    assert orders.signed_by(written, KEY)


def _named(kind: int, body: bytes) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Decode and encode a body that contains a session id and at most the accepted flag."""
    uuid, accepted = orders.decode_ready(body) if kind == OrderType.READY else (orders.decode_uuid(body), False)
    return (orders.encode_accepted(uuid), ((17, 24),)) if accepted else (uuid, ())


def _body(kind: int, body: bytes) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return the body, decoded and encoded again, and its reserved byte ranges."""
    if kind in (OrderType.READY, OrderType.RELEASE, OrderType.ENDED_ACK, OrderType.ABORT):
        return _named(kind, body)
    if kind == OrderType.REFUSED:
        return orders.encode_refused(*orders.decode_refused(body)), ((18, 24),)
    if kind == OrderType.ENDED:
        return orders.encode_ended(orders.decode_ended(body)), ((18, 24),)
    if kind == OrderType.SESSION_REPORT:
        return orders.encode_report(orders.decode_report(body)), ((10, 16),)
    if kind == OrderType.PLAIN_REPORT:
        report = decode_plain_report(body)
        middle = 8 + 24 * len(report.rows)
        rows = [(8 + 24 * i + 10, 8 + 24 * i + 16) for i in range(len(report.rows))]
        samples = [(middle + 48 * i + 10, middle + 48 * i + 12) for i in range(len(report.samples))]
        return encode_plain_report(report), ((4, 8), *rows, *samples)
    if kind == OrderType.PREPARE:
        # The controller only sends Prepare orders; tests decode them. The decoded value must survive encoding.
        prepare = orders.decode_prepare(body)
        assert orders.decode_prepare(orders.encode_prepare(prepare)) == prepare
    return body, ()


def lldp(data: bytes) -> None:
    """Check that an accepted probe is fresh and that its contents are signed with our key."""
    if not data:
        return
    frame = _signed_probe(data[1:]) if data[0] & 1 else data[1:]
    found = probe.decode(KEY, frame, (NOW_MS, NOW_MS))
    if found is None:
        return
    assert 0 <= NOW_MS - found.sent_ms <= probe.MAX_AGE_MS
    ours = probe.encode(KEY, found, MacAddress(bytes(6)))
    own = ours.index(probe.ORGANISATION)
    assert ours[own:-2] in frame, "only signed contents are accepted"


def _signed_probe(frame: bytes) -> bytes:
    """Return the frame with a valid tag in its first SOS TLV, if the frame is long enough for one."""
    at = frame.find(probe.ORGANISATION + bytes([probe.SUBTYPE]))
    start, end = at + 4, at + 4 + 24
    if at < 0 or len(frame) < end + probe.TAG_BYTES:
        return frame
    return frame[:end] + keys.tag(KEY, frame[start:end])[: probe.TAG_BYTES] + frame[end + probe.TAG_BYTES :]


def frame(data: bytes) -> None:
    """Check that both parsers of hosts' frames (`packets` and `frames`) agree."""
    _syn(data)
    packet, theirs = packets.parse_udp(data), frames.datagram(data)
    if packet is None or theirs is None:
        assert packet is None and theirs is None, (packet, theirs)
    else:
        addresses = format_address(packet.source), format_address(packet.destination)
        assert (*addresses, packet.source_port, packet.destination_port, packet.payload) == theirs
    _icmp_error(data)
    asked, answer = packets.parse_arp(data), frames.arp(data)
    if asked is None or answer is None:
        assert asked is None and answer is None, (asked, answer)
        return
    assert (1 if asked.request else 2, asked.sender_mac, format_address(asked.sender), format_address(asked.target)) == answer
    told = packets.parse_arp(packets.build_arp_reply(asked, MacAddress(KEY[:6])))
    assert told == packets.Arp(False, MacAddress(KEY[:6]), asked.target, asked.sender)


def _syn(data: bytes) -> None:
    ends = packets.parse_ends(data)
    assert ends is None or len(ends.key) == 12
    reset = packets.build_reset(data)
    assert not reset or (packets.parse_segment(reset) is not None and not packets.build_reset(reset)), "a reset draws no reset"
    found, theirs = packets.parse_syn(data), frames.syn(data)
    if found is None or theirs is None:
        assert found is None and theirs is None, (found, theirs)
        return
    addresses = format_address(found.client), format_address(found.server)
    assert (*addresses, found.client_port, found.server_port, int.from_bytes(found.isn, "big")) == theirs
    assert found.key == struct.pack("!IIHH", found.client, found.server, found.client_port, found.server_port)
    kinds = frames.option_kinds(data)
    assert found.special == (kinds is None or bool(packets.SPECIAL_OPTIONS.intersection(kinds)))
    done = packets.complete_checksum(data)
    at = 14 + (data[14] & 15) * 4 + 16
    assert done[:at] == data[:at] and done[at + 2 :] == data[at + 2 :], "nothing but the checksum changes"
    assert done == data or packets.complete_checksum(done) == done


def _icmp_error(data: bytes) -> None:
    """Check that a readdressed ICMP error has the new address and port as receiver and quoted source, and is otherwise unchanged."""
    found = packets.parse_icmp_error(data)
    if found is not None:
        made = packets.parse_icmp_error(packets.readdress_icmp_error(data, found.destination, 9877))
        expected = found._replace(target=found.destination, source=found.destination, source_port=9877)
        assert made == expected, (made, expected)


def switch(data: bytes) -> None:
    """Check that switches' messages are parsed or raise WireError, and that parsed entries are encoded to the same bytes."""
    for parse in (ofp.parse_packet_in, ofp.parse_port_status, ofp.parse_error, ofp.full_table, ofp.check_hello, ofp.parse_ports):
        try:
            parse(data)
        except ofp.WireError as error:
            assert str(error)
    try:
        assert len(ofp.parse_table_features(data)) * 64 <= len(data)
    except ofp.WireError as error:
        assert str(error)
    try:
        entries = ofp.parse_flow_stats(data)
    except ofp.WireError as error:
        assert str(error)
        return
    assert len(entries) * 56 <= len(data)
    for entry in entries:
        match = oxm.encode_match(entry.match)
        assert oxm.decode_match(match[4 : struct.unpack_from("!H", match, 2)[0]]) == entry.match
        ofp.flow_mod(entry, ofp.DELETE_STRICT, 1)
        for action in entry.actions:
            if isinstance(action, TakeTurn | GiveTurn | Remember | RememberAnswers):
                assert ofp.encode_actions((action,)) in data, "decoded to a different action"


def parsers() -> dict[str, Callable[[bytes], None]]:
    """Return the targets of this file by name."""
    return {target.__name__: target for target in (beacon, order, lldp, frame, switch)}


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Split data into pieces, as a network might."""
    return (data[at : at + size] for at in range(0, len(data), size))
