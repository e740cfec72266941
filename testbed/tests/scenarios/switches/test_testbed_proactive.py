"""Proactive set-up (examples/03-proactive) needs a constant number of entries, no packet-in and no running controller.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import RATE_BPS, RTT_US, accepted, eventually, flowing, outcome, peer, say, sessions
from flow_entries import entries, identities, to_controller
from requests_of_hosts import MPTCP, answer
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import declare, faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import PROACTIVE, Lab, Options
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

PATH = PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US)
OPTIONS = Options(path1=PATH, path2=PATH, examples=(PROACTIVE,))

COVERED_PORT = "5002"
SIZE, RATE = 24_000_000, 2_000_000
END_S = 30.0
MANY = 1_000
SERVICE = 6  # kind in a controller's cookies (spec/node-config.md clause 8)
REPORTED_S = 15.0  # limit for a session to appear at the controller; agents report every 5 s
# Limit for new connections to be plain. An agent's listener closes when the agent dies; a SYN lost at this moment is retransmitted after 1
# and 3 s
PLAIN_WITHIN_S = 5.0
RETRANSMITTED_S = 25  # limit for a retransmission of a SYN after the 8 s that the agent waits: after at most 15 s (RFC 6298)
PROVEN_FAILURES, BACKOFF_S = 3, 30.0  # of a client that has completed handshakes before (client_backoff.rs)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    built = labs.up(OPTIONS, say)
    yield built
    built.down()


@pytest.fixture(autouse=True)
def tiny(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "tiny", 20_000)


def redirected(net: Lab, switch: str) -> int:
    """Number of the service's packets that a switch has redirected."""
    return sum(entry.n_packets for entry in entries(net, switch) if entry.cookie >> 24 & 0xFF == SERVICE)


def fetched(net: Lab, tmp_path: Path) -> None:
    """Assert that a small download from a covered port is complete and the server saw the client's address."""
    source = net.root / "www" / "tiny"
    done = measure.download(net, Request(path=source, max_time_s=5), tmp_path / "copy")
    assert (done.complete, done.status, done.server_saw) == (True, 200, done.client_address), done
    assert measure.same_bytes(source, tmp_path / "copy", complete=True)


