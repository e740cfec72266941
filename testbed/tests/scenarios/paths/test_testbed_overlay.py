"""Two sites joined by a VXLAN tunnel: transfers are complete, checksums are correct, and packets of the declared MTU pass.

client -*- edge1 ==(wire, 40 ms; VXLAN)== edge2 -*- server          * = tap
             *                              *
         agent1                         agent2
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RATE_BPS, RTT_US, eventually, lend, say, sessions, transfers
from sos_testbed.core.topology import OVERLAY_MTU, PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.lifecycle.runner import run
from sos_testbed.measurements import measure
from taps import KINDS, agents, saw, talk, tapped

SIZE = 8_000_000
COVERED_PORT = "5004"
ICMP_BYTES = 28  # IPv4 and ICMP headers of a ping


@pytest.fixture(scope="module")
def overlay() -> Iterator[Lab]:
    built = labs.up(Options(topology="overlay", path1=PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US)), say)
    yield built
    built.down()


@pytest.fixture
def net(overlay: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(overlay, request)


def tunnelled(net: Lab, switch: str) -> int:
    """Bytes that a switch has sent through its tunnel."""
    (tunnel,) = net.documents.nodes[switch]["tunnels"]
    return int(run(net.exec_argv(switch, ("cat", f"/sys/class/net/{tunnel['name']}/statistics/tx_bytes")), what="tunnel"))


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_transfers_through_a_tunnel_are_complete_in_both_directions(net: Lab, tmp_path: Path, port: int) -> None:
    before = tunnelled(net, "edge1"), tunnelled(net, "edge2")
    transfers(net, port, SIZE, tmp_path / "copy")
    sent = tunnelled(net, "edge1") - before[0], tunnelled(net, "edge2") - before[1]
    assert min(sent) >= SIZE, sent


def test_connections_through_a_tunnel_have_correct_checksums_everywhere(net: Lab) -> None:
    near, far = agents(net)["edge1"], agents(net)["edge2"]
    hosts = [("client", "eth0"), ("server", "eth0"), ("agent1", near[0]), ("agent2", far[0])]
    with tapped(net, hosts) as taps:
        talk(net, COVERED_PORT)
        eventually("no session left", lambda: sessions(net) == 0)
    for place, one in taps.items():
        assert one.result["wrong"] == 0, f"{place}: {one.result['wrong']} wrong, such as {one.result['examples']}"
        for host in ("client", "server"):
            assert saw([one], measure.address(net, host)) == set(KINDS), f"{host} at {place}"


@pytest.mark.parametrize(("size", "passes"), [(OVERLAY_MTU, True), (OVERLAY_MTU + 1, False)])
def test_packets_of_the_declared_mtu_pass_without_fragments(net: Lab, size: int, passes: bool) -> None:
    ping = ("ping", "-n", "-c", "20", "-i", "0.2", "-w", "60", "-M", "do", "-s", str(size - ICMP_BYTES), measure.address(net, "server"))
    told = run(net.exec_argv("client", ("sh", "-c", " ".join(ping) + " 2>&1; true")), what="ping")
    assert (re.search(r" [1-9]\d* received", told) is not None) is passes, told
