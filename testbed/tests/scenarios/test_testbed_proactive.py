"""A service that is set up proactively (examples/03-proactive): a constant number of entries, no packet-in, and no need of the controller.

client -- edge1 ======= core1 ------- edge2 -- server
            |                           |
         agent1                      agent2
"""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import RATE_BPS, RTT_US, eventually, flowing, outcome, peer, say, sessions
from sos_testbed import faults, measure, northbound
from sos_testbed import lab as labs
from sos_testbed.cli import dump_flows
from sos_testbed.flows import FlowEntry, parse_flows
from sos_testbed.lab import PROACTIVE, Lab, Options
from sos_testbed.measure import Request
from sos_testbed.topology import PathOptions

PATH = PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US)
OPTIONS = Options(path1=PATH, path2=PATH, name="proactive-test", examples=(PROACTIVE,))

COVERED_PORT = "5002"
SIZE, RATE = 24_000_000, 2_000_000
END_S = 30.0
MANY = 1_000
SERVICE = 6  # kind in a controller's cookies (spec/node-config.md clause 8)


@pytest.fixture(scope="module")
def shared() -> Iterator[Lab]:
    built = labs.up(OPTIONS, say)
    yield built
    built.down()


@pytest.fixture(autouse=True)
def tiny(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "tiny", 20_000)


def entries(net: Lab, switch: str) -> list[FlowEntry]:
    return parse_flows(dump_flows(net, switch))


def identities(net: Lab) -> dict[str, list[tuple]]:
    """Every entry of every switch, without counters."""
    return {switch.name: sorted(entry.identity() for entry in entries(net, switch.name)) for switch in net.topology.switches}


def to_controller(net: Lab) -> int:
    """Packets of TCP that any switch has handed to a controller."""
    found = [entry for switch in net.topology.switches for entry in entries(net, switch.name) if "CONTROLLER" in entry.actions]
    return sum(entry.n_packets for entry in found if entry.match.startswith("tcp"))


def redirected(net: Lab, switch: str) -> int:
    """Packets of the service that a switch has redirected."""
    return sum(entry.n_packets for entry in entries(net, switch) if entry.cookie >> 24 & 0xFF == SERVICE)


def accepted(net: Lab) -> int:
    """Clients that the near agent has taken since its start."""
    argv = net.exec_argv("agent1", ("curl", "-sS", "-m", "2", "http://127.0.0.1:9465/metrics"))
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("sos_agent_accepted_total ")))


def fetched(net: Lab, tmp_path: Path) -> None:
    """One small download from a covered port, whole and with the client's own address."""
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
    """Both ends have seen a whole transfer, and each other."""
    server, client = running
    got, sent = outcome(client, END_S + SIZE / RATE), outcome(server, END_S)
    assert (got["bytes"], got["end"], sent["client"], sent["send_end"]) == (SIZE, "eof", got["own"], "ok")


def test_a_thousand_flows_cost_no_switch_an_entry_and_the_controller_no_packet(net: Lab, tmp_path: Path) -> None:
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


def test_the_controller_is_killed_and_comes_back(net: Lab, tmp_path: Path) -> None:
    """New connections all the time, before, without and after it: every one accelerated, none breaks."""
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
    open_for(12)  # punt entries and beacons would have expired twice
    faults.controller(net, "controller", up=True)
    open_for(12)
    assert accepted(net) - taken == count > 20
    finished(running)
    labs.wait_ready(net, net.documents)
    fetched(net, tmp_path)
