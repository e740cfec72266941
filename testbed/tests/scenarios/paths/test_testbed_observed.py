"""Measurements of observed connections and of a control group match the clients' own measurements."""

import subprocess
import time
from typing import Any

import pytest
from conftest import RTT_US, eventually, sessions
from measurements import DELAY_SLACK_MS, declare, measurements
from sos_testbed.cli import dump_flows
from sos_testbed.core.flows import parse_flows
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

pytestmark = pytest.mark.measures

KIND_MEASURE = 10  # kind in a controller's cookies (spec/node-config.md clause 8)


def fetch(net: Lab, name: str) -> float:
    """Download a file; return the microseconds that the client waited for the server's SYN-ACK."""
    argv = (
        "curl",
        "-sS",
        "--fail",
        "-m",
        "30",
        "-o",
        "/dev/null",
        "-w",
        "%{time_connect}",
        f"http://{measure.address(net, 'server')}/{name}",
    )
    done = subprocess.run(net.exec_argv("client", argv), check=True, timeout=40, capture_output=True, text=True)
    return float(done.stdout) * 1e6


def answered_within(micros: float, waited: list[float]) -> bool:
    """True if the value is between the path's round-trip time and the longest wait of a client, because a busy machine delays answers."""
    return RTT_US - DELAY_SLACK_MS * 1000 <= micros <= max(waited) + DELAY_SLACK_MS * 1000


def compared(net: Lab) -> dict[str, Any]:
    (service,) = measurements(net)["services"]
    return dict(service)


def test_observed_connections_are_measured_and_stay_plain(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "some", 1_000_000)
    declare(net, mode="Observe")
    eventually("measuring entries", lambda: copied(net, "edge1"), within_s=10)
    began = time.monotonic()
    waited = [fetch(net, "some") for _ in range(5)]
    slowest = 5_000_000 / (time.monotonic() - began)
    found = eventually("all five have ended", lambda: (now := compared(net))["plain"]["connections"] == 5 and now)["plain"]
    print(f"observed: {found}, rate including curl's start {slowest:.0f} bytes/s, waits {waited}")
    assert answered_within(found["answerMicros"], waited)
    assert found["bytesPerSecond"] == pytest.approx(slowest, rel=0.4), "excludes curl's start, includes the round trip of the last FIN"
    assert found["bytesPerSecond"] < 1_000_000 / (3 * RTT_US / 1e6), "a megabyte takes more than two round trips after the handshake"
    assert sessions(net) == 0 and compared(net)["accelerated"]["connections"] == 0


def copied(net: Lab, switch: str) -> bool:
    return any(entry.cookie >> 48 == 0x534F and entry.cookie >> 24 & 0xFF == KIND_MEASURE for entry in parse_flows(dump_flows(net, switch)))


def test_accelerated_share_is_compared_with_the_control_group(net: Lab) -> None:
    labs.make_payload(net.root / "www" / "some", 1_000_000)
    declare(net, percent=50)
    eventually("measuring entries", lambda: copied(net, "edge1"), within_s=10)
    began = compared(net)
    waited = [fetch(net, "some") for _ in range(30)]
    groups = ("accelerated", "plain")

    def counted(now: dict[str, Any]) -> int:
        return sum(now[group]["connections"] - began[group]["connections"] for group in groups)

    found = eventually("all thirty have ended", lambda: counted(now := compared(net)) == 30 and now)
    print(f"half and half: {found}")
    assert all(found[group]["connections"] > began[group]["connections"] for group in groups)
    assert found["gain"] == pytest.approx(found["accelerated"]["bytesPerSecond"] / found["plain"]["bytesPerSecond"], abs=0.01)
    assert found["gain"] > 1.05, "plain TCP sends a megabyte in slow start over many round trips; warm streams need none"
    assert answered_within(found["plain"]["answerMicros"], waited)
