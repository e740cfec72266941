"""Rare features of TCP work the same on a covered and on a plain port."""

import json
import subprocess
import sys
from typing import Any

import pytest
from conftest import PROGRAMS, accepted
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

PROGRAM = str(PROGRAMS / "options.py")
COVERED, PLAIN = 5162, 6162


def seen(net: Lab, case: str, port: int) -> list[dict[str, Any]]:
    """Reports of server and client about a case."""
    serving = subprocess.Popen(
        net.exec_argv("server", (sys.executable, PROGRAM, "serve", case, str(port))), stdout=subprocess.PIPE, text=True
    )
    try:
        measure.wait_listening(net, "server", port)
        argv = net.exec_argv("client", (sys.executable, PROGRAM, "ask", case, measure.address(net, "server"), str(port)))
        asked = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
        served, _ = serving.communicate(timeout=60)
    finally:
        serving.kill()
        serving.wait()
    return [json.loads(served), json.loads(asked.stdout)]


@pytest.mark.parametrize("case", ["urgent", "handshake", "half-closed"])
def test_rare_features_work_the_same_as_over_plain_tcp(net: Lab, case: str) -> None:
    plain = seen(net, case, PLAIN)
    before = accepted(net)
    covered = seen(net, case, COVERED)
    assert accepted(net) > before
    assert covered == plain


def test_client_with_a_tcp_fast_open_cookie_is_served(net: Lab) -> None:
    """Send a SYN with data and a cookie that the server issued on a plain port: the agent accepts only the SYN, and the client retransmits
    the data."""
    sysctl(net, "server", "net.ipv4.tcp_fastopen=3")
    plain = seen(net, "fast-open", PLAIN)
    before = accepted(net)
    covered = seen(net, "fast-open", COVERED)
    assert accepted(net) - before == 2
    assert plain[1].pop("syn_data")[1], "the second SYN over plain TCP had data"
    covered[1].pop("syn_data")
    assert covered == plain
    assert plain[0]["heard"] == [f"in the SYN and more {attempt} eof" for attempt in range(2)]


def sysctl(net: Lab, host: str, setting: str) -> None:
    subprocess.run(net.exec_argv(host, ("sysctl", "-qw", setting)), check=True)


def test_ecn_is_negotiated_on_the_clients_leg(net: Lab) -> None:
    """Negotiate ECN per leg: the agent accepts ECN from the client, but does not request it from the server."""
    sysctl(net, "client", "net.ipv4.tcp_ecn=1")
    try:
        plain, covered = seen(net, "ecn", PLAIN), seen(net, "ecn", COVERED)
    finally:
        sysctl(net, "client", "net.ipv4.tcp_ecn=2")
    assert [said["heard"] for said in covered] == [said["heard"] for said in plain]
    assert (plain[1]["ecn"], covered[1]["ecn"]) == (True, True)
