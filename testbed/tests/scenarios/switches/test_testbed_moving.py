"""Hosts that move to another switch of their site (live migration: same MAC and IP address, gratuitous ARP) keep their connections.

Topology: each site has two switches with an agent each (examples/01-two-sites/more-nodes). Covered and plain connections run
simultaneously, so that their gaps can be compared.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from conftest import armed, eventually, lend, say
from sos_testbed.core import topology
from sos_testbed.core.model import AgentPlace, End, Host, Shape, Switch, Topology, Wire
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "01-two-sites"
PATH = PathOptions(rate_bps=100_000_000, rtt_us=20_000)
COVERED, PLAIN = 5001, 6001
EACH = 100
"""Number of connections to each port."""
WATCH_S = 8.0
"""Duration of an observation from before a move until well after it. A connection that is still silent then is lost."""
CABLES = {
    "client": (("edge1", "client"), ("edge3", "client3"), ("edge1", "client1")),
    "server": (("edge2", "server"), ("edge4", "server4")),
}
"""Switch ports between which each host moves: at two switches of its site and, for the client, two ports of one switch. The first port is
the lab's original port."""
SLACK_S = 5.0
"""Allowed excess of a gap over twice the gap of plain TCP. A retransmission just before the end of a gap doubles the RTO, to seconds on a
busy machine. Sessions that do not follow the host stay silent until the end of the observation."""

SERVE = """
import socket, sys, threading, time
def one(client):
    try:
        while True:
            client.sendall(b"x" * 500)
            time.sleep(0.05)
    except OSError:
        pass
def run(port):
    listener = socket.create_server(("", port), backlog=128)
    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
for port in map(int, sys.argv[1:]):
    threading.Thread(target=run, args=(port,)).start()
"""

FETCH = """
import selectors, socket, sys, time
address, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
at, last, longest, ended = selectors.DefaultSelector(), {}, 0.0, 0
for _ in range(count):
    connection = socket.create_connection((address, port), timeout=5)
    at.register(connection, selectors.EVENT_READ)
    last[connection] = time.monotonic()
last = dict.fromkeys(last, time.monotonic())  # no connection was read while later connections were opened
print("connected", flush=True)
until, said = time.monotonic() + seconds, 0.0
while time.monotonic() < until:
    if time.monotonic() - said > 0.1:  # a switch learns a host's new port only from packets of the host, also in plain forwarding
        said = time.monotonic()
        for connection in list(last):
            connection.send(b"y")
    for key, _ in at.select(0.1):
        try:
            data = key.fileobj.recv(65536)
        except OSError:
            data = b""
        now = time.monotonic()
        if not data:
            ended += 1
            at.unregister(key.fileobj)
            del last[key.fileobj]
            continue
        longest = max(longest, now - last[key.fileobj])
        last[key.fileobj] = now
silent = max((time.monotonic() - then for then in last.values()), default=0.0)
print(len(last), max(longest, silent), flush=True)
"""

ANNOUNCE = """
import socket, sys, time
address, mac = socket.inet_aton(sys.argv[1]), bytes.fromhex(sys.argv[2].replace(":", ""))
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("br0", 0x0806))
for _ in range(2):
    raw.send(b"\\xff" * 6 + mac + b"\\x08\\x06\\0\\1\\x08\\0\\6\\4\\0\\1" + mac + address + bytes(6) + address)
    time.sleep(0.1)
"""


def two_nodes(path1: PathOptions, path2: PathOptions) -> Topology:
    """Topology in which both switches of a site have the uplinks of the site."""

    def wire(edge: str, port: str, core: str, at: str, shape: Shape | None = None) -> Wire:
        return Wire(a=End(switch=edge, port=port), b=End(switch=core, port=at), shape=shape)

    sites = (("edge1", "west"), ("edge3", "west"), ("core1", "core1"), ("core2", "core2"), ("edge2", "east"), ("edge4", "east"))
    wires = []
    for core, port, path in (("core1", "wan0", path1), ("core2", "wan1", path2)):
        wires += [wire("edge1", port, core, "wan0"), wire("edge3", port, core, "wan2")]
        wires += [wire("edge2", port, core, "wan1", path.shape()), wire("edge4", port, core, "wan3", path.shape())]
    client = Host(name="client", switch="edge1", address=IPv4Interface("10.0.0.11/23"))
    server = Host(name="server", switch="edge2", address=IPv4Interface("10.0.0.139/23"))
    return Topology(
        name="two-nodes",
        switches=tuple(Switch(name=name, site=site) for name, site in sites),
        hosts=(client, server),
        agents=tuple(AgentPlace(name=f"agent{i}", switch=f"edge{i}") for i in (1, 2, 3, 4)),
        wires=tuple(wires),
    )


