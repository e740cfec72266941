"""Scenario -> ordered steps that build its network. Pure.

Two sites in network namespaces are connected by the link emulator. The kernel's routing replaces Open vSwitch of a lab:

    client, other1 --+                                   +-- server, other2
    near (agent)   --+-- west == wan0 (, wan1) == east --+-- far (agent)
    hanear         --+         link emulator             +-- hafar

All hosts are in 10.0.0.0/24, hosts of west in the lower half. The routers west and east answer ARP for the other site (proxy ARP).
They route packets of TCP connections to ports 5000 to 5999 as switches would redirect them: packets of the client to the ingress
agent, packets of the server to the egress agent. The second link carries the agents' streams of path 1 (stream port 10001) and the packets
of the client's second address (for MPTCP).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from sos_testbed.core.steps import DeleteNamespace, MakeFolder, RemoveTree, Run, Spawn, Step, Stop
from sos_testbed.core.topology import PathOptions

from sos_harness.agents import SERVICE_PORTS, STREAM_PORT, Agent

CLIENT, CLIENT_SECOND, SERVER = "10.0.0.11", "10.0.0.12", "10.0.0.139"
OTHER_CLIENT, OTHER_SERVER = "10.0.0.13", "10.0.0.140"
HAPROXY_NEAR, HAPROXY_FAR = "10.0.0.20", "10.0.0.148"
WEST, EAST = "10.0.0.0/25", "10.0.0.128/25"
_SECOND_PATH, _REDIRECT = "101", "110"  # routing tables

LINUX_BUFFERS = ("4096 131072 6291456", "4096 16384 4194304")
"""Linux's default tcp_rmem and tcp_wmem; set explicitly, because a machine may have other values."""
LARGE_BUFFERS = ("4096 131072 67108864", "4096 16384 67108864")
LINUX_CONGESTION = "cubic"
ROUTER_BUFFERS = ("4096 131072 67108864", "4096 65536 67108864")
"""Buffers of the machines of agents on routes (maximums as in docs/concepts/pods.md); agents on a bridge set the same values themselves."""
RELAY_BUFFERS = ("4096 8388608 67108864", "4096 65536 67108864")
"""Buffers of the other relays: sos-agent's maximums, and a larger initial receive buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Names and folders of one network."""

    prefix: str
    root: PurePosixPath
    linkemu: str
    agents: tuple[Agent, Agent]

    def netns(self, part: str) -> str:
        """Name of a part's namespace."""
        return f"{self.prefix}-{part}"

    def inside(self, part: str, *argv: str) -> tuple[str, ...]:
        """Command line that runs a program in a part's namespace, in the same process."""
        return ("ip", "netns", "exec", self.netns(part), *argv)

    @property
    def alone(self) -> PurePosixPath:
        """Folder of the agents' files for a single path, in a network with several paths."""
        return self.root / "one-path"

    @property
    def control(self) -> PurePosixPath:
        """Control socket of the link emulator."""
        return self.root / "linkemu.sock"

    def log(self, name: str) -> PurePosixPath:
        """Log file of a program."""
        return self.root / "log" / f"{name}.log"


@dataclass(frozen=True, slots=True)
class Place:
    """A host or haproxy behind a router: namespace, router and addresses."""

    name: str
    router: str
    addresses: tuple[str, ...]
    buffers: tuple[str, str] = LINUX_BUFFERS


HOSTS = (
    Place("client", "west", (CLIENT, CLIENT_SECOND)),
    Place("other1", "west", (OTHER_CLIENT,)),
    Place("hanear", "west", (HAPROXY_NEAR,), RELAY_BUFFERS),
    Place("server", "east", (SERVER,)),
    Place("other2", "east", (OTHER_SERVER,)),
    Place("hafar", "east", (HAPROXY_FAR,), RELAY_BUFFERS),
)


