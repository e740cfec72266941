"""Every packet's checksum is correct after checksum offload, in both directions, with SOS and without.

client -*- edge1 -*===== core1 ------- edge2 -*- server          * = tap
              *  40 ms                   *
         agent1                      agent2
"""

import struct

import pytest
import tap
from conftest import armed, eventually, sessions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure
from taps import KINDS, Tap, agents, saw, talk, tapped

COVERED_PORT, UNCOVERED_PORT = "5004", "7004"


def all_right(taps: dict[tuple[str, str], Tap]) -> None:
    for place, one in taps.items():
        assert one.result["wrong"] == 0, f"{place}: {one.result['wrong']} wrong, such as {one.result['examples']}"
        assert one.result["partial"] > 0, f"{place}: no packet used checksum offload, so no checksum was completed"


WIRES = [("edge1", "wan0"), ("edge1", "wan1")]
HOSTS = [("client", "eth0"), ("server", "eth0")]


def segment(payload: bytes) -> bytearray:
    """Frame with a correct IP checksum, and with the sum of the pseudo header in its TCP checksum field."""
    addresses = bytes([10, 0, 0, 11, 10, 0, 0, 139])
    tcp = bytearray(struct.pack("!HHIIBBHHH", 40000, 5004, 1, 1, 0x50, 0x18, 1000, 0, 0) + payload)
    tcp[16:18] = struct.pack("!H", tap.total(addresses + struct.pack("!HH", 6, len(tcp))))
    ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + addresses)
    ip[10:12] = struct.pack("!H", ~tap.total(bytes(ip)) & 0xFFFF)
    return bytearray(12) + b"\x08\x00" + ip + tcp


@pytest.mark.parametrize("payload", [b"", b"x", b"hello!" * 1000])
def test_tap_distinguishes_correct_from_wrong_checksums(payload: bytes) -> None:
    """Detect a rewritten address whose partial checksum was updated as if it were complete (RFC 1624)."""
    kind = "data" if payload else "ack"
    partial = tap.VNET.pack(tap.NEEDS_CSUM, 0, 0, 0, 34, 16)
    frame = bytes(segment(payload))
    assert tap.judge(frame) == ("10.0.0.11", kind, "TCP"), "the checksum is partial"
    assert tap.judge(tap.completed(partial, frame)) == ("10.0.0.11", kind, "")
    changed = segment(payload)
    changed[33] = 140
    changed[24:26] = struct.pack("!H", int.from_bytes(changed[24:26], "big") - 1)
    changed[50:52] = struct.pack("!H", int.from_bytes(changed[50:52], "big") - 1)
    assert tap.judge(tap.completed(partial, bytes(changed))) == ("10.0.0.11", kind, "TCP")
    changed[24] ^= 1
    assert tap.judge(tap.completed(partial, bytes(changed))) == ("10.0.0.11", kind, "IPTCP")


def test_plain_connections_have_correct_checksums_everywhere(net: Lab) -> None:
    with tapped(net, WIRES[:1] + HOSTS) as taps:
        talk(net, UNCOVERED_PORT)
    all_right(taps)
    for one in taps.values():
        for host in ("client", "server"):
            assert saw([one], measure.address(net, host)) == set(KINDS)


def test_accelerated_connections_have_correct_checksums_everywhere(net: Lab) -> None:
    """Restart the ingress agent while the taps listen, so that they capture the SYNs of the streams."""
    places = agents(net)
    near, far = places["edge1"], places["edge2"]
    net.kill("agent1")
    eventually("the agent's end", lambda: "agent1" in net.dead())
    with tapped(net, [*WIRES, *HOSTS, ("agent1", near[0]), ("agent2", far[0])]) as taps:
        net.start("agent1")
        labs.wait_ready(net, net.documents)
        eventually("an armed agent", lambda: armed(net))  # an agent is armed only after it has met its peer
        talk(net, COVERED_PORT)
        eventually("no session left", lambda: sessions(net) == 0)
    busy = {place: one for place, one in taps.items() if one.result["seen"]}
    all_right(busy)
    wires = [one for place, one in busy.items() if place in WIRES]
    for address in (near[1], far[1]):
        assert saw(wires, address) == set(KINDS), "streams cross the links, whose network cards complete the agents' partial checksums"
    client, server = measure.address(net, "client"), measure.address(net, "server")
    for place in (*HOSTS, ("agent1", near[0]), ("agent2", far[0])):
        for address in (client, server):
            assert saw([busy[place]], address) == set(KINDS), f"{address} at {place}"
    assert not saw(wires, client) and not saw(wires, server), "no packet of the hosts' connection crosses the links"
