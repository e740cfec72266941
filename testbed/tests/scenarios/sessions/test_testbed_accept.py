"""Through agents (covered port), a client sees the same handshake result as over plain TCP (plain port): refusal, ICMP error, silence, or
full accept queue.

The tests run with reactive set-up (the controller holds the SYN) and with proactive set-up (the agent holds it).

client -- edge1 ======= core1 ------- edge2 -- server
            |    40 ms                  |
         agent1                      agent2
"""

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from conftest import PEERS, PROGRAMS, RTT_US, SHARED, accepted, eventually, host_legs, say, sessions, with_service
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import PROACTIVE, Lab
from sos_testbed.measurements import measure

PROGRAM = PROGRAMS / "handshakes.py"
RTT_S = RTT_US / 1e6
PLAIN, COVERED = 6300, 5300
"""First ports of both kinds. Each test uses different ports, because a port that has accepted a connection is a known server."""
REFUSED, REJECTED, DROPPED, FULL, KNOWN, SET, SECOND = 100, 110, 120, 130, 140, 160, 170  # offsets of the tests' ports from the first ports
SLACK_S = 1.0  # slack for a busy machine
END_S = 60.0
PROCESSING_S = 0.01
"""Time for agents and controller to process a SYN, besides the round trip after which they forward it to the server. An idle machine takes
a fifth of it."""
REPEATED = 5
"""Number of connections where a round trip counts. The fastest is judged: other load makes connections slower, never faster."""
BUSY = ((0, 6.0, 4), (5, 4.0, 20))
"""Busy servers: backlog, seconds without an accept after the first connection, number of simultaneous clients."""
SECOND_ADDRESS = "10.0.0.140"


@pytest.fixture(scope="module", params=[(), (PROACTIVE,)], ids=["reactive", "proactive"])
def shared(request: pytest.FixtureRequest) -> Iterator[Lab]:
    options = replace(SHARED, examples=request.param) if request.param else SHARED
    built = labs.up(options, say)
    yield built
    built.down()


def run(net: Lab, *arguments: object) -> Any:
    argv = net.exec_argv("client", (sys.executable, str(PROGRAM), *map(str, arguments)))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=END_S)
    return json.loads(done.stdout.splitlines()[-1])


def start(net: Lab, host: str, *words: object) -> subprocess.Popen[str]:
    """Start a program at a host; it ends with the test at the latest."""
    PEERS.append(subprocess.Popen(net.exec_argv(host, tuple(map(str, words))), stdout=subprocess.PIPE, text=True))
    return PEERS[-1]


def serve(net: Lab, port: int, backlog: int = 100, busy_s: float = 0) -> None:
    """Start a server for the rest of the test."""
    start(net, "server", sys.executable, PROGRAM, "serve", port, backlog, busy_s)
    measure.wait_listening(net, "server", port)


@contextmanager
def firewall(net: Lab, verdict: str) -> Iterator[None]:
    """Apply this firewall verdict to the rejected and dropped ports of the server, plain and covered."""
    nft = ("nft", "add table ip f; add chain ip f i { type filter hook input priority 0; }; ")
    ports = ", ".join(str(first + which) for first in (PLAIN, COVERED) for which in (REJECTED, DROPPED))
    rule = f"add rule ip f i tcp dport {{ {ports} }} {verdict}"
    subprocess.run(net.exec_argv("server", (nft[0], nft[1] + rule)), check=True)
    # Linux sends six ICMP errors to a host, then one per second. Above this limit, a client would get no ICMP error, as from a silent
    # server.
    subprocess.run(net.exec_argv("server", ("sysctl", "-qw", "net.ipv4.icmp_ratelimit=0")), check=True)
    try:
        yield
    finally:
        subprocess.run(net.exec_argv("server", ("nft", "delete table ip f")), check=True)


