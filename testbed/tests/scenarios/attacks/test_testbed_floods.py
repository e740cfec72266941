"""A host floods its switch, the controller or the agents. Transfers continue, new connections of the same port succeed (plain at worst), no
connection is reset, memory is bounded, and acceleration returns after the flood.

client -- edge1 ==(40 ms)== core1 -- edge2 -- server
            |   \\=(80 ms)== core2 --/  |
         agent1                      agent2
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import PROGRAMS, accepted, eventually, metrics
from sos_testbed.core.web import SOS_PORT
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import process
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

FLOOD, HANDSHAKES = PROGRAMS / "flood.py", PROGRAMS / "handshakes.py"
COVERED = 5320
CONNECTIONS = 8
FLOOD_S = 6
PAYLOAD = 40_000_000
MAX_GROWTH = 256 << 20
"""Memory that an agent or the controller may take more than before: far less than what a flood would fill without bounds, and more than
their tables hold (4,096 sessions of an agent)."""
MAX_MACS = 16_384
JUNK = [b"", b"\0" * 64, b"\xff" * 4096, b"GET / HTTP/1.1\r\n" * 64, bytes(range(256)) * 16, b"SOS" + b"\0" * 61]
LISTENERS = 24


def mac(net: Lab, host: str) -> str:
    return subprocess.run(
        net.exec_argv(host, ("cat", "/sys/class/net/eth0/address")), capture_output=True, text=True, check=True
    ).stdout.strip()


def resident(net: Lab, name: str) -> int:
    """Memory of a program in bytes."""
    pid = process.find(net.runner.pid_file(name))
    assert pid is not None, f"{name} has ended"
    lines = Path(f"/proc/{pid.number}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10


def bugs(net: Lab, agent: str) -> float:
    found = [line for line in metrics(net, agent).splitlines() if line.startswith("sos_agent_bugs_total ")]
    return sum(float(line.split()[1]) for line in found)


def connections(net: Lab, count: int = CONNECTIONS) -> list[dict[str, Any]]:
    """Open connections one after the other."""
    server = measure.address(net, "server")
    argv = net.exec_argv("client", (sys.executable, str(HANDSHAKES), "each", server, str(COVERED), str(count)))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=limit_s(count * 35.0))
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(autouse=True)
def server(net: Lab) -> Iterator[None]:
    """A listener on the covered port."""
    argv = net.exec_argv("server", (sys.executable, str(HANDSHAKES), "serve", str(COVERED), "4096", "0"))
    program = subprocess.Popen(argv)
    try:
        measure.wait_listening(net, "server", COVERED)
        yield
    finally:
        program.kill()
        program.wait()


@contextmanager
def unharmed(net: Lab, copy: Path) -> Iterator[None]:
    """Check that a transfer which runs during an attack is complete, that no program of the site takes much more memory or has a bug, and
    that connections are accelerated again afterwards."""
    programs = ("agent1", "agent2", "controller")
    before = {name: resident(net, name) for name in programs}
    payload = net.root / "www" / "payload"
    labs.make_payload(payload, PAYLOAD)
    done: list[measure.Transfer] = []
    request = Request(port=SOS_PORT, path=payload, max_time_s=120)
    transfer = threading.Thread(target=lambda: done.append(measure.download(net, request, copy)))
    transfer.start()
    try:
        yield
    finally:
        transfer.join()
    assert [(each.status, each.complete) for each in done] == [(200, True)]
    assert measure.same_bytes(payload, copy, complete=True)
    growth = {name: resident(net, name) - before[name] for name in programs}
    print(f"memory: {growth}, transfer {done[0].mbps:.0f} Mbit/s")
    assert max(growth.values()) < MAX_GROWTH
    assert [bugs(net, agent) for agent in ("agent1", "agent2")] == [0, 0]

    def accelerated() -> bool:
        count = accepted(net)
        return [each["error"] for each in connections(net, 1)] == [""] and accepted(net) == count + 1

    eventually("an accelerated connection after the attack", accelerated)


@pytest.mark.parametrize("rate", [150, 2_000, 20_000])
def test_connections_of_the_same_port_succeed_during_a_flood_of_syns(net: Lab, tmp_path: Path, rate: int) -> None:
    quiet = connections(net)
    with unharmed(net, tmp_path / "copy"):
        victim = (measure.address(net, "server"), mac(net, "server"), str(COVERED))
        argv = net.exec_argv("client", (sys.executable, str(FLOOD), "syn", str(rate), str(FLOOD_S), *victim))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as flood:
            during = connections(net)
            sent = int(flood.communicate(timeout=limit_s(60))[0])
    assert sent == rate * FLOOD_S
    times = {name: sorted(round(each["first_byte_s"], 3) for each in found) for name, found in (("quiet", quiet), ("flood", during))}
    print(f"{rate} SYNs a second: first byte {times}")
    assert [each["error"] for each in (*quiet, *during)] == [""] * (2 * CONNECTIONS)


def test_many_mac_addresses_at_a_port_harm_no_connection(net: Lab, tmp_path: Path) -> None:
    with unharmed(net, tmp_path / "copy"):
        argv = net.exec_argv("client", (sys.executable, str(FLOOD), "macs", "4000", str(MAX_MACS)))
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as flood:
            during = connections(net)
            assert int(flood.communicate(timeout=limit_s(60))[0]) == MAX_MACS
    assert [each["error"] for each in during] == [""] * CONNECTIONS


def test_junk_and_silence_at_the_ports_of_agents_harm_no_connection(net: Lab, tmp_path: Path) -> None:
    """A host sends junk to the stream ports of an agent, and keeps connections open without a word."""
    documents = (each for each in net.documents.agents.values() if each["site"]["name"] == "west")
    agent = next(documents)["interface"]["address"].split("/")[0]
    program = f"""
import socket, time
held = []
for junk in {JUNK!r}:
    for port in range(10000, 10008):
        for _ in range({LISTENERS}):
            try:
                held.append(socket.create_connection(({agent!r}, port), 5))
                held[-1].sendall(junk)
            except OSError:
                pass
print(len(held), flush=True)
time.sleep({FLOOD_S})
"""
    with unharmed(net, tmp_path / "copy"), ExitStack() as stack:
        attack = subprocess.Popen(net.exec_argv("client", (sys.executable, "-c", program)), stdout=subprocess.PIPE, text=True)
        stack.callback(attack.wait)
        stack.callback(attack.kill)
        during = connections(net)
        assert attack.stdout is not None
        print(f"{attack.stdout.readline().strip()} connections to stream ports")
    assert [each["error"] for each in during] == [""] * CONNECTIONS
