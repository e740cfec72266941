"""One host, five uplinks, no agents: downloads use the capacity of all uplinks, and every connection stays on one uplink.

client -- edge1 ==(five emulated links of 10 Mbit/s)== router, which is also the server

Times are compared with the time of a single uplink in the same run. The controller or the switch selects uplinks by round robin.
"""

import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from conftest import eventually, say
from sos_testbed.core.model import Shape
from sos_testbed.core.topology import UPLINK, UPLINKS
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import balance
from sos_testbed.measurements.balance import Spread, equal

pytestmark = pytest.mark.measures

SLACK = {"Controller": 0.05, "Switch": 0.10}
EARLY = 0.10
"""Tolerance below the ideal time, because the time of a single uplink varies."""
ATTEMPTS = 6


@pytest.fixture(scope="module")
def home() -> Iterator[Lab]:
    built = labs.up(Options(topology="balance", services=False), say)
    balance.prepare(built)
    yield built
    built.down()


@pytest.fixture(scope="module")
def single_s(home: Lab) -> float:
    return balance.spread(home, "Controller", equal(1)).seconds


@pytest.mark.parametrize("at", ["Controller", "Switch"])
@pytest.mark.parametrize("count", range(2, UPLINKS + 1))
def test_equal_weights_use_the_capacity_of_all_uplinks(home: Lab, single_s: float, count: int, at: str) -> None:
    run = measured(home, at, equal(count), single_s)
    assert -EARLY < run.over_ideal < SLACK[at], run


@pytest.mark.parametrize("at", ["Controller", "Switch"])
def test_weights_use_the_capacity_of_unequal_uplinks(home: Lab, single_s: float, at: str) -> None:
    """Balance uplinks of 10 and 20 Mbit/s with weights 1 and 2."""
    before = home.topology.wire("edge1.wan1").shape
    assert before is not None
    faults.reshape(home, "edge1.wan1", Shape(rate_bps=2 * UPLINK.rate_bps, rtt_us=before.rtt_us, loss=0.0, queue_bytes=before.queue_bytes))
    try:
        run = measured(home, at, {"wan0": 1, "wan1": 2}, single_s, {"wan1": 2 * UPLINK.rate_bps / 1e6})
    finally:
        faults.reshape(home, "edge1.wan1", before)
    assert -EARLY < run.over_ideal < SLACK[at], run


def measured(
    home: Lab, at: str, weights: Mapping[str, int], single_s: float, changed: Mapping[str, float] = MappingProxyType({})
) -> Spread:
    """First run within bounds, else the last run. Other load on the machine makes runs slower, never faster."""
    for _ in range(ATTEMPTS):
        run = balance.spread(home, at, weights, single_s, changed)
        say(balance.table([run])[-1])
        even(run)
        if run.over_ideal < SLACK[at]:
            break
    return run


def even(run: Spread) -> None:
    """Assert that each uplink carried connections in proportion to its weight."""
    total, parts = sum(run.shares.values()), sum(run.weights.values())
    assert total == balance.COUNT and run.shares.keys() == run.weights.keys()
    assert all(abs(run.shares[name] - total * weight / parts) < 1 for name, weight in run.weights.items()), run


@pytest.mark.parametrize("at", ["Controller", "Switch"])
def test_no_packet_of_a_connection_changes_uplink(home: Lab, at: str, tmp_path: Path) -> None:
    balance.declare(home, at, equal(UPLINKS))
    legs = [port for port, _ in home.topology.routers[0].legs]
    filtered = ("--immediate-mode", "-nn", "-s", "64", "-U", "tcp port 80")
    argv = [home.exec_argv("router", ("tcpdump", "-i", leg, "-w", str(tmp_path / leg), *filtered)) for leg in legs]
    captures = [subprocess.Popen(each, stderr=subprocess.DEVNULL) for each in argv]
    try:
        eventually("captures", lambda: all((tmp_path / leg).exists() for leg in legs))
        found = balance.download(home)
        # each download has at least 70 segments
        eventually("all of it captured", lambda: sum(len(client_ports(tmp_path / leg)) for leg in legs) > 70 * balance.COUNT)
    finally:
        for capture in captures:
            capture.terminate()
            capture.wait()
    wires = defaultdict(set)
    for leg in legs:
        for client_port in client_ports(tmp_path / leg):
            wires[client_port].add(leg)
    assert wires.keys() >= {port for port, _ in found["downloads"]}
    assert all(len(seen) == 1 for seen in wires.values())
    assert {leg for seen in wires.values() for leg in seen} == set(legs)


def client_ports(capture: Path) -> list[int]:
    """Client port of every packet in a capture (pcap of Ethernet, IPv4 without options)."""
    data, at, found = capture.read_bytes(), 24, list[int]()
    while at + 16 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "little")
        frame = data[at + 16 : at + 16 + size]
        ports = [int.from_bytes(frame[34:36], "big"), int.from_bytes(frame[36:38], "big")]
        if 80 in ports:
            found.append(max(ports))
        at += 16 + size
    return found


def test_switch_balances_new_downloads_without_a_controller(home: Lab) -> None:
    """Balance new downloads at the switch while the controller is dead, and by round robin after its restart."""
    balance.declare(home, "Controller", equal(UPLINKS))
    home.kill("controller")
    try:
        eventually("downloads by the switch", lambda: bool(balance.download(home, 20)))
    finally:
        home.start("controller")
    labs.wait_ready(home, home.documents)
    eventually("all uplinks", lambda: not northbound.get(home.plan, "/v1/status")["services"][0]["message"])
    balance.download(home, 20)