def settle(net: Lab) -> None:
    """Wait until sessions need not wait for the switches' caches to expire, as for ten seconds after arming (ADR 0020)."""
    server = measure.address(net, "server")
    serve(net, COVERED + KNOWN)
    eventually("no wait for caches", lambda: run(net, "each", server, COVERED + KNOWN, 1)[0]["connect_s"] < RTT_S / 2)


def both(net: Lab, what: str, which: int, count: int) -> tuple[list[dict], list[dict]]:
    server = measure.address(net, "server")
    return run(net, what, server, PLAIN + which, count), run(net, what, server, COVERED + which, count)


def test_scan_reports_the_same_open_ports_plain_and_covered(net: Lab) -> None:
    for port in range(0, 100, 5):
        serve(net, PLAIN + port)
        serve(net, COVERED + port)
    server = measure.address(net, "server")
    plain, covered = run(net, "scan", server, PLAIN, PLAIN + 99), run(net, "scan", server, COVERED, COVERED + 99)
    assert plain == covered == {"open": list(range(0, 100, 5)), "refused": 80, "other": []}
    plain, covered = scanned(net, PLAIN), scanned(net, COVERED)
    assert plain == covered and sum(line.endswith("/tcp open") for line in covered) == 20, (plain, covered)


def scanned(net: Lab, first: int) -> list[str]:
    """Output of nmap for 100 ports, with offsets instead of ports and without names of services, addresses and durations."""
    argv = ("nmap", "-sT", "-Pn", "-n", "-p", f"{first}-{first + 99}", measure.address(net, "server"))
    done = subprocess.run(net.exec_argv("client", argv), capture_output=True, text=True, check=False, timeout=END_S)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        port = re.match(r"(\d+)/(\w+) +(\w+)", line)
        if port:
            found.append(f"{int(port[1]) - first}/{port[2]} {port[3]}")
        elif not line.startswith(("Starting Nmap", "Nmap done", "Host is up", "PORT")):
            found.append(line)
    return found


def test_refusal_arrives_at_most_a_round_trip_later_than_plain(net: Lab) -> None:
    (plain,), (covered,) = both(net, "each", REFUSED, 1)
    assert plain["error"] == covered["error"] == "ConnectionRefusedError"
    assert covered["first_byte_s"] <= plain["first_byte_s"] + RTT_S + SLACK_S


@pytest.mark.parametrize("kind", ["admin-prohibited", "port-unreachable", "host-unreachable"])
def test_clients_receive_the_same_icmp_error_as_over_plain_tcp(net: Lab, kind: str) -> None:
    settle(net)
    with firewall(net, f"reject with icmp type {kind}"):
        plain, covered = both(net, "each", REJECTED, REPEATED)
    (expected,) = {(one["error"], one["errno"], one["connect_s"]) for one in plain}
    assert expected[0] and {(one["error"], one["errno"], one["connect_s"]) for one in covered} == {expected}
    own, agents = (min(one["first_byte_s"] for one in seen) for seen in (plain, covered))
    print(f"lab: {kind}: plain {own * 1e3:.1f} ms, covered {agents * 1e3:.1f} ms")
    assert agents <= own + RTT_S + PROCESSING_S


def test_a_server_that_drops_syns_times_out_as_over_plain_tcp(net: Lab) -> None:
    serve(net, PLAIN + DROPPED)
    serve(net, COVERED + DROPPED)
    server = measure.address(net, "server")
    with firewall(net, "drop"):
        argv = [
            net.exec_argv("client", (sys.executable, str(PROGRAM), "each", server, str(port), "1"))
            for port in (PLAIN + DROPPED, COVERED + DROPPED)
        ]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in argv]
        with pytest.raises(subprocess.TimeoutExpired):
            running[1].wait(2)
    seen = [json.loads(program.communicate(timeout=END_S)[0])[0] for program in running]
    assert [one["error"] for one in seen] == ["", ""]
    assert seen[1]["connect_s"] <= seen[0]["connect_s"] + 2, "the client's kernel retransmits the SYN independently"


