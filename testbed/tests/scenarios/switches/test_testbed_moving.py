"""Hosts that move to another switch of their site (live migration: same MAC and IP address, gratuitous ARP) keep their connections.

Topology: each site has two switches with an agent each (examples/01-two-sites/more-nodes). Covered and plain connections are watched
during the same move, so that their longest silences can be compared.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import PROGRAMS, armed, eventually, lend, say
from sos_testbed.core import topology
from sos_testbed.core.model import AgentPlace, End, Host, Shape, Switch, Topology, Wire
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import PROACTIVE, Lab, Options
from sos_testbed.measurements import measure

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "01-two-sites"
PATH = PathOptions(rate_bps=100_000_000, rtt_us=20_000)
STALLS = PROGRAMS / "stalls.py"
COVERED, PLAIN = 5001, 6001
EACH = 100
"""Number of connections to each port."""
CALM_S, WATCH_S = 3.0, 5.0
"""Time before the move, whose longest silence is that of a machine with other work; time from the move until well after it. A connection
that is still silent then is lost."""
CABLES = {
    "client": {"home": ("edge1", "client"), "switch": ("edge3", "client3"), "port": ("edge1", "client1")},
    "server": {"home": ("edge2", "server"), "switch": ("edge4", "server4"), "port": ("edge2", "server1")},
}
"""Switch ports between which each host moves: the lab's original port, a port of the site's other switch, and another port of the same
switch."""
STALL_S = 0.3
"""Longest silence of a connection that follows its host, however short that of plain TCP is: the host's first segment is lost, and it
retransmits after 0.2 s (Linux, TCP_RTO_MIN)."""
MAX_BUSY_S = 0.5
"""Maximum allowance for a machine with other work: twice the longest silence just before the move, since a retransmission just before the
switches have learned the new port doubles the time until the next one (RFC 6298, 5.5)."""

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
        yield from cabled(Options(topology="two-nodes", examples=(EXAMPLE, EXAMPLE / "more-nodes" / "sites.yaml", *rewrite)))
    finally:
        del topology.BUILDERS["two-nodes"]


@pytest.fixture(scope="module")
def one() -> Iterator[Lab]:
    """Lab with one switch at each site, whose service is set up proactively."""
    yield from cabled(Options(path1=PATH, path2=PATH, examples=(PROACTIVE,)))


def cabled(options: Options) -> Iterator[Lab]:
    built = labs.up(options, say)
    try:
        set_up_cables(built)
        yield built
    finally:
        built.down()


@pytest.fixture
def net(two: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(two, request)


@pytest.fixture
def proactive(one: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield from lend(one, request)


def ip(netns: str, *argv: str) -> None:
    subprocess.run(("ip", "-n", netns, *argv), check=True)


def set_up_cables(net: Lab) -> None:
    """Connect each host to all its ports, with carrier on one port, as in a live migration or an active-backup bond.

    A bridge in the host replaces the bond, because a bond needs a kernel module. The host itself never loses the carrier: otherwise its
    kernel would forget all neighbors, and a lost ARP request is repeated only after a second.
    """
    for host in net.topology.hosts:
        there, first = net.plan.netns(host.name), CABLES[host.name]["home"]
        cables = [found for found in CABLES[host.name].values() if found[0] in {switch.name for switch in net.topology.switches}]
        ip(there, "link", "add", "br0", "address", mac(net, host.name, "eth0"), "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip(there, "link", "add", "carrier0", "type", "veth", "peer", "name", "carrier1")
        ip(there, "link", "set", "carrier1", "addrgenmode", "none", "arp", "off", "up")  # it would answer for the host, with its own MAC
        ip(there, "link", "set", "carrier0", "up")
        ip(there, "link", "set", "carrier0", "master", "br0")
        ip(there, "link", "set", "eth0", "down")
        ip(there, "link", "set", "eth0", "name", cable(*first))
        ip(there, "address", "flush", "dev", cable(*first))
        for switch, port in cables:
            if (switch, port) != first:
                there_at = net.plan.netns(switch)
                ip(there, "link", "add", cable(switch, port), "type", "veth", "peer", "name", port, "netns", there_at)
                ip(there_at, "link", "set", port, "up")
                if switch in net.plan.rewriting:
                    subprocess.run(net.exec_argv(host.name, ("ethtool", "-K", cable(switch, port), "tx", "off")), check=True)
                subprocess.run(labs.realise.ovs(net.plan, switch, "ovs-vsctl", "add-port", "br-sos", port), check=True)
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


class Stall(NamedTuple):
    """Connections that stand after a move, the longest silence of one of them, and the longest silence just before the move."""

    alive: int
    silence: float
    before: float


class Move(NamedTuple):
    """A move of a host from one of its `CABLES` to another."""

    host: str
    old: str
    new: str
    announced: bool


@contextmanager
def serving(net: Lab) -> Iterator[None]:
    server = subprocess.Popen(net.exec_argv("server", (sys.executable, "-u", str(STALLS), "serve", str(COVERED), str(PLAIN))))
    try:
        for port in (COVERED, PLAIN):
            measure.wait_listening(net, "server", port)
        yield
    finally:
        server.kill()
        server.wait()


def stalls(net: Lab, ports: Sequence[int], made: Move) -> dict[int, Stall]:
    """Move a host that has connections to these ports."""
    running = {port: watch(net, port) for port in ports}
    try:
        for program in running.values():
            assert line(program) == "connected"
        tell(running, "start")
        time.sleep(CALM_S)
        tell(running, "moves")
        move(net, made.host, CABLES[made.host][made.old], CABLES[made.host][made.new], announced=made.announced)
        time.sleep(WATCH_S)
        found = {}
        for port, program in running.items():
            before, after = (said.split() for said in program.communicate(timeout=60)[0].splitlines())
            found[port] = Stall(int(after[0]), float(after[1]), float(before[1]))
        print(made, found)
        return found
    finally:
        for program in running.values():
            program.kill()
            program.wait()


def watch(net: Lab, port: int) -> "subprocess.Popen[str]":
    argv = net.exec_argv("client", (sys.executable, "-u", str(STALLS), "watch", "10.0.0.139", str(port), str(EACH)))
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(program: "subprocess.Popen[str]") -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def tell(running: Mapping[int, "subprocess.Popen[str]"], word: str) -> None:
    for program in running.values():
        assert program.stdin is not None
        program.stdin.write(word + "\n")
        program.stdin.flush()


def check(covered: Stall, plain: Stall) -> None:
    """All connections have survived the move, and are silent for no longer than plain connections and a round trip, or for STALL_S."""
    assert covered.alive == plain.alive == EACH
    busy = min(2 * max(covered.before, plain.before), MAX_BUSY_S)
    assert covered.silence <= max(STALL_S, plain.silence + PATH.rtt_us / 1e6) + busy, (covered, plain)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["client", "server"])
def test_connections_continue_after_their_host_moves(net: Lab, host: str) -> None:
    """Move a host to the site's other switch and to another port of its switch (announced), each time and back (unannounced)."""
    eventually("an armed agent", lambda: armed(net))
    with serving(net):
        for new in ("switch", "port"):
            for made in (Move(host, "home", new, announced=True), Move(host, new, "home", announced=False)):
                found = stalls(net, (PLAIN, COVERED), made)
                check(found[COVERED], found[PLAIN])


