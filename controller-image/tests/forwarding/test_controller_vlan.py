"""Test that SOS ignores VLAN-tagged frames. They match only entries that forward, in every mode of a site.

`controller_fake` asserts in every test that all other entries match only untagged frames.
"""

from __future__ import annotations

import struct
from typing import Any

import pytest
from controller_agent import checksum
from controller_fake import E1, E2
from controller_home import OUTSIDE, Home
from controller_home import SERVER as OUTSIDE_SERVER
from controller_home import config as balanced
from controller_lab import HOSTS, MACS, document, document_hash
from controller_world import CLIENT_PORT, World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.openflow.pipeline import GATEWAY_MAC, PORT_NORMAL, path_mac
from sos_controller.core.types import Location, MacAddress, PortNo, parse_address, parse_mac
from sos_controller.core.wire import packets

CLIENT, SERVER, INGRESS, EGRESS = (parse_address(HOSTS[name][1]) for name in ("client", "server", "agent1", "agent2"))
BEACON = parse_address("198.18.255.254")
MODES: dict[str, dict[str, Any]] = {
    "reactive": {},
    "proactive": {"setup": "Proactive"},
    "observe": {"mode": "Observe"},
    "half": {"percent": 50},
    "rewriting": {},
}


def config(mode: str) -> dict[str, Any]:
    made = document()
    made["services"][0] |= MODES[mode]
    for site in made["sites"]:
        site["rewrite"] = "OpenFlow" if mode == "rewriting" and site["name"] in ("west", "east") else "Transparent"
    del made["hash"]
    return {**made, "hash": document_hash(made)}


def tagged(frame: bytes, vlan: int, tpid: bytes = b"\x81\x00") -> bytes:
    return frame[:12] + tpid + vlan.to_bytes(2, "big") + frame[12:]


@pytest.fixture(scope="module", params=[*MODES, "balance", "turns"])
def running(request: pytest.FixtureRequest) -> World:
    """Return a running site in each mode, with open connections. Check that its hosts' untagged frames are not forwarded plainly."""
    if request.param in ("balance", "turns"):
        home = Home(balanced("Controller" if request.param == "balance" else "Switch"))
        home.up()
        for sport in range(40_000, 40_020):
            home.open(sport)
        assert home.open(40_021)[0][0].port_no != PORT_NORMAL
        return home
    world = World(config(request.param))
    world.connect()
    world.tick(9)
    for sport in range(40_000, 40_020):
        world.syn(sport)
    world.tick(0.5)
    where = Location(E1, PortNo(CLIENT_PORT))
    assert world.network.walk(where, syn_frame(CLIENT, SERVER, 40_021, 5001))[0][0].port_no != PORT_NORMAL
    return world


hosts = st.sampled_from([CLIENT, SERVER, INGRESS, EGRESS, BEACON, parse_address("10.0.0.1"), OUTSIDE[1], OUTSIDE_SERVER])
macs = st.sampled_from([*map(parse_mac, MACS.values()), GATEWAY_MAC, path_mac(0, 1, 0), path_mac(0, 1, 1)])


@given(
    hosts, hosts, st.integers(40_000, 40_020), st.sampled_from([80, 5001, 9875, 10_000]), st.sampled_from([2, 0x10, 0x12, 0x11]),
    macs, macs, st.integers(1, 0xFFFF), st.sampled_from([E1, E2]), st.booleans(), st.sampled_from([b"\x08\x00", b"\x08\x06", b"\x88\xcc"]),
)  # fmt: skip
def test_tagged_frame_is_forwarded_plainly_in_every_mode(
    running: World, source: int, target: int, sport: int, dport: int, flags: int, from_mac: MacAddress, to_mac: MacAddress,
    tci: int, dpid: int, swapped: bool, ethertype: bytes,
) -> None:  # fmt: skip
    ports = (dport, sport) if swapped else (sport, dport)
    frame = syn_frame(source, target, *ports, flags=flags)[12:]
    frame = tagged(to_mac + from_mac + ethertype + frame[2:], tci)
    where = Location(dpid, PortNo(CLIENT_PORT))
    assert running.network.walk(where, frame) == [(Location(where.dpid, PORT_NORMAL), frame)]


@given(st.integers(0, 0xFFFF), st.sampled_from([b"\x81\x00", b"\x88\xa8"]), st.integers(0, 2), st.binary(max_size=5))
def test_a_checksum_is_completed_behind_vlan_tags(tci: int, tpid: bytes, tags: int, payload: bytes) -> None:
    frame = syn_frame(CLIENT, SERVER, 40_000, 80)
    frame = frame[:16] + struct.pack("!H", 40 + len(payload)) + frame[18:] + payload
    pseudo = frame[26:34] + struct.pack("!HH", 6, 20 + len(payload))
    partial = 0xFFFF - checksum(pseudo)  # partial checksum that a kernel leaves to the network card
    frame = frame[:50] + partial.to_bytes(2, "big") + frame[52:]
    whole, expected = frame, packets.complete_checksum(frame)
    assert checksum(pseudo + expected[34:]) == 0
    for _ in range(tags):
        whole, expected = tagged(whole, tci, tpid), tagged(expected, tci, tpid)
    assert packets.complete_checksum(whole) == expected


@given(st.binary(max_size=80), st.integers(0, 3))
def test_frames_of_other_protocols_are_not_changed(rest: bytes, tags: int) -> None:
    frame = bytes(12) + b"\x81\x00\x00\x07" * tags + b"\x86\xdd" + rest
    assert packets.complete_checksum(frame) == frame
    assert packets.parse_syn(frame) is packets.parse_arp(frame) is packets.parse_udp(frame) is packets.parse_segment(frame) is None