def test_every_client_of_a_busy_server_is_served(net: Lab) -> None:
    """More clients connect at once than the accept queue has places, and the server accepts seconds later, as over plain TCP."""
    server, clients = measure.address(net, "server"), {}
    for number, (backlog, busy_s, count) in enumerate(BUSY):
        for first in (PLAIN, COVERED):
            serve(net, first + FULL + number, backlog, busy_s)
            clients[first, count] = start(net, "client", sys.executable, PROGRAM, "connect", server, first + FULL + number, count)
    seen = {each: json.loads(client.communicate(timeout=END_S)[0]) for each, client in clients.items()}
    for (first, count), found in seen.items():
        last = max(one["first_byte_s"] for one in found)
        errors = [one["error"] for one in found if one["error"]]
        print(f"lab: port {first}: {count - len(errors)} of {count} served, the last after {last:.1f} s {errors}")
    assert not [one for found in seen.values() for one in found if one["error"]]


def test_curl_takes_the_second_address_of_a_name_whose_first_refuses(net: Lab) -> None:
    first, device = measure.address(net, "server"), ("dev", "eth0")
    subprocess.run(net.exec_argv("server", ("ip", "address", "replace", f"{SECOND_ADDRESS}/24", *device)), check=True)
    try:
        seen = []
        for port in (PLAIN + SECOND, COVERED + SECOND):
            start(net, "server", sys.executable, "-m", "http.server", "--bind", SECOND_ADDRESS, "--directory", net.root / "www", port)
            measure.wait_listening(net, "server", port)
            words = ("-s", "-m", "20", "-o", "/dev/null", "--resolve", f"two:{port}:{first},{SECOND_ADDRESS}")
            said = ("-w", "%{http_code} %{remote_ip} %{num_connects}", f"http://two:{port}/")
            seen.append(
                subprocess.run(net.exec_argv("client", ("curl", *words, *said)), capture_output=True, text=True, check=False).stdout
            )
        assert seen[0] == seen[1] == f"200 {SECOND_ADDRESS} 1"
        agents = ("agent1", "agent2")
        eventually("the end of the connection, for which the server needs its address", lambda: not any(host_legs(net, a) for a in agents))
    finally:
        subprocess.run(net.exec_argv("server", ("ip", "address", "del", f"{SECOND_ADDRESS}/24", *device)), check=True)


def test_known_server_saves_a_round_trip_and_unknown_server_adds_none(net: Lab) -> None:
    serve(net, PLAIN + KNOWN)
    server = measure.address(net, "server")
    settle(net)
    plain, known = both(net, "each", KNOWN, 12)
    unknown = []
    for port in range(COVERED + KNOWN + 1, COVERED + KNOWN + 9):
        serve(net, port)
        unknown.append(run(net, "each", server, port, 1)[0])
    first = [statistics.median(one["first_byte_s"] for one in seen) for seen in (plain, known, unknown)]
    print(
        f"lab: first byte of 1 kB: plain {first[0] * 1e3:.1f} ms, known server {first[1] / first[0]:.3f}, unknown {first[2] / first[0]:.3f}"
    )
    assert not any(one["error"] for one in (*plain, *known, *unknown))
    # These are medians of few connections on a busy machine; bench/measure/handshakes.py measures the ratios. Known servers are not
    # compared with unknown servers: the lab's control channel crosses no emulated path, so both may take the same time.
    assert first[1] < first[0] - RTT_S / 4
    assert first[2] < first[0] + RTT_S
    eventually("all have ended", lambda: sessions(net) == 0)


def test_accept_decides_between_the_agents_and_the_servers_answer(net: Lab) -> None:
    server = measure.address(net, "server")
    for accept, error in (("Early", "ConnectionResetError"), ("Confirmed", "ConnectionRefusedError")):
        net.declare(with_service(net.objects, accept=accept))

        def seen(error: str = error) -> bool:
            return run(net, "each", server, COVERED + SET, 1)[0]["error"] == error

        eventually(f"{accept} in force", seen)
        before = accepted(net)
        assert seen() and (accepted(net) > before) == (accept == "Early")