@pytest.mark.slow
@pytest.mark.parametrize("new", ["switch", "port"])
def test_covered_connections_need_no_plain_packets_to_follow_a_host(net: Lab, new: str) -> None:
    """Switches also learn where a host is from its plain packets, so there are none. Plain connections are measured afterwards."""
    eventually("an armed agent", lambda: armed(net))
    unannounced(net, new)


@pytest.mark.slow
def test_proactive_connections_follow_a_host_to_another_port(proactive: Lab) -> None:
    """A proactive service has one switch at each site, so its hosts move between ports only."""
    eventually("an armed agent", lambda: armed(proactive))
    with serving(proactive):
        for host in CABLES:
            for made in (Move(host, "home", "port", announced=True), Move(host, "port", "home", announced=False)):
                found = stalls(proactive, (PLAIN, COVERED), made)
                check(found[COVERED], found[PLAIN])
    unannounced(proactive, "port")


def unannounced(net: Lab, new: str) -> None:
    """Move each host there and back with covered connections only, and with plain connections only. Compare the shorter silence of each
    kind: the moves are not simultaneous, and a switch that does not learn is silent each time."""
    with serving(net):
        for host in CABLES:
            found: dict[int, list[Stall]] = {COVERED: [], PLAIN: []}
            for port, old, to in ((COVERED, "home", new), (PLAIN, new, "home"), (PLAIN, "home", new), (COVERED, new, "home")):
                found[port].append(stalls(net, (port,), Move(host, old, to, announced=False))[port])
            assert all(stall.alive == EACH for each in found.values() for stall in each), found
            check(*(min(found[port], key=lambda stall: stall.silence) for port in (COVERED, PLAIN)))
