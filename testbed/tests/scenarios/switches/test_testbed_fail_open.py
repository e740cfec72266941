"""Without agents, controller or service, new connections are plain; a broken accelerated connection ends with an error, never cleanly.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import subprocess
from pathlib import Path

import pytest
from conftest import SETTLE_S, active, armed, eventually, flowing, outcome, peer, sessions
from sos_testbed.lifecycle import declare, faults
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

COVERED_PORT = "5002"
RATE = 2_000_000
SIZE = 10_000_000  # five seconds: long enough for a fault or change during the transfer, and short enough to complete
ENDLESS = 60_000_000  # does not end before the fault, even on a slow machine
# Limit for a broken transfer to end. A stream is dead after 5 s of silence, and sessions wait 10 s for a new stream (spec/frame.md clauses
# 11 and 12); the rest is slack for a slow machine
END_S = 30.0
# Limit for new connections to be plain. Beacons expire after 4 s, and armed elements earlier; a client retransmits a SYN lost at a dying
# agent after 1 and 3 s
PLAIN_WITHIN_S = 10.0


def start(net: Lab, size: int = SIZE) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    server = peer(net, "server", "serve", COVERED_PORT, str(size), str(RATE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    return server, peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)


def accelerated(net: Lab, size: int = SIZE) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    eventually("an armed agent", lambda: armed(net))  # a restarted agent must meet its peer first
    running = start(net, size)
    eventually("a session at the controller", lambda: active(net), within_s=5)
    eventually("bytes at the client", lambda: flowing(net, int(COVERED_PORT)), within_s=5)
    return running


def fetched_plainly(net: Lab, tmp_path: Path) -> bool:
    """True if a small download from the covered port succeeds and the server sees the client's address."""
    request = Request(path=net.root / "www" / "tiny", max_time_s=3)
    done = measure.download(net, request, tmp_path / "copy")
    return done.complete and done.status == 200 and done.server_saw == done.client_address


@pytest.fixture(autouse=True)
def tiny(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "tiny", 50_000)


@pytest.mark.parametrize("victim", ["agent1", "agent2"])
def test_killed_agent_breaks_its_sessions_and_new_connections_are_plain(net: Lab, tmp_path: Path, victim: str) -> None:
    server, client = accelerated(net, ENDLESS)
    faults.agent(net, victim, up=False)
    eventually("a new connection is plain", lambda: fetched_plainly(net, tmp_path), within_s=PLAIN_WITHIN_S)
    got, sent = outcome(client, END_S), outcome(server, END_S)
    assert got["bytes"] < ENDLESS, "the transfer was still running"
    assert got["end"] != "eof", "a truncated transfer looked complete"
    assert sent["send_end"] != "ok", "a later write fails at the server"
    faults.agent(net, victim, up=True)
    labs.wait_ready(net, net.documents)
    server, client = accelerated(net)
    assert outcome(client, END_S + SIZE / RATE)["end"] == "eof"
    outcome(server, END_S)


def test_without_agents_all_connections_are_plain(net: Lab, tmp_path: Path) -> None:
    for victim in ("agent1", "agent2"):
        faults.agent(net, victim, up=False)
    eventually("a new connection is plain", lambda: fetched_plainly(net, tmp_path), within_s=PLAIN_WITHIN_S)
    server, client = start(net)
    got, sent = outcome(client, END_S + SIZE / RATE), outcome(server, END_S)
    assert (got["bytes"], got["end"], sent["client"]) == (SIZE, "eof", got["own"])
    assert sessions(net) == 0


def test_sessions_survive_the_controllers_death(net: Lab, tmp_path: Path) -> None:
    server, client = accelerated(net)
    faults.controller(net, "controller", up=False)
    assert client.poll() is None, "the transfer was still running"
    eventually("a new connection works", lambda: fetched_plainly(net, tmp_path), within_s=PLAIN_WITHIN_S)
    got = outcome(client, END_S + SIZE / RATE)
    assert (got["bytes"], got["end"]) == (SIZE, "eof"), "a running session needs no controller"
    outcome(server, END_S)
    faults.controller(net, "controller", up=True)
    labs.wait_ready(net, net.documents)
    # The controller may have adopted the session before an agent reported its end
    eventually("the session that ended meanwhile is removed", lambda: sessions(net) == 0)
    server, client = accelerated(net)
    assert outcome(client, END_S + SIZE / RATE)["end"] == "eof"
    outcome(server, END_S)


def test_deleted_service_finishes_running_sessions_accelerated(net: Lab) -> None:
    """Delete a service: its running session finishes accelerated, and the next connection is plain."""
    server, client = accelerated(net)
    net.declare(declare.without_service(net.objects, "bulk"))
    labs.wait_ready(net, net.documents)
    got, sent = outcome(client, END_S + SIZE / RATE), outcome(server, END_S)
    assert (got["bytes"], got["end"], sent["client"]) == (SIZE, "eof", got["own"])
    eventually("no session left", lambda: sessions(net) == 0)
    server, client = start(net)
    seen = [sessions(net) for _ in range(10)]
    assert outcome(client, END_S + SIZE / RATE)["end"] == "eof"
    outcome(server, END_S)
    assert seen == [0] * 10


def test_applied_service_leaves_running_connections_plain(net: Lab) -> None:
    """Apply a service: a running plain connection stays plain and intact, and the next connection is accelerated."""
    objects = net.objects
    net.declare(declare.without_service(objects, "bulk"))
    labs.wait_ready(net, net.documents)
    server, client = start(net)
    eventually("bytes at the client", lambda: flowing(net, int(COVERED_PORT)), within_s=5)
    net.declare(objects)
    labs.wait_ready(net, net.documents)
    got, sent = outcome(client, END_S + SIZE / RATE), outcome(server, END_S)
    assert (got["bytes"], got["end"], sent["client"]) == (SIZE, "eof", got["own"])
    assert sessions(net) == 0
    server, client = accelerated(net)
    assert outcome(client, END_S + SIZE / RATE)["end"] == "eof"
    outcome(server, END_S)


def test_restarted_switch_gets_all_entries_back(net: Lab, tmp_path: Path) -> None:
    """Restart an edge switch, which loses all entries: sos-node and the controller restore them."""
    faults.switch(net, "edge1", up=False)
    faults.switch(net, "edge1", up=True)
    labs.wait_ready(net, net.documents)
    eventually("a connection works", lambda: fetched_plainly(net, tmp_path), within_s=SETTLE_S)
    server, client = accelerated(net)
    assert outcome(client, END_S + SIZE / RATE)["end"] == "eof"
    outcome(server, END_S)
