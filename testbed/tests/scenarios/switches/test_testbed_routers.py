"""Hosts behind a router with a smaller next-hop MTU: covered connections discover the path MTU, and fragments reach the agent.

inner -- client -- edge1 ======= core1 ------- edge2 -- server -- inner      client or server is the router of an inner host

Hosts and agents have segmentation offload, except at rewriting sites.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from conftest import RTT_US, SHARED, accepted, armed, eventually, lend, one_lab, say
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import EXAMPLE, PROACTIVE, REWRITE, Lab, Options
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure

COVERED, PLAIN = 5071, 6071
SIZE = 3_000_000
SMALL_MTU = 1400
PATIENCE_S = 60
CONNECT_S = 50
RUNS = 3
RTO_S = 0.2
"""Minimum RTO of Linux. A processor that is busy for longer than a round trip of a site causes one spurious timeout, in either transfer."""
EXAMPLES = {"transparent": (EXAMPLE,), "proactive": (PROACTIVE,), "rewriting": (EXAMPLE, REWRITE)}
COMMON = {"transparent": "shared", "rewriting": "rewriting"}
"""Fixtures of conftest.py that have the same labs."""

# The receiver reports the number of bytes and the longest time without bytes since the connection was opened.
RECEIVE = """
import socket, sys, time
def receive(connection):
    got, stall, last = 0, 0.0, time.monotonic()
    while data := connection.recv(1 << 20):
        got, stall, last = got + len(data), max(stall, time.monotonic() - last), time.monotonic()
    return f"{got} {stall}"
"""

SERVE = (
    RECEIVE
    + """
listener = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
connection, _ = listener.accept()
way, size = sys.argv[2], int(sys.argv[3])
if way == "down":
    connection.sendall(b"x" * size)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
else:
    connection.sendall(receive(connection).encode())
"""
)

FETCH = (
    RECEIVE
    + """
address, port, way, size = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
connection = socket.create_connection((address, port), timeout=float(sys.argv[5]))
if way == "up":
    connection.sendall(b"y" * size)
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(99).decode())
else:
    print(receive(connection))
"""
)


@pytest.fixture(scope="module")
def routers(request: pytest.FixtureRequest) -> Iterator[Lab]:
    if request.param in COMMON and one_lab(request.config):
        yield request.getfixturevalue(COMMON[request.param])
        return
    built = labs.up(Options(path1=SHARED.path1, path2=SHARED.path2, examples=EXAMPLES[request.param]), say)
    yield built
    built.down()


@pytest.fixture
def net(routers: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(routers, request)


def sh(*argv: str) -> None:
    subprocess.run(argv, check=True)


@contextmanager
def behind(net: Lab, host: str, address: str, *, fragments: bool = False) -> Iterator[str]:
    """Add an inner host behind a host. The MTU towards the inner host is small or, with `fragments`, its packets are fragmented."""
    there, inner = net.plan.netns(host), f"{net.plan.netns(host)}-in"
    sh("ip", "netns", "add", inner)
    try:
        sh(
            "ip",
            "link",
            "add",
            "m0",
            "netns",
            there,
            "mtu",
            "1500" if fragments else str(SMALL_MTU),
            "type",
            "veth",
            "peer",
            "name",
            "m1",
            "netns",
            inner,
        )
        settings = (
            "ip_forward=1",
            "conf.eth0.proxy_arp=1",
            "conf.m0.proxy_arp=1",
            "conf.all.send_redirects=0",
            "conf.eth0.send_redirects=0",
        )
        sh("ip", "netns", "exec", there, "sysctl", "-qw", *(f"net.ipv4.{setting}" for setting in settings))
        sh("ip", "-n", there, "link", "set", "m0", "addrgenmode", "none", "up")
        sh("ip", "-n", there, "route", "add", address, "dev", "m0")
        for device in ("lo", "m1"):
            sh("ip", "-n", inner, "link", "set", device, "up")
        sh("ip", "-n", inner, "address", "add", f"{address}/32", "dev", "m1")
        sh("ip", "-n", inner, "route", "add", "10.0.0.0/24", "dev", "m1", "src", address)
        if fragments:  # the inner host sends without DF, and its router has a smaller next-hop MTU
            sh("ip", "netns", "exec", inner, "sysctl", "-qw", "net.ipv4.ip_no_pmtu_disc=1")
            sh("ip", "netns", "exec", inner, "ethtool", "-K", "m1", "tso", "off", "gso", "off", "tx", "off")
            other = measure.address(net, "server" if host == "client" else "client")
            sh("ip", "-n", there, "route", "add", other, "dev", "eth0", "mtu", "lock", str(SMALL_MTU))
        yield inner
    finally:
        subprocess.run(("ip", "-n", there, "link", "del", "m0"), check=False)
        if fragments:
            subprocess.run(
                ("ip", "-n", there, "route", "del", measure.address(net, "server" if host == "client" else "client")), check=False
            )
        subprocess.run(
            ("ip", "netns", "exec", there, "sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv4.conf.eth0.proxy_arp=0"), check=False
        )
        forget(net)
        sh("ip", "netns", "del", inner)


def forget(net: Lab) -> None:
    """Clear the path MTUs that hosts and agents have discovered."""
    for part in ("client", "server", "agent1", "agent2"):
        sh(*net.exec_argv(part, ("ip", "route", "flush", "cache")))


def transfer(net: Lab, serving: tuple[str, ...], fetching: tuple[str, ...], target: str, port: int, way: str) -> float:
    """Transfer all bytes in this direction; return the longest time without bytes at the receiver, in seconds."""
    argv = (*serving, sys.executable, "-uc", SERVE, str(port), way, str(SIZE))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None and server.stdout.readline() == "listening\n"
            done = subprocess.run(
                (*fetching, sys.executable, "-uc", FETCH, target, str(port), way, str(SIZE), f"{limit_s(CONNECT_S)}"),
                capture_output=True, text=True, check=False, timeout=limit_s(PATIENCE_S),
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            size, stall = done.stdout.split()
            assert int(size) == SIZE
            return float(stall)
        finally:
            server.kill()


def ends(net: Lab, inner: str, host: str, address: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Commands that run a program at server and client of a transfer between an inner host and the opposite site, and the target."""
    own = ("ip", "netns", "exec", inner)
    other = tuple(net.exec_argv("server" if host == "client" else "client", ()))
    return (other, own, measure.address(net, "server")) if host == "client" else (own, other, address)