def start(net: Lab) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    server = peer(net, "server", "serve", COVERED_PORT, str(SIZE), str(RATE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("bytes at the client", lambda: flowing(net, int(COVERED_PORT)), within_s=5)
    return server, client


def finished(running: tuple[subprocess.Popen[str], subprocess.Popen[str]]) -> None:
    """Assert a complete transfer at both hosts, and the client's real address at the server."""
    server, client = running
    got, sent = outcome(client, END_S + SIZE / RATE), outcome(server, END_S)
    assert (got["bytes"], got["end"], sent["client"], sent["send_end"]) == (SIZE, "eof", got["own"], "ok")


def test_a_thousand_proactive_flows_add_no_entry_and_no_packet_in(net: Lab, tmp_path: Path) -> None:
    fetched(net, tmp_path)
    eventually("no session", lambda: sessions(net) == 0)
    before, punted, taken, counted = identities(net), to_controller(net), accepted(net), redirected(net, "edge1")
    program = peer(net, "client", "many", measure.address(net, "server"), "80", "/tiny", str(MANY), "20")
    eventually("all sessions at the controller", lambda: sessions(net) == MANY, within_s=30)
    (service,) = northbound.get(net.plan, "/v1/status")["services"]
    during = identities(net)
    done = outcome(program, 60)
    assert (done["right"], done["bytes"]) == (MANY, 20_000)
    assert done["sha256"] == measure.sha256(net.root / "www" / "tiny")
    assert service["sessions"] == MANY
    assert during == before
    assert (accepted(net) - taken, to_controller(net) - punted) == (MANY, 0)
    packets = redirected(net, "edge1") - counted
    assert packets > 2 * MANY
    say(f"{MANY} flows: {sum(map(len, before.values()))} entries before and during, 0 packet-ins, {packets} packets redirected at edge1")
    eventually("no session", lambda: sessions(net) == 0)


def test_connections_stay_accelerated_without_a_controller(net: Lab, tmp_path: Path) -> None:
    """Open connections before, during and after a controller's outage: all are accelerated and none is broken."""
    running = start(net)
    taken, count = accepted(net), 0

    def open_for(seconds: float) -> None:
        nonlocal count
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            fetched(net, tmp_path)
            count += 1

    open_for(2)
    faults.controller(net, "controller", up=False)
    open_for(12)  # more than twice the lifetime of punt entries and beacons
    faults.controller(net, "controller", up=True)
    open_for(12)
    assert accepted(net) - taken == count > 20
    finished(running)
    labs.wait_ready(net, net.documents)
    fetched(net, tmp_path)


@pytest.mark.parametrize("victim", ["agent1", "agent2"])
def test_new_connections_are_plain_after_an_agent_dies_without_a_controller(net: Lab, tmp_path: Path, victim: str) -> None:
    faults.controller(net, "controller", up=False)
    server, client = start(net)
    faults.agent(net, victim, up=False)
    killed = time.monotonic()
    eventually("a new connection is plain", lambda: works(net, tmp_path), within_s=PLAIN_WITHIN_S)
    say(f"{victim} killed, controller dead: a new connection worked after {time.monotonic() - killed:.2f} s")
    got = outcome(client, END_S)
    assert got["end"] != "eof", "a truncated transfer looked complete"
    outcome(server, END_S)
    namespace = net.plan.netns(victim)
    # Take the agent's interface down, too. Deletion of the agent's namespace has the same effect.
    subprocess.run(("ip", "-n", namespace, "link", "set", "net0", "down"), check=True)
    gone = time.monotonic()
    eventually("a new connection is plain", lambda: works(net, tmp_path), within_s=PLAIN_WITHIN_S)
    say(f"{victim}'s port dead, controller dead: a new connection worked after {time.monotonic() - gone:.2f} s")
    faults.agent(net, victim, up=True)
    eventually("accelerated again, still without the controller", lambda: takes(net, tmp_path))
    faults.controller(net, "controller", up=True)
    labs.wait_ready(net, net.documents)


def works(net: Lab, tmp_path: Path) -> bool:
    # Use curl with a short timeout: a connection that is open at the agent's death hangs, and only later connections count.
    url = f"http://{measure.address(net, 'server')}/tiny"
    argv = net.exec_argv("client", ("curl", "-sf", "-m", f"{limit_s(1):g}", "-o", str(tmp_path / "copy"), url))
    return subprocess.run(argv, check=False).returncode == 0 and measure.same_bytes(
        net.root / "www" / "tiny", tmp_path / "copy", complete=True
    )


def takes(net: Lab, tmp_path: Path) -> bool:
    if not works(net, tmp_path):
        return False
    before = accepted(net)
    fetched(net, tmp_path)
    return accepted(net) == before + 1


@pytest.mark.slow
def test_deleting_and_applying_a_service_keeps_running_connections(net: Lab, tmp_path: Path) -> None:
    objects = net.objects
    fast = start(net)
    eventually("the session at the controller", lambda: sessions(net) == 1, within_s=REPORTED_S)
    net.declare(declare.without_service(objects, "bulk"))
    labs.wait_ready(net, net.documents)
    eventually("a new connection is plain", lambda: works(net, tmp_path) and not takes(net, tmp_path))
    taken = accepted(net)
    finished(fast)
    eventually("no entry of the service is left", lambda: not standing(net), within_s=60)
    slow = start(net)
    net.declare(objects)
    labs.wait_ready(net, net.documents)
    assert accepted(net) == taken, "a connection that starts plain stays plain"
    finished(slow)
    fetched(net, tmp_path)
    assert accepted(net) == taken + 1


def standing(net: Lab) -> int:
    return sum(entry.cookie >> 24 & 0xFF == SERVICE for switch in ("edge1", "edge2") for entry in entries(net, switch))


def test_plain_decisions_of_an_agent_are_reported_with_reasons(net: Lab) -> None:
    before, own = accepted(net), 45_679
    assert answer(net, 80, own, MPTCP) == "HTTP/1.1 404"
    assert accepted(net) == before

    def told() -> bool:
        found = northbound.get(net.plan, "/v1/plain")["connections"]
        return any((c["reason"], c["by"]) == ("Option", "edge1") and c["client"].endswith(f":{own}") for c in found)

    eventually("the agent's report of the plain connection", told, within_s=15)


@contextmanager
def syn_acks_lost(net: Lab) -> Iterator[None]:
    """Drop the ingress agent's SYN-ACKs at the client, but not the server's: as if the agent were in another VLAN than the client."""
    place = next(place for place in net.topology.agents if place.name == "agent1")
    mac = net.documents.agents[place.key]["interface"]["mac"]
    rule = f"ether saddr {mac} tcp flags & (syn | ack) == syn | ack drop"
    table = f"table ip lost {{ chain in {{ type filter hook prerouting priority -400; {rule}; }}; }}"
    subprocess.run(net.exec_argv("client", ("nft", "-f", "-")), input=table, text=True, check=True)
    try:
        yield
    finally:
        subprocess.run(net.exec_argv("client", ("nft", "delete", "table", "ip", "lost")), check=True)


@pytest.mark.slow
def test_client_that_receives_no_syn_ack_from_the_agent_becomes_plain(net: Lab, tmp_path: Path) -> None:
    fetched(net, tmp_path)
    before = accepted(net)
    urls = [f"http://{measure.address(net, 'server')}:{port}/tiny" for port in (PLAIN_PORT, *(SOS_PORT,) * PROVEN_FAILURES)]
    with syn_acks_lost(net):
        # The client has completed handshakes before, so one failure is not enough.
        argvs = [("curl", "-sf", "-m", str(RETRANSMITTED_S), "-o", "/dev/null", "-w", "%{time_connect}", url) for url in urls]
        running = [subprocess.Popen(net.exec_argv("client", argv), stdout=subprocess.PIPE, text=True) for argv in argvs]
        plain, *covered = [(program.communicate(timeout=2 * RETRANSMITTED_S)[0], program.returncode) for program in running]
        assert plain[1] == 0 and [code for _, code in covered] == [0] * PROVEN_FAILURES
        say(f"connected after {plain[0]} s on the plain port, {', '.join(seconds for seconds, _ in covered)} s on the covered port")
        fetched(net, tmp_path)
        assert accepted(net) == before

        def told() -> int:
            found = northbound.get(net.plan, "/v1/plain")["connections"]
            return sum((c["reason"], c["by"]) == ("ClientSilent", "edge1") for c in found)

        eventually("the agent's report", lambda: told() == PROVEN_FAILURES + 1, within_s=REPORTED_S)
    eventually("accelerated again after the back-off", lambda: takes(net, tmp_path), within_s=2 * BACKOFF_S)