def build(plan: Plan, paths: tuple[PathOptions, ...], *, emulated: bool = True) -> list[Step]:
    """All steps, except programs that a transfer starts itself. Without the emulator the links are plain veth pairs."""
    steps = [Step(title="folders", do=MakeFolder(path=str(plan.root / "log")), undo=RemoveTree(path=str(plan.root / "log")))]
    for part in ("emu", "west", "east", "near", "far", *(host.name for host in HOSTS)):
        steps += _namespace(plan, part)
    for router in ("west", "east"):
        steps += _router(plan, router)
    for number in range(len(paths)):
        steps += _wire(plan, number, emulated)
    for host in HOSTS:
        steps += _host(plan, host)
    for agent in plan.agents:
        steps += _agent(plan, agent)
    steps += _redirects(plan, len(paths))
    return [*steps, _emulator(plan, paths)] if emulated else steps


def _do(title: str, *argv: str) -> Step:
    # no undo is needed: deleting a namespace removes everything inside it
    return Step(title=title, do=Run(argv=argv), undo=Run(argv=("true",)))


def _ip(plan: Plan, part: str, words: str) -> Step:
    return _do(part, "ip", "-n", plan.netns(part), *words.split())


def _sysctl(plan: Plan, part: str, name: str, value: str) -> Step:
    return _do(part, *plan.inside(part, "sysctl", "-q", "-w", f"{name}={value}"))


def _namespace(plan: Plan, part: str) -> Iterator[Step]:
    name = plan.netns(part)
    yield Step(title=part, do=Run(argv=("ip", "netns", "add", name)), undo=DeleteNamespace(name=name))
    yield _ip(plan, part, "link set lo up")


def _router(plan: Plan, router: str) -> Iterator[Step]:
    for name, value in (("ip_forward", 1), ("conf.all.rp_filter", 0), ("conf.default.rp_filter", 0), ("conf.all.proxy_arp", 1)):
        yield _sysctl(plan, router, f"net.ipv4.{name}", str(value))
    yield _sysctl(plan, router, "net.ipv4.conf.all.send_redirects", "0")
    yield _ip(plan, router, f"address add {'10.0.0.1' if router == 'west' else '10.0.0.129'}/32 dev lo")


def _veth(plan: Plan, a: tuple[str, str], b: tuple[str, str]) -> Iterator[Step]:
    (part_a, name_a), (part_b, name_b) = a, b
    peer = f"peer name {name_b} netns {plan.netns(part_b)}"
    yield _do(part_a, *f"ip link add name {name_a} netns {plan.netns(part_a)} type veth {peer}".split())
    for part, name in (a, b):
        yield _ip(plan, part, f"link set {name} addrgenmode none up")


def _wire(plan: Plan, number: int, emulated: bool) -> Iterator[Step]:
    west, east = ("west", f"wan{number}"), ("east", f"wan{number}")
    if emulated:
        yield from _veth(plan, west, ("emu", f"w{number}a"))
        yield from _veth(plan, ("emu", f"w{number}b"), east)
    else:
        yield from _veth(plan, west, east)
    table = "" if number == 0 else f" table {_SECOND_PATH}"
    for router, own, far in _ENDS:
        yield _ip(plan, router, f"address add 10.9.{number}.{own}/30 dev wan{number}")
        # static neighbors, because ARP would delay the first transfer of a network by a round trip
        yield _ip(plan, router, f"link set wan{number} address {_mac(number, own)}")
        yield _ip(plan, router, f"neighbour replace 10.9.{number}.{far} lladdr {_mac(number, far)} dev wan{number} nud permanent")
        yield _ip(plan, router, f"route add {_across(router, number)}{table}")


_ENDS = (("west", 1, 2), ("east", 2, 1))
"""Routers, each with the last address byte of itself and of the other router on a link."""


def _across(router: str, number: int) -> str:
    prefix, far = (EAST, 2) if router == "west" else (WEST, 1)
    return f"{prefix} via 10.9.{number}.{far} dev wan{number}"


def lead_over(number: int) -> list[tuple[str, tuple[str, ...]]]:
    """Routers, each with the command that routes the first path's traffic over this link."""
    return [(router, ("ip", "route", "replace", *_across(router, number).split())) for router, _own, _far in _ENDS]


def _mac(number: int, end: int) -> str:
    return f"02:57:41:4e:{number:02x}:{end:02x}"


