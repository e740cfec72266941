"""Comparison of accelerated and plain connections at the client: read-ahead of an upload, and detection of a dead server.

client -- edge1 ======= core1 ------- edge2 -- server
            |  5 Mbit/s, 100 ms         |
         agent1                      agent2
"""

import json
import statistics
import subprocess
from collections.abc import Iterator

import pytest
from conftest import lend, say
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

RATE_BPS, RTT_US = 5_000_000, 100_000
PRODUCT = RATE_BPS / 8 * RTT_US / 1e6
COVERED, PLAIN = 5001, 6001
SLACK_S = 2.0
# The server reads all bytes, or drops all packets after the first byte, as if its machine had died
SINK = """
import ctypes, signal, socket, struct, sys
port, dies = int(sys.argv[1]), sys.argv[2] == "dies"
listener = socket.socket(); listener.setsockopt(1, 2, 1); listener.bind(("", port)); listener.listen(1)
host, _ = listener.accept()
if dies:
    host.recv(1)
    program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    host.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(program)))
    signal.alarm(60); signal.pause()  # keep the socket: an exit would send a FIN, which a dead machine does not
while host.recv(1 << 20): pass
"""
UPLOAD = """
import json, socket, sys, time
host = socket.create_connection((sys.argv[1], int(sys.argv[2])))
host.settimeout(0.05)
begun, sent, ahead = time.monotonic(), 0, []
for at in (2, 4, 6):
    while time.monotonic() < begun + at:
        try: sent += host.send(bytes(65536))
        except TimeoutError: pass
    ahead.append(sent - (time.monotonic() - begun) * float(sys.argv[3]))  # later than `at` on a busy machine
print(json.dumps(ahead))
"""
KEEPALIVE = """
import json, socket, sys, time
host = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for option, value in ((4, 5), (5, 2), (6, 3)): host.setsockopt(socket.IPPROTO_TCP, option, value)
host.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
time.sleep(float(sys.argv[3]))
host.sendall(b"x")
begun = time.monotonic(); host.settimeout(40)
try: host.recv(1); end = "eof"
except OSError as error: end = type(error).__name__ + str(error.errno)
print(json.dumps([end, time.monotonic() - begun]))
"""


@pytest.fixture(scope="module")
def slow_path() -> Iterator[Lab]:
    built = labs.up(Options(path1=PathOptions(rate_bps=RATE_BPS, rtt_us=RTT_US)), say)
    yield built
    built.down()


@pytest.fixture
def net(slow_path: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(slow_path, request)


def ask(net: Lab, port: int, server: str, client: str, *arguments: str) -> list[float | str]:
    """Report of this client program about its connection to a server that reads or dies."""
    serving = subprocess.Popen(net.exec_argv("server", ("python3", "-c", SINK, str(port), server)))
    try:
        measure.wait_listening(net, "server", port)
        argv = net.exec_argv("client", ("python3", "-c", client, measure.address(net, "server"), str(port), *arguments))
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=90)
    finally:
        serving.kill()
        serving.wait()
    return list(json.loads(done.stdout))


def test_read_ahead_of_an_upload_is_bounded(net: Lab) -> None:
    """Check that the median of three uploads is within the bound for the path's round-trip time. The agents use their measured round-trip
    time, which is longer on a busy machine. Without credit by delivery, each upload is megabytes ahead (ADR 0045)."""
    ahead: list[tuple[float, float]] = []
    for _ in range(3):
        plain, covered = (max(map(float, ask(net, port, "reads", UPLOAD, str(RATE_BPS / 8)))) for port in (PLAIN, COVERED))
        ahead.append((plain, covered))
    plain, covered = (statistics.median(each) for each in zip(*ahead, strict=True))
    assert covered <= max(plain, 2 * PRODUCT + (1 << 20)), f"bytes ahead, plain and covered: {ahead}"


@pytest.mark.slow
@pytest.mark.parametrize("idle_s", [0, 12], ids=["new", "with-probes"])
def test_keepalive_detects_a_dead_server_as_fast_as_plain_tcp(net: Lab, idle_s: float) -> None:
    """Use KEEPIDLE 5, INTVL 2 and CNT 3; after two idle times, the agents know the interval of the probes from a live server."""
    plain, covered = (ask(net, port, "dies", KEEPALIVE, str(idle_s)) for port in (PLAIN, COVERED))
    assert covered[0] == plain[0], (plain, covered)
    assert abs(float(covered[1]) - float(plain[1])) <= SLACK_S, (plain, covered)
