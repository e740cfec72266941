"""Checksums as they stand on wires whose senders finish them: right on every packet, in both directions, with SOS and without.

client -*- edge1 -*===== core1 ------- edge2 -*- server          * = looked at
              *  40 ms                   *
         agent1                      agent2
"""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tap
from conftest import armed, eventually, outcome, peer, sessions
from sos_testbed import lab as labs
from sos_testbed import measure
from sos_testbed.lab import Lab

TAP = Path(__file__).with_name("tap.py")
SIZE = 3_000_000
COVERED_PORT, UNCOVERED_PORT = "5004", "7004"
KINDS = ("syn", "data", "ack")


class Tap:
    """A tap that is listening; `stop` gives what it saw."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program
        self.result: dict[str, Any] = {}

    def stop(self) -> None:
        output, _ = self._program.communicate(timeout=60)
        self.result = json.loads(output.strip().splitlines()[-1])


@contextmanager
def tapped(net: Lab, places: list[tuple[str, str]]) -> Iterator[dict[tuple[str, str], Tap]]:
    """Taps at (part, interface), which have seen everything when the block ends."""
    programs = {}
    try:
        for part, interface in places:
            argv = net.exec_argv(part, (sys.executable, str(TAP), interface))
            programs[part, interface] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for program in programs.values():
            assert program.stdout is not None
            assert program.stdout.readline() == "listening\n"
        taps = {place: Tap(program) for place, program in programs.items()}
        yield taps
        for one in taps.values():
            one.stop()
    finally:
        for program in programs.values():
            program.kill()
            program.wait()


def talk(net: Lab, port: str) -> None:
    """A client sends 3 MB and gets them back."""
    server = peer(net, "server", "echo", port)
    measure.wait_listening(net, "server", int(port))
    client = peer(net, "client", "ask", measure.address(net, "server"), port, str(SIZE))
    got, answered = outcome(client, 60), outcome(server, 60)
    assert (got["bytes"], got["end"], got["sha256"]) == (SIZE, "eof", answered["sha256"])


def agents(net: Lab) -> dict[str, tuple[str, str]]:
    """Interface and address of each agent by the node it is at."""
    found = {}
    for document in net.documents.agents.values():
        interface = document["interface"]
        found[document["node"]] = (interface["name"], interface["address"].split("/")[0])
    return found


def all_right(taps: dict[tuple[str, str], Tap]) -> None:
    for place, one in taps.items():
        assert one.result["wrong"] == 0, f"{place}: {one.result['wrong']} wrong, such as {one.result['examples']}"
        assert one.result["partial"] > 0, f"{place}: nothing was left to the card, so nothing was finished"


def saw(taps: list[Tap], source: str) -> set[str]:
    return {kind for one in taps for kind in KINDS if one.result["seen"].get(f"{source} {kind}")}


WIRES = [("edge1", "wan0"), ("edge1", "wan1")]
HOSTS = [("client", "eth0"), ("server", "eth0")]


def segment(payload: bytes) -> bytearray:
    """A frame whose IP checksum is right and whose TCP checksum field holds the sum of the pseudo header."""
    addresses = bytes([10, 0, 0, 11, 10, 0, 0, 139])
    tcp = bytearray(struct.pack("!HHIIBBHHH", 40000, 5004, 1, 1, 0x50, 0x18, 1000, 0, 0) + payload)
    tcp[16:18] = struct.pack("!H", tap.total(addresses + struct.pack("!HH", 6, len(tcp))))
    ip = bytearray(struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + addresses)
    ip[10:12] = struct.pack("!H", ~tap.total(bytes(ip)) & 0xFFFF)
    return bytearray(12) + b"\x08\x00" + ip + tcp


@pytest.mark.parametrize("payload", [b"", b"x", b"hello!" * 1000])
def test_the_tap_knows_right_from_wrong(payload: bytes) -> None:
    """The trap it is there for: an address is changed and the partial sum with it, as if it were a whole one (RFC 1624)."""
    kind = "data" if payload else "ack"
    partial = tap.VNET.pack(tap.NEEDS_CSUM, 0, 0, 0, 34, 16)
    frame = bytes(segment(payload))
    assert tap.judge(frame) == ("10.0.0.11", kind, "TCP"), "not finished"
    assert tap.judge(tap.completed(partial, frame)) == ("10.0.0.11", kind, "")
    changed = segment(payload)
    changed[33] = 140
    changed[24:26] = struct.pack("!H", int.from_bytes(changed[24:26], "big") - 1)
    changed[50:52] = struct.pack("!H", int.from_bytes(changed[50:52], "big") - 1)
    assert tap.judge(tap.completed(partial, bytes(changed))) == ("10.0.0.11", kind, "TCP")
    changed[24] ^= 1
    assert tap.judge(tap.completed(partial, bytes(changed))) == ("10.0.0.11", kind, "IPTCP")


def test_plain_connections_cross_with_right_checksums(net: Lab) -> None:
    with tapped(net, WIRES[:1] + HOSTS) as taps:
        talk(net, UNCOVERED_PORT)
    all_right(taps)
    for one in taps.values():
        for host in ("client", "server"):
            assert saw([one], measure.address(net, host)) == set(KINDS)


def test_accelerated_connections_have_right_checksums_at_hosts_agents_and_on_the_wires(net: Lab) -> None:
    """The streams' own SYNs are seen because the near agent is started anew while the taps listen."""
    places = agents(net)
    near, far = places["edge1"], places["edge2"]
    net.kill("agent1")
    eventually("the agent's end", lambda: "agent1" in net.dead())
    with tapped(net, [*WIRES, *HOSTS, ("agent1", near[0]), ("agent2", far[0])]) as taps:
        net.start("agent1")
        labs.wait_ready(net, net.documents)
        eventually("an armed agent", lambda: armed(net))  # it meets its peer first
        talk(net, COVERED_PORT)
        eventually("no session left", lambda: sessions(net) == 0)
    busy = {place: one for place, one in taps.items() if one.result["seen"]}
    all_right(busy)
    wires = [one for place, one in busy.items() if place in WIRES]
    for address in (near[1], far[1]):
        assert saw(wires, address) == set(KINDS), "streams cross the wires, whose cards finish what agents began"
    client, server = measure.address(net, "client"), measure.address(net, "server")
    for place in (*HOSTS, ("agent1", near[0]), ("agent2", far[0])):
        for address in (client, server):
            assert saw([busy[place]], address) == set(KINDS), f"{address} at {place}"
    assert not saw(wires, client) and not saw(wires, server), "no packet of the connection itself crosses"