def _attach(plan: Plan, part: str, interface: str, router: str, addresses: tuple[str, ...]) -> Iterator[Step]:
    yield from _veth(plan, (part, interface), (router, part))
    yield _sysctl(plan, router, f"net.ipv4.neigh.{part}.proxy_delay", "0")  # otherwise an ARP reply is delayed by up to 0.8 s
    for address in addresses:
        yield _ip(plan, router, f"route add {address}/32 dev {part}")


def _host(plan: Plan, host: Place) -> Iterator[Step]:
    yield from _attach(plan, host.name, "eth0", host.router, host.addresses)
    for name, value in zip(("tcp_rmem", "tcp_wmem"), host.buffers, strict=True):
        yield _sysctl(plan, host.name, f"net.ipv4.{name}", value)
    # closed connections keep their ports for a minute: with ten thousand connections per run, the third run would have no free port
    yield _sysctl(plan, host.name, "net.ipv4.tcp_tw_reuse", "1")
    for address in host.addresses:
        yield _ip(plan, host.name, f"address add {address}/32 dev eth0")
    yield _ip(plan, host.name, f"route add {route(host.addresses[0], LINUX_CONGESTION)}")


def route(own: str, congestion: str) -> str:
    """Route of a place to all other places, with the congestion control of its connections."""
    return f"10.0.0.0/24 dev eth0 src {own} congctl {congestion}"


def _agent(plan: Plan, agent: Agent) -> Iterator[Step]:
    router = "west" if agent.part == "near" else "east"
    yield from _attach(plan, agent.part, agent.interface, router, agent.addresses)
    yield _ip(plan, agent.part, f"link set {agent.interface} address {agent.mac}")
    # An agent on routes leaves addresses, routes and buffers to its machine; an agent on a bridge sets its own.
    for address in agent.addresses:
        yield _ip(plan, agent.part, f"address add {address}/32 dev {agent.interface}")
    yield _ip(plan, agent.part, f"route add 10.0.0.0/24 dev {agent.interface} metric 100")
    for name, value in zip(("tcp_rmem", "tcp_wmem"), ROUTER_BUFFERS, strict=True):
        yield _sysctl(plan, agent.part, f"net.ipv4.{name}", value)
    yield _sysctl(plan, agent.part, "net.ipv4.tcp_slow_start_after_idle", "0")


def _redirects(plan: Plan, paths: int) -> Iterator[Step]:
    ports = f"{SERVICE_PORTS[0]}-{SERVICE_PORTS[1]}"
    for router, agent, host, end in (("west", plan.agents[0], "client", "dport"), ("east", plan.agents[1], "server", "sport")):
        yield _ip(plan, router, f"rule add priority 100 iif {host} ipproto tcp {end} {ports} lookup {_REDIRECT}")
        yield _ip(plan, router, f"route add default via {agent.address} dev {agent.part} onlink table {_REDIRECT}")
        if paths > 1:
            for which in ("sport", "dport"):
                yield _ip(
                    plan, router, f"rule add priority 90 iif {agent.part} ipproto tcp {which} {STREAM_PORT + 1} lookup {_SECOND_PATH}"
                )
            second = f"from {CLIENT_SECOND}" if router == "west" else f"to {CLIENT_SECOND}"
            yield _ip(plan, router, f"rule add priority 91 {second} lookup {_SECOND_PATH}")


def _emulator(plan: Plan, paths: tuple[PathOptions, ...]) -> Step:
    argv = [plan.linkemu, "--control", str(plan.control)]
    for number, path in enumerate(paths):
        shape = path.shape()
        character = f"rate={shape.rate_bps}bit,delay={shape.rtt_us * 500}ns,loss={shape.loss:.9f},queue={shape.queue_bytes}"
        argv += ["--link", f"A=w{number}a,B=w{number}b,name=wan{number},{character}"]
    spawn = Spawn(name="linkemu", argv=plan.inside("emu", *argv), log=str(plan.log("linkemu")))
    return Step(title="link emulator", do=spawn, undo=Stop(name="linkemu"))
