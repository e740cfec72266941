"""Transfers between unmodified hosts, with and without SOS, leave no state behind.

client -- edge1 ======= core1 ------- edge2 -- server
            |    40 ms                  |
         agent1                      agent2
"""

import subprocess
from pathlib import Path

import pytest
from conftest import RATE_BPS, RTT_US, active, baseline, eventually, outcome, peer, sessions
from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import parse_flows
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle.lab import Lab, make_payload
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

SIZE = 40_000_000
# The slowest valid transfer has 14 round trips of slow start, then a third of the link's rate. A busy machine may take three times as long.
LIMIT_S = 3 * (14 * RTT_US / 1e6 + SIZE * 8 / (RATE_BPS / 3))
COVERED_PORT = "5001"


@pytest.fixture
def payload(net: Lab) -> Path:
    path = net.root / "www" / "payload"
    make_payload(path, SIZE)
    return path


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_download_is_complete_and_hosts_see_real_addresses(net: Lab, payload: Path, tmp_path: Path, port: int) -> None:
    copy = tmp_path / "copy"
    done = measure.download(net, Request(port=port, path=payload, max_time_s=LIMIT_S), copy)
    assert (done.status, done.complete, done.error) == (200, True, "")
    assert measure.same_bytes(payload, copy, complete=True)
    assert done.client_saw == f"{measure.address(net, 'server')}:{port}"
    assert done.server_saw == done.client_address
    assert done.server_saw.startswith(f"{measure.address(net, 'client')}:")


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_upload_is_complete_and_hosts_see_real_addresses(net: Lab, payload: Path, port: int) -> None:
    name = f"up-{port}"
    done = measure.upload(net, Request(port=port, path=payload, max_time_s=LIMIT_S), name)
    assert (done.status, done.complete, done.error) == (201, True, "")
    assert measure.same_bytes(payload, measure.received(net, "server", name), complete=True)
    assert done.client_saw == f"{measure.address(net, 'server')}:{port}"
    assert done.server_saw == done.client_address
    measure.received(net, "server", name).unlink()


def slow_transfer(net: Lab, port: str) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """Start a transfer of about six seconds, from a server that sends 2 MB/s."""
    server = peer(net, "server", "serve", port, "12000000", "2000000")
    measure.wait_listening(net, "server", int(port))
    return server, peer(net, "client", "fetch", measure.address(net, "server"), port)


def test_covered_connection_is_a_session_and_leaves_no_state_behind(net: Lab) -> None:
    before = baseline(net)
    assert before["sessions"] == 0
    server, client = slow_transfer(net, COVERED_PORT)
    eventually("a session at the controller", lambda: active(net), within_s=5)
    eventually("both agents report the session in their beacons", lambda: set(baseline(net)["agents"].values()) == {1}, within_s=5)
    assert baseline(net)["entries"] != before["entries"]
    sent, got = outcome(server, 60), outcome(client, 60)
    assert (got["bytes"], got["end"]) == (12_000_000, "eof")
    assert sent["client"] == got["own"]
    eventually("everything as before", lambda: baseline(net) == before)


def test_an_uncovered_connection_is_no_session(net: Lab) -> None:
    before = baseline(net)
    server, client = slow_transfer(net, "7001")
    entries = [entry for switch in ("edge1", "edge2") for entry in parse_flows(dump_flows(net, switch))]
    assert (sessions(net), baseline(net)["agents"]) == (0, before["agents"])
    assert not [entry for entry in entries if entry.priority == 40000]
    assert outcome(client, 60)["end"] == "eof"
    outcome(server, 60)
    assert baseline(net) == before


def test_connection_opened_against_the_services_direction_is_plain(net: Lab) -> None:
    """Connect from east to west, while the service covers only connections from west to east."""
    server = peer(net, "client", "serve", COVERED_PORT, "4000000", "1000000")
    measure.wait_listening(net, "client", int(COVERED_PORT))
    client = peer(net, "server", "fetch", measure.address(net, "client"), COVERED_PORT)
    seen = [sessions(net) for _ in range(10)]
    assert outcome(client, 60)["end"] == "eof"
    outcome(server, 60)
    assert seen == [0] * 10


def test_half_closed_client_receives_the_answer(net: Lab) -> None:
    """Finish sending at the client before the server answers."""
    server = peer(net, "server", "echo", COVERED_PORT)
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "ask", measure.address(net, "server"), COVERED_PORT, "3000000")
    got, answered = outcome(client, 60), outcome(server, 60)
    assert (got["send_end"], got["bytes"], got["end"]) == ("ok", 3_000_000, "eof")
    assert got["sha256"] == answered["sha256"]


def test_port_without_a_listener_causes_a_refusal_or_a_reset(net: Lab) -> None:
    """Connect to a covered port without a listener: the client never sees a clean end."""
    argv = net.exec_argv("client", ("curl", "-sS", "-m", "10", f"http://{measure.address(net, 'server')}:5999/"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in {7, 56}, done.stderr  # couldn't connect; failure in receiving (reset)
    eventually("no session left", lambda: sessions(net) == 0)


def test_a_hundred_simultaneous_connections_succeed(net: Lab, tmp_path: Path) -> None:
    small = net.root / "www" / "small"
    make_payload(small, 100_000)
    log = net.root / "server" / "access.log"
    known = len(log.read_text().splitlines()) if log.exists() else 0
    url = f"http://{measure.address(net, 'server')}/small?[1-100]"
    arguments = ("-sS", "-Z", "--parallel-immediate", "--parallel-max", "100", "--max-time", "60", "-o", f"{tmp_path}/copy-#1", url)
    done = subprocess.run(net.exec_argv("client", ("curl", *arguments)), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    want = measure.sha256(small)
    assert [measure.sha256(tmp_path / f"copy-{number}") for number in range(1, 101)] == [want] * 100
    lines = log.read_text().splitlines()[known:]
    assert len({line.split(" ", 1)[0] for line in lines}) == 100  # a hundred client ports: curl reused no connection
    assert {line.split(":", 1)[0] for line in lines} == {measure.address(net, "client")}
    eventually("no session left", lambda: sessions(net) == 0)