@pytest.fixture(scope="module", params=["transparent", "rewriting"])
def two(request: pytest.FixtureRequest) -> Iterator[Lab]:
    topology.BUILDERS["two-nodes"] = topology.Builder(build=two_nodes, path1=PATH, path2=PATH)
    try:
        rewrite = (EXAMPLE / "rewrite",) if request.param == "rewriting" else ()
        built = labs.up(Options(topology="two-nodes", examples=(EXAMPLE, EXAMPLE / "more-nodes" / "sites.yaml", *rewrite)), say)
        set_up_cables(built)
        yield built
        built.down()
    finally:
        del topology.BUILDERS["two-nodes"]


@pytest.fixture
def net(two: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(two, request)


def ip(netns: str, *argv: str) -> None:
    subprocess.run(("ip", "-n", netns, *argv), check=True)


def set_up_cables(net: Lab) -> None:
    """Connect each host to all its ports, with carrier on one port, as in a live migration or an active-backup bond.

    A bridge in the host replaces the bond, because a bond needs a kernel module.
    """
    for host in net.topology.hosts:
        there, first, *others = net.plan.netns(host.name), *CABLES[host.name]
        ip(there, "link", "add", "br0", "address", mac(net, host.name, "eth0"), "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip(there, "link", "set", "eth0", "down")
        ip(there, "link", "set", "eth0", "name", cable(*first))
        ip(there, "address", "flush", "dev", cable(*first))
        for switch, port in others:
            there_at = net.plan.netns(switch)
            ip(there, "link", "add", cable(switch, port), "type", "veth", "peer", "name", port, "netns", there_at)
            ip(there_at, "link", "set", port, "up")
            if switch in net.plan.rewriting:
                subprocess.run(net.exec_argv(host.name, ("ethtool", "-K", cable(switch, port), "tx", "off")), check=True)
            subprocess.run(labs.realise.ovs(net.plan, switch, "ovs-vsctl", "add-port", "br-sos", port), check=True)
        for switch, port in CABLES[host.name]:
            ip(there, "link", "set", cable(switch, port), "master", "br0")
        ip(there, "address", "add", str(host.address), "dev", "br0")
        ip(there, "link", "set", "br0", "up")
        ip(there, "link", "set", cable(*first), "up")
        route = (str(host.address.network), "dev", "br0", "proto", "kernel", "scope", "link", "src", str(host.address.ip))
        ip(there, "route", "change", *route, "congctl", "cubic")


def cable(switch: str, port: str) -> str:
    """Name of the host's interface of a cable."""
    return f"{switch}-{port}"


def mac(net: Lab, host: str, interface: str) -> str:
    argv = ("ip", "-n", net.plan.netns(host), "-br", "link", "show", interface)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[2]


def move(net: Lab, host: str, old: tuple[str, str], new: tuple[str, str], *, announced: bool) -> None:
    """Move the carrier from one port to another."""
    there = net.plan.netns(host)
    commands = f"link set {cable(*old)} down\nlink set {cable(*new)} up\n"
    subprocess.run(("ip", "-n", there, "-batch", "-"), input=commands, text=True, check=True)
    if announced:
        own = next(h.address.ip for h in net.topology.hosts if h.name == host)
        argv = net.exec_argv(host, (sys.executable, "-c", ANNOUNCE, str(own), mac(net, host, "br0")))
        subprocess.run(argv, check=True)


def watch(net: Lab, port: int) -> "subprocess.Popen[str]":
    argv = net.exec_argv("client", (sys.executable, "-uc", FETCH, "10.0.0.139", str(port), str(EACH), str(WATCH_S)))
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_connections_continue_after_their_host_moves(net: Lab) -> None:
    """Move the client to a new port (announced) and back (unannounced), then the server. No gap is much longer than in plain TCP."""
    eventually("an armed agent", lambda: armed(net))
    server = subprocess.Popen(net.exec_argv("server", (sys.executable, "-uc", SERVE, str(COVERED), str(PLAIN))))
    try:
        for port in (COVERED, PLAIN):
            measure.wait_listening(net, "server", port)
        for host, old, new, announced in (
            ("client", 0, 1, True),
            ("client", 1, 0, False),
            ("client", 0, 2, True),
            ("client", 2, 0, False),
            ("server", 0, 1, True),
        ):
            running = {port: watch(net, port) for port in (PLAIN, COVERED)}
            for program in running.values():
                assert program.stdout is not None and program.stdout.readline() == "connected\n"
            time.sleep(1.0)  # data flows before the move, so the longest gap is that of the move
            move(net, host, CABLES[host][old], CABLES[host][new], announced=announced)
            said = {port: program.communicate(timeout=60)[0].split() for port, program in running.items()}
            print(host, new, announced, said)
            (_, plain_gap), (alive, gap) = said[PLAIN], said[COVERED]
            assert int(alive) == EACH
            assert float(gap) < 2 * float(plain_gap) + SLACK_S
    finally:
        server.kill()
        server.wait()
