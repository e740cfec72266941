"""Sites with different subnets: hosts communicate as through a router, and covered connections are accelerated.

client 10.1.0.11 -- edge1 ======= core1 ------- edge2 -- 10.2.0.11 server        gateways 10.1.0.1 and 10.2.0.1 belong to no host
                      |    40 ms                  |
                   agent1                      agent2
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import SHARED, baseline, eventually, lend, outcome, peer, say, transfers
from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import parse_flows
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import faults
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options, make_payload
from sos_testbed.measurements import measure

SIZE = 20_000_000
LEASE_S = 6.0
AFTER_S = 15.0  # duration of pings: from before a controller's restart until well after it has removed stale entries
ROUTE = 800
GATEWAY_MAC = "02:53:4f:53:00:02"


@pytest.fixture(scope="module")
def routed() -> Iterator[Lab]:
    built = labs.up(Options(topology="routed", path1=SHARED.path1, path2=SHARED.path2), say)
    yield built
    built.down()


@pytest.fixture
def net(routed: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(routed, request)


def run(net: Lab, host: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(net.exec_argv(host, command), capture_output=True, text=True, check=False, timeout=60)


def ping(net: Lab, host: str, target: str, count: int = 3) -> str:
    return run(net, host, "ping", "-c", str(count), "-i", "0.2", "-W", "2", target).stdout


def routes(net: Lab, switch: str, host: str = "") -> int:
    """Number of routing entries for a host of the other site, or for all hosts."""
    found = [entry for entry in parse_flows(dump_flows(net, switch)) if entry.priority == ROUTE]
    return sum(f"nw_dst={host}" in entry.match for entry in found)


def test_hosts_reach_each_other_over_exactly_one_router_hop(net: Lab) -> None:
    for host, other in (("client", "server"), ("server", "client")):
        target = measure.address(net, other)
        # The controller trusts a host's port only after the port has been up for a while: another switch might be connected there.
        eventually("first echo replies", lambda host=host, target=target: ", 0% packet loss" in ping(net, host, target))
        found = ping(net, host, target)
        assert ", 0% packet loss" in found and "ttl=63" in found, found
    assert run(net, "client", "ip", "neigh", "show", "10.1.0.1").stdout.split()[4] == GATEWAY_MAC
    assert routes(net, "edge1", measure.address(net, "server")) == routes(net, "edge2", measure.address(net, "client")) == 1


def test_missing_host_adds_no_entry_and_does_not_affect_other_hosts(net: Lab) -> None:
    before = routes(net, "edge1")
    assert "100% packet loss" in ping(net, "client", "10.2.0.99", 10)
    assert routes(net, "edge1") == before
    assert ", 0% packet loss" in ping(net, "client", measure.address(net, "server"))


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_download_and_upload_between_routed_sites_succeed(net: Lab, tmp_path: Path, port: int) -> None:
    transfers(net, port, SIZE, tmp_path / "copy")


def test_udp_is_routed_with_correct_checksums(net: Lab) -> None:
    """Run iperf3 over UDP: wrong checksums would lose all datagrams, while a busy machine loses only a few."""
    measured = measure.probe(net, ("-u", "-b", "20M", "-t", "2"))
    assert measured["end"]["sum"]["packets"] > 1_000
    assert measured["end"]["sum"]["lost_percent"] < 50


def test_dead_agent_makes_connections_plain(net: Lab) -> None:
    server = peer(net, "server", "serve", "7001", "6000000", "2000000")
    measure.wait_listening(net, "server", 7001)
    client = peer(net, "client", "fetch", measure.address(net, "server"), "7001")
    faults.agent(net, "agent1", up=False)
    make_payload(net.root / "www" / "small", 500_000)
    url = f"http://{measure.address(net, 'server')}/small"
    done = run(net, "client", "curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{size_download}", url)
    assert (done.returncode, done.stdout) == (0, "500000"), done.stderr
    assert outcome(client, 60)["end"] == "eof"
    outcome(server, 60)


def test_hosts_with_routes_keep_communicating_without_a_controller(net: Lab) -> None:
    before = baseline(net)
    eventually("echo replies", lambda: ", 0% packet loss" in ping(net, "client", measure.address(net, "server")))
    faults.controller(net, "controller", up=False)
    eventually("no lease is left", lambda: not any(e.priority == 700 for e in parse_flows(dump_flows(net, "edge1"))), within_s=LEASE_S)
    for host in ("client", "server"):  # new ARP requests for the gateway must be answered by the switch
        run(net, host, "ip", "neigh", "flush", "all")
    eventually("echo replies without a controller", lambda: ", 0% packet loss" in ping(net, "client", measure.address(net, "server")))
    command = ("ping", "-c", str(round(AFTER_S / 0.2)), "-i", "0.2", "-W", "2", measure.address(net, "client"))
    pings = subprocess.Popen(net.exec_argv("server", command), stdout=subprocess.PIPE, text=True)
    faults.controller(net, "controller", up=True)
    labs.wait_ready(net, net.documents)
    said, _ = pings.communicate(timeout=AFTER_S + 30)
    assert ", 0% packet loss" in said, "routes of the former controller stay until the hosts have answered the new controller"
    eventually("sessions as before", lambda: baseline(net)["sessions"] == before["sessions"])
