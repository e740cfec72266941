"""Test parsing and building of frames of hosts, agents and switches, and hostile input."""

from __future__ import annotations

import struct
import time

from controller_lab import MACS
from controller_world import syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.types import (
    Location,
    map_address,
    parse_address,
    parse_mac,
    unmap_address,
)
from sos_controller.core.wire import lldp, packets
from sos_controller.core.wire.lldp import Probe


def test_segment_that_hangs_ryus_packet_library_is_parsed_in_time() -> None:
    """The segment to port 6653 has a payload that looks like OpenFlow with zero lengths (CVE-2024-28732 family)."""
    payload = struct.pack("!BBHI", 4, 19, 0, 0) + bytes(8)
    frame = syn_frame(1, 2, 40000, 6653, flags=0x18) + payload
    began = time.process_time()
    assert packets.parse_syn(frame) is None and packets.parse_udp(frame) is None and packets.parse_arp(frame) is None
    hostile = syn_frame(1, 2, 40000, 6653, options=bytes([8, 0, 8, 0, 8, 0, 8, 0]))
    assert packets.parse_syn(hostile).special
    assert time.process_time() - began < 1


@given(st.binary(max_size=120))
def test_any_frame_is_parsed_without_an_exception(data: bytes) -> None:
    for frame in (data, b"\0" * 12 + b"\x08\x00\x45" + data, b"\0" * 12 + b"\x08\x00\x45" + data[:8] + b"\x06" + data[8:]):
        for parse in (packets.parse_syn, packets.parse_udp, packets.parse_arp):
            parse(frame)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 2**32 - 1))
def test_syns_are_parsed(client: int, server: int, sport: int, dport: int, isn: int) -> None:
    syn = packets.parse_syn(syn_frame(client, server, sport, dport, isn))
    assert (syn.client, syn.server, syn.client_port, syn.server_port, syn.isn) == (client, server, sport, dport, isn.to_bytes(4, "big"))
    assert packets.parse_syn(syn_frame(client, server, sport, dport, isn, flags=0x12)) is None
    with_options = bytearray(syn_frame(client, server, sport, dport, isn))
    with_options[14] = 0x46
    longer = bytes(with_options[:34]) + bytes([1, 1, 1, 0]) + bytes(with_options[34:])
    assert packets.parse_syn(longer).key == syn.key


@given(st.binary(min_size=40, max_size=60).filter(lambda d: len(d) % 4 == 0))
def test_only_partial_checksums_are_completed(options: bytes) -> None:
    frame = bytearray(syn_frame(0x0A00000B, 0x0A00008B, 40000, 5001, options=options[:40]))
    end = len(frame)
    pseudo = bytes(frame[26:34]) + struct.pack("!HH", 6, end - 34)

    def total(data: bytes) -> int:
        value = sum(struct.unpack(f"!{len(data) // 2}H", data))
        while value >> 16:
            value = (value & 0xFFFF) + (value >> 16)
        return value

    frame[50:52] = total(pseudo).to_bytes(2, "big")
    done = packets.complete_checksum(bytes(frame))
    assert total(pseudo + done[34:]) == 0xFFFF
    assert packets.complete_checksum(done) == done
    frame[50] ^= 0x55
    assert packets.complete_checksum(bytes(frame)) == bytes(frame)


@given(st.binary(max_size=300))
def test_datagrams_have_correct_headers_and_survive_a_round_trip(payload: bytes) -> None:
    frame = packets.UdpTemplate(
        (b"\x02" * 6, b"\x04" * 6), (parse_address("198.18.255.254"), parse_address("10.0.0.126")), (9876, 9877)
    ).render(payload)
    words = struct.unpack("!10H", frame[14:34])
    assert (sum(words) & 0xFFFF) + (sum(words) >> 16) == 0xFFFF
    got = packets.parse_udp(frame)
    assert (got.payload, got.source_port, got.destination_port) == (payload, 9876, 9877)
    assert frame[:6] == b"\x04" * 6 and packets.parse_udp(frame[:-1]) is None


def test_arp_is_parsed_and_answered() -> None:
    mac = parse_mac(MACS["client"])
    ask = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + bytes([10, 0, 0, 11]) + bytes(6) + bytes([10, 0, 0, 139])
    asked = packets.parse_arp(ask)
    assert asked == packets.Arp(True, mac, parse_address("10.0.0.11"), parse_address("10.0.0.139"))
    answer = packets.parse_arp(packets.build_arp_reply(asked, parse_mac(MACS["server"])))
    assert answer == packets.Arp(False, parse_mac(MACS["server"]), parse_address("10.0.0.139"), parse_address("10.0.0.11"))


@given(
    st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1), st.integers(0, 2**40), st.integers(-3000, 3000), st.binary(min_size=6, max_size=6)
)
def test_only_fresh_probes_with_the_right_key_are_accepted(dpid: int, port: int, sent: int, age: int, mac: bytes) -> None:
    said = Probe(9, Location(dpid, port), sent)
    frame = lldp.encode(b"key", said, mac)
    assert lldp.decode(b"key", frame, (sent + age, sent + age)) == (said if 0 <= age <= lldp.MAX_AGE_MS else None)
    assert lldp.decode(b"key", frame, (sent, sent + 10**6)) == said, "the time for which a probe waits to be read does not count"
    assert lldp.decode(b"another", frame, (sent, sent)) is None
    assert frame[:6] == lldp.LLDP_MULTICAST and frame[6] & 1 == 0
    for at in range(len(frame) - 44, len(frame) - 2):
        assert lldp.decode(b"key", frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :], (sent, sent)) is None


@given(st.binary(max_size=100))
def test_any_lldp_without_a_valid_tag_is_ignored(data: bytes) -> None:
    assert lldp.decode(b"key", bytes(12) + b"\x88\xcc" + data, (0, 0)) is None


@given(st.integers(0, 2**32 - 1))
def test_mapped_addresses_survive_a_round_trip(address: int) -> None:
    assert unmap_address(map_address(address)) == address and unmap_address(b"\x20" * 16) is None
