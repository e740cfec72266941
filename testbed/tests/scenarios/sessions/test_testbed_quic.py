"""A transfer uses QUIC streams, and falls back to TCP streams if a firewall drops UDP.

client -- edge1 ======= core1 ------- edge2 -- server
            |    wan0                   |
         agent1                      agent2
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import PROGRAMS, accepted, armed, eventually, metrics, outcome, peer, with_service
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

PACKETS = PROGRAMS / "packets.py"
WIRES = (("edge1", "wan0"), ("edge1", "wan1"))
COVERED_PORT = "5001"
STREAM_PORTS = "10000-10007"
SIZE = 20_000_000
CHUNK = 65536  # as in peer.py
CHANGED_S = 60.0
BLOCK = f"table ip sos_test {{\nchain input {{\ntype filter hook input priority -300; udp dport {STREAM_PORTS} drop\n}}\n}}"


@contextmanager
def packets(net: Lab) -> Iterator[dict[str, int]]:
    """Count bytes on the links between the sites during the block: of TCP, and of UDP on stream ports."""
    programs, seen = [], {"tcp": 0, "udp": 0}
    try:
        for part, interface in WIRES:
            argv = net.exec_argv(part, (sys.executable, str(PACKETS), interface))
            programs.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for program in programs:
            assert program.stdout is not None
            assert program.stdout.readline() == "listening\n"
        yield seen
        for program in programs:
            found = json.loads(program.communicate(timeout=60)[0].strip().splitlines()[-1])
            for kind in seen:
                seen[kind] += found[kind]
    finally:
        for program in programs:
            program.kill()
            program.wait()


def digest() -> str:
    """Digest of peer.py's data."""
    chunks = (hashlib.sha256(number.to_bytes(8)).digest() * (CHUNK // 32) for number in range(SIZE // CHUNK + 1))
    return hashlib.sha256(b"".join(chunks)[:SIZE]).hexdigest()


def number(net: Lab, agent: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)$", metrics(net, agent), flags=re.MULTILINE)
    return int(found[1]) if found else -1


def all_are(net: Lab, *, quic: bool) -> bool:
    """True if both agents have streams, and either all streams (`quic`) or no streams use QUIC."""
    found = [(number(net, each, "sos_agent_streams"), number(net, each, "sos_agent_streams_quic")) for each in ("agent1", "agent2")]
    return all(total > 0 and over == (total if quic else 0) for total, over in found)


def transfer(net: Lab) -> None:
    """Transfer data from server to client through the agents; check the bytes and the client's address at the server.

    Wait for an armed agent: an agent without a stream is not armed, and it is armed a round trip after its first new stream.
    """
    eventually("an armed agent", lambda: armed(net))
    took = accepted(net)
    server = peer(net, "server", "serve", COVERED_PORT, str(SIZE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    got, sent = outcome(client, 120), outcome(server, 120)
    assert (got["bytes"], got["end"], got["sha256"], sent["client"]) == (SIZE, "eof", digest(), got["own"])
    assert accepted(net) - took == 1


@pytest.mark.slow
def test_quic_falls_back_to_tcp_if_datagrams_are_dropped(net: Lab) -> None:
    before = net.objects
    net.declare(with_service(before, transport={"protocol": "QUIC"}))
    eventually("streams over QUIC at both agents", lambda: all_are(net, quic=True), CHANGED_S)
    with packets(net) as seen:
        transfer(net)
    assert seen["udp"] > SIZE
    assert seen["tcp"] < SIZE // 10

    fell_back = number(net, "agent1", "sos_agent_quic_fallbacks_total") + number(net, "agent2", "sos_agent_quic_fallbacks_total")
    for agent in ("agent1", "agent2"):
        subprocess.run(net.exec_argv(agent, ("nft", BLOCK)), check=True)
    try:
        eventually("streams over TCP at both agents", lambda: all_are(net, quic=False), CHANGED_S)
        with packets(net) as seen:
            transfer(net)
        assert seen["tcp"] > SIZE
        assert seen["udp"] < SIZE // 10
    finally:
        for agent in ("agent1", "agent2"):
            subprocess.run(net.exec_argv(agent, ("nft", "delete table ip sos_test")), check=True)
    now = number(net, "agent1", "sos_agent_quic_fallbacks_total") + number(net, "agent2", "sos_agent_quic_fallbacks_total")
    assert now > fell_back
    eventually("streams over QUIC again", lambda: all_are(net, quic=True), CHANGED_S)

    net.declare(before)
    eventually("streams over TCP as before", lambda: all_are(net, quic=False), CHANGED_S)
