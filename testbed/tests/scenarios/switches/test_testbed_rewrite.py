"""Both sites rewrite (thesis, tables 2 and 6): hosts see each other's addresses, agents use their own, and checksum offload is off.

client -- edge1 ======= core1 ------- edge2 -- server          edge1 and edge2 rewrite addresses for their agents
            |    40 ms                  |
         agent1                      agent2
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import accepted, baseline, eventually, flowing, lend, outcome, peer, sessions, transfers
from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import parse_flows
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import faults
from sos_testbed.lifecycle.lab import Lab, make_payload
from sos_testbed.measurements import measure
from taps import KINDS, agents, saw, talk, tapped
from vlans import accelerated_again, connect_plainly

SIZE = 20_000_000
COVERED_PORT = "5004"
REDIRECT_PORT = 9877
SMALL = 500_000
FAILED_S = 8.0  # time until a dead agent's beacons have expired, its entries are removed, and the next connection is plain


@pytest.fixture
def net(rewriting: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(rewriting, request)


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_transfers_succeed_and_hosts_see_each_others_addresses(net: Lab, tmp_path: Path, port: int) -> None:
    transfers(net, port, SIZE, tmp_path / "copy")


def test_edge_switches_rewrite_addresses_and_remove_their_entries(net: Lab) -> None:
    before = baseline(net)
    server = peer(net, "server", "serve", COVERED_PORT, "9000000", "3000000")
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("a connection", lambda: flowing(net, int(COVERED_PORT)))
    places = agents(net)
    near = connections(net, "agent1")
    far = connections(net, "agent2")
    assert any(own == f"{places['edge1'][1]}:{REDIRECT_PORT}" for own, _ in near)
    assert any(other == f"{measure.address(net, 'server')}:{COVERED_PORT}" and own.startswith(places["edge2"][1]) for own, other in far)
    rewriting = {switch: [e for e in parse_flows(dump_flows(net, switch)) if e.priority == 47000] for switch in ("edge1", "core1", "edge2")}
    assert {switch: len(found) for switch, found in rewriting.items()} == {"edge1": 2, "core1": 0, "edge2": 2}
    assert "set_field" in rewriting["edge2"][0].actions
    sent, got = outcome(server, 60), outcome(client, 60)
    assert (got["bytes"], got["end"], sent["client"]) == (9_000_000, "eof", got["own"])
    eventually("everything as before", lambda: baseline(net) == before)


def connections(net: Lab, agent: str) -> list[tuple[str, str]]:
    """Local and remote endpoints of an agent's connections."""
    output = subprocess.run(net.exec_argv(agent, ("ss", "-Htn")), capture_output=True, text=True, check=True).stdout
    return [(line.split()[3], line.split()[4]) for line in output.splitlines() if line.split()]


def test_rewritten_packets_have_correct_checksums_everywhere(net: Lab) -> None:
    near, far = agents(net)["edge1"], agents(net)["edge2"]
    client, server = measure.address(net, "client"), measure.address(net, "server")
    places = [("edge1", "wan0"), ("client", "eth0"), ("server", "eth0"), ("agent1", near[0]), ("agent2", far[0])]
    with tapped(net, places) as taps:
        talk(net, COVERED_PORT)
        eventually("no session left", lambda: sessions(net) == 0)
    for place, one in taps.items():
        assert one.result["wrong"] == 0, f"{place}: {one.result['wrong']} wrong, such as {one.result['examples']}"
    for place, addresses in (
        (("client", "eth0"), (client, server)),
        (("server", "eth0"), (client, server)),
        (("agent1", near[0]), (client, near[1])),
        (("agent2", far[0]), (far[1], server)),
    ):
        for address in addresses:
            assert saw([taps[place]], address) == set(KINDS), f"{address} at {place}"
    wire = taps["edge1", "wan0"]
    assert saw([wire], near[1]) and not saw([wire], client) and not saw([wire], server)


def test_fifty_simultaneous_connections_are_accelerated(net: Lab, tmp_path: Path) -> None:
    small = net.root / "www" / "small"
    make_payload(small, 100_000)
    url = f"http://{measure.address(net, 'server')}/small?[1-50]"
    arguments = ("-sS", "-Z", "--parallel-immediate", "--parallel-max", "50", "--max-time", "60", "-o", f"{tmp_path}/copy-#1", url)
    before = accepted(net)
    done = subprocess.run(net.exec_argv("client", ("curl", *arguments)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {measure.sha256(tmp_path / f"copy-{number}") for number in range(1, 51)} == {measure.sha256(small)}
    assert accepted(net) - before == 50


def test_hosts_in_another_vlan_connect_plainly(net: Lab) -> None:
    make_payload(net.root / "www" / "small", 100_000)
    connect_plainly(net, tag="100")
    accelerated_again(net)


def test_half_close_works_and_a_refusing_server_causes_an_error(net: Lab) -> None:
    talk(net, COVERED_PORT)
    argv = net.exec_argv("client", ("curl", "-sS", "-m", "10", f"http://{measure.address(net, 'server')}:5999/"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in {7, 56}, done.stderr  # couldn't connect; failure in receiving (reset)


@pytest.mark.parametrize("agent", ["agent1", "agent2"])
def test_connections_of_a_dead_agent_break_and_new_ones_are_plain(net: Lab, agent: str) -> None:
    server = peer(net, "server", "serve", COVERED_PORT, "60000000", "3000000")
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("a connection", lambda: flowing(net, int(COVERED_PORT)))
    faults.agent(net, agent, up=False)
    assert outcome(client, 60)["end"] != "eof", "a truncated transfer looked complete"
    outcome(server, 60)
    eventually("new connections are plain", lambda: plain(net), within_s=FAILED_S)
    eventually("the controller has no session", lambda: sessions(net) == 0)


def plain(net: Lab) -> bool:
    """True if a new connection transfers all bytes while the agent is dead."""
    port = "5005"
    server = peer(net, "server", "serve", port, str(SMALL))
    measure.wait_listening(net, "server", int(port))
    got = outcome(peer(net, "client", "fetch", measure.address(net, "server"), port), 30)
    server.kill()
    server.wait()
    return bool(got["bytes"] == SMALL and got["end"] == "eof")
