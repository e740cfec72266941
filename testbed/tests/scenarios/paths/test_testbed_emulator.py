"""The emulated link matches the topology: round-trip time by ping, rate and loss by UDP, and no traffic when cut.

client -- edge1 ==(emulator)== core1 -- edge2 -- server
"""

import json
import subprocess
from math import sqrt

import pytest
from conftest import RATE_BPS, RTT_US, eventually
from sos_testbed.core.model import Shape
from sos_testbed.lifecycle import faults
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

pytestmark = pytest.mark.measures

# Additional delay of three switches and an emulator with a tick of 200 us, on two busy CPUs
RTT_SLACK_MS = 8.0
RATE_SLACK = 0.07
UDP_S = 3
ATTEMPTS = 3  # a sender or receiver that waits for a CPU reduces the rate of a run; no run may exceed the link's rate


def ping_min_ms(net: Lab, count: int = 10) -> float:
    argv = net.exec_argv("client", ("ping", "-c", str(count), "-i", "0.1", "-W", "2", measure.address(net, "server")))
    output = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return float(output.strip().splitlines()[-1].split("=")[1].split("/")[0])


def udp(net: Lab, bits: int) -> dict[str, float]:
    report = measure.probe(net, ("-u", "-b", str(bits), "-l", str(measure.UDP_PAYLOAD_BYTES), "-t", str(UDP_S)))
    return json.loads(json.dumps(report["end"]["sum"]))


def test_round_trip_time_matches_the_topology(net: Lab) -> None:
    measured = ping_min_ms(net)
    assert RTT_US / 1000 <= measured <= RTT_US / 1000 + RTT_SLACK_MS


def test_received_rate_matches_the_links_rate(net: Lab) -> None:
    """Offer one and a half times the link's rate; the link delivers its rate."""
    best = 0.0
    for _ in range(ATTEMPTS):
        report = udp(net, RATE_BPS * 3 // 2)
        arrived = report["bits_per_second"] * (1 - report["lost_percent"] / 100) * measure.FRAME_BYTES / measure.UDP_PAYLOAD_BYTES
        assert arrived <= RATE_BPS * (1 + RATE_SLACK)
        best = max(best, arrived)
        if best >= RATE_BPS * (1 - RATE_SLACK):
            return
    raise AssertionError(f"{best / 1e6:.0f} Mbit/s arrived at best, in {ATTEMPTS} runs")


def test_loss_matches_the_configured_percentage(net: Lab) -> None:
    """Configure one percent loss; the measured loss is within four standard deviations for this number of packets."""
    before = net.topology.wire("edge1-core1").shape
    assert before is not None
    loss = 0.01
    faults.reshape(net, "edge1-core1", Shape(rate_bps=RATE_BPS, rtt_us=RTT_US, loss=loss, queue_bytes=before.queue_bytes))
    try:
        report = udp(net, RATE_BPS // 8)
    finally:
        faults.reshape(net, "edge1-core1", before)
    packets = report["packets"]
    assert packets > 3000
    assert report["lost_percent"] / 100 == pytest.approx(loss, abs=4 * sqrt(loss * (1 - loss) / packets))


def test_silent_fault_drops_all_packets_until_repaired(net: Lab) -> None:
    faults.link(net, "edge1-core1", up=False, silent=True)
    try:
        with pytest.raises(subprocess.CalledProcessError):
            ping_min_ms(net, count=3)
    finally:
        faults.link(net, "edge1-core1", up=True, silent=True)
    assert eventually("ping after the repair", lambda: pinged(net))


def pinged(net: Lab) -> bool:
    argv = net.exec_argv("client", ("ping", "-c", "1", "-W", "1", measure.address(net, "server")))
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def test_port_fault_stops_traffic_until_repaired(net: Lab) -> None:
    faults.link(net, "core1-edge2", up=False, silent=False)
    assert not pinged(net)
    faults.link(net, "core1-edge2", up=True, silent=False)
    assert eventually("ping after the repair", lambda: pinged(net))
