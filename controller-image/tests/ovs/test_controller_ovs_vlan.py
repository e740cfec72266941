"""Compare a real Open vSwitch's handling of tagged and untagged frames, in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from controller_fake import TPID
from controller_lab import DISCOVERY, DISCOVERY_MAC, HOSTS, MACS, Lab, document, document_hash, lab, wait
from controller_world import syn_frame
from sos_controller.core.types import parse_address, parse_mac
from sos_controller.core.wire.packets import UdpTemplate, build_arp_request

SLOW = 30.0
"""Bound of every wait in seconds. The tests do not check durations."""
OURS = "cookie 0x534f0101"
"""Text that marks an entry of the controller in the output of a trace."""
GENERATION = itertools.count(2)
CLIENT, SERVER, AGENT, BEACON = (parse_address(address) for address in (*(HOSTS[n][1] for n in ("client", "server", "agent1")), DISCOVERY))
SYN = syn_frame(CLIENT, SERVER, 40_000, 5001)
ACK = syn_frame(CLIENT, SERVER, 40_000, 5001, flags=0x10)
BACK = syn_frame(SERVER, CLIENT, 5001, 40_000, flags=0x10, mac="server")
STREAM = syn_frame(AGENT, SERVER, 40_000, 10_000, mac="agent1")
_ENDS = f"nw_src={HOSTS['client'][1]},nw_dst={HOSTS['server'][1]},tp_src=40000,tp_dst=5001"
_BACK = f"nw_src={HOSTS['server'][1]},nw_dst={HOSTS['client'][1]},tp_src=5001,tp_dst=40000"
TEXTS = {SYN: f"tcp,{_ENDS},tcp_flags=syn", ACK: f"tcp,{_ENDS},tcp_flags=ack", BACK: f"tcp,{_BACK},tcp_flags=ack"}
"""The same frames as flow descriptions. A traced packet that matches a punt entry reaches the controller and would start a session."""
ARP = build_arp_request(parse_mac(MACS["client"]), CLIENT, SERVER)
LLDP = bytes.fromhex("0180c200000e0200000000aa88cc0207040200000000aa040403686f7374060200780000")
UDP = UdpTemplate((parse_mac(MACS["agent1"]), parse_mac(DISCOVERY_MAC)), (AGENT, BEACON), (9876, 9875)).render(b"hello")


def config(change: dict[str, Any], rewrite: str) -> dict[str, Any]:
    made = document(next(GENERATION))
    made["services"][0] |= change
    for site in made["sites"]:
        site["rewrite"] = rewrite if site["name"] in ("west", "east") else "Transparent"
    del made["hash"]
    return {**made, "hash": document_hash(made)}


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    with lab("Node") as made:
        made.start_controller(document())
        for agent in ("agent1", "agent2"):
            made.start_agent(agent)
        yield made


@pytest.mark.parametrize(
    ("change", "rewrite", "met"),
    [
        ({}, "Transparent", {("edge1", SYN), ("edge1", ACK), ("edge2", BACK)}),
        ({"percent": 50}, "Transparent", {("edge1", SYN), ("edge1", ACK), ("edge2", BACK)}),
        ({"mode": "Observe"}, "Transparent", {("edge1", SYN)}),
        ({}, "OpenFlow", {("edge1", SYN)}),
        ({"setup": "Proactive"}, "Transparent", {("edge1", SYN), ("edge1", ACK), ("edge2", BACK)}),
    ],
    ids=["reactive", "half", "observe", "rewriting", "proactive"],  # proactive is the last mode because its entries outlive it
)
def test_tagged_frame_matches_only_entries_of_the_base_table(net: Lab, change: dict[str, Any], rewrite: str, met: set[Any]) -> None:
    assert net.put_config(config(change, rewrite))[0] == 200
    ports = {"edge1": net.port("edge1", "p-client"), "edge2": net.port("edge2", "p-server")}
    frames = (("edge1", SYN), ("edge1", ACK), ("edge2", BACK))
    wait("in force", SLOW, lambda: {(s, f) for s, f in frames if OURS in net.traced(s, f"in_port={ports[s]},{TEXTS[f]}")} == met)
    for switch, frame in frames:
        for tci in (0x0007, 0x6FFF, 0x6000):  # a priority tag (VLAN id 0) is a tag, too
            tagged = traced(net, switch, ports[switch], frame[:12] + TPID + tci.to_bytes(2, "big") + frame[12:])
            assert OURS not in tagged and "NORMAL" in tagged, tagged


@pytest.mark.parametrize("frame", [ARP, LLDP, UDP, STREAM], ids=["arp", "lldp", "beacon", "stream"])
def test_tagged_frames_do_not_reach_the_controller(net: Lab, frame: bytes) -> None:
    for name in ("p-client", "p-agent1"):
        found = traced(net, "edge1", net.port("edge1", name), frame[:12] + TPID + b"\x00\x64" + frame[12:])
        assert OURS not in found and "CONTROLLER" not in found, found
    assert frame == STREAM or "CONTROLLER" in traced(net, "edge1", net.port("edge1", "p-client"), frame)


def traced(net: Lab, switch: str, port: int, frame: bytes) -> str:
    """Return the switch's actions on a frame."""
    return net.ovs("ovs-appctl", f"--target={net.folder}/sw.ctl", "ofproto/trace", switch, f"in_port={port}", frame.hex())