def stall(net: Lab, between: tuple[tuple[str, ...], tuple[str, ...], str], port: int, way: str) -> float:
    """Longest stall of a transfer whose sender has yet to discover the path MTU."""
    before, tries = accepted(net), 3 if port == COVERED else 1
    for _ in range(tries):  # a covered connection is plain if its set-up takes over a second on a busy machine
        forget(net)
        found = transfer(net, *between, port, way)
        if (accepted(net) > before) == (port == COVERED):
            return found
    raise AssertionError(f"port {port}: {accepted(net) - before} connections accelerated")


@pytest.mark.parametrize("routers", list(EXAMPLES), indirect=True)
@pytest.mark.parametrize(("host", "address", "way"), [("server", "10.0.0.140", "up"), ("client", "10.0.0.12", "down")])
def test_path_mtu_discovery_behind_a_router_stalls_no_longer_than_plain(net: Lab, host: str, address: str, way: str) -> None:
    """Deliver the router's ICMP errors to the agent, although the agent sends with a host's address. Without them, its kernel would probe
    the path MTU for half a minute."""
    eventually("an armed agent", lambda: armed(net))
    with behind(net, host, address) as inner:
        between = ends(net, inner, host, address)
        stalls = {port: [stall(net, between, port, way) for _ in range(RUNS)] for port in (PLAIN, COVERED)}
    print(host, way, stalls)
    plain, covered = (statistics.median(stalls[port]) for port in (PLAIN, COVERED))
    assert covered <= plain + limit_s(RTT_US / 1e6 + RTO_S), stalls


# Inner hosts have other addresses than in the test above: an agent that still knows the small path MTU to an address announces a small MSS,
# so no segment would be fragmented.
@pytest.mark.parametrize("routers", list(EXAMPLES), indirect=True)
@pytest.mark.parametrize(("host", "address", "way"), [("client", "10.0.0.13", "up"), ("server", "10.0.0.141", "down")])
def test_fragments_reach_the_agent_or_make_their_hosts_plain(net: Lab, host: str, address: str, way: str) -> None:
    eventually("an armed agent", lambda: armed(net))
    with behind(net, host, address, fragments=True) as inner:
        between = ends(net, inner, host, address)
        plain = [transfer(net, *between, PLAIN, way) for _ in range(RUNS)]
        if rewrites(net):  # the first fragmented connection is reset, all later connections are plain
            eventually("an accelerated connection that is reset", lambda: resets(net, *between, way))
        before = accepted(net)
        covered = [transfer(net, *between, COVERED, way) for _ in range(RUNS)]
        assert (accepted(net) > before) != rewrites(net)
    print(host, way, plain, covered)
    assert statistics.median(covered) <= statistics.median(plain) + limit_s(RTT_US / 1e6 + RTO_S)


def resets(net: Lab, serving: tuple[str, ...], fetching: tuple[str, ...], target: str, way: str) -> bool:
    """True if a covered transfer is reset. If set-up takes over a second on a busy machine, the transfer is plain and not reset."""
    before = accepted(net)
    try:
        transfer(net, serving, fetching, target, COVERED, way)
    except AssertionError as error:
        return "reset" in str(error)
    assert accepted(net) == before, "accelerated and not reset"
    return False


def rewrites(net: Lab) -> bool:
    """True if the switches of the lab rewrite."""
    return any(agent["site"]["rewrite"] == "OpenFlow" for agent in net.documents.agents.values())
