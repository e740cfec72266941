"""Components of a lab as frozen values. No I/O, no defaults that depend on the machine.

A topology is a graph of switches; hosts and agents are attached to switches, and wires connect two switch ports. At a site without a
bridge, a `Node` takes the switch's place: it routes between its hosts and its wires, and its agent runs in its namespace. A wire with a
`Shape` runs through the link emulator; a wire without a shape is a plain veth pair.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

_NAME = re.compile(r"^[a-z][a-z0-9]{0,9}$")

DEFAULT_POOL = "default"  # the SosAgent that every lab with agents runs
MAX_SWITCHES = 64  # protects against typing errors; the real bound is the machine's memory: an ovs-vswitchd takes about 40 MB
MAX_RATE_BPS = 40_000_000_000
MAX_RTT_US = 10_000_000


class LabError(Exception):
    """The requested lab is impossible, or the machine refused a step. The message is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Emulated properties of one wire, the same in both directions.

    `rate_bps` counts Ethernet bits on the wire (preamble, gap and checksum included), `rtt_us` is split equally between the
    directions, `loss` is the probability that a packet is dropped in one direction, `queue_bytes` is the queue's limit.
    """

    rate_bps: int
    rtt_us: int
    loss: float
    queue_bytes: int

    def __post_init__(self) -> None:
        """Raise LabError for values outside the emulator's range."""
        if not 1_000_000 <= self.rate_bps <= MAX_RATE_BPS:
            raise LabError(f"rate: {self.rate_bps} bit/s is outside 1 Mbit/s to 40 Gbit/s")
        if not 0 <= self.rtt_us <= MAX_RTT_US:
            raise LabError(f"rtt: {self.rtt_us} us is outside 0 to 10 s")
        if not 0 <= self.loss < 1:
            raise LabError(f"loss: {self.loss} is not a probability below 1")
        if not 1 <= self.queue_bytes <= 1 << 32:
            raise LabError(f"queue: {self.queue_bytes} bytes is outside 1 byte to 4 GiB")


def agent_key(pool: str, node: str) -> str:
    """Name of a pool's agent at a node."""
    return node if pool == DEFAULT_POOL else f"{node}-{pool}"


def bdp_bytes(rate_bps: int, rtt_us: int) -> int:
    """Bandwidth-delay product in bytes, at least 64 full packets, so that the queue of a short wire can hold a burst."""
    return max(rate_bps * rtt_us // 8_000_000, 64 * 1538)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One Open vSwitch in its own namespace; `site` is the value of its node's label `sos.network/site`.

    `underlay`: interface outside the bridge with the node's address, over which the site's tunnels run, and the address.
    """

    name: str
    site: str
    underlay: tuple[str, IPv4Interface] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Machine of a site without a bridge: the gateway of its hosts, on interface `lan0`, with one WAN interface for each path.

    `wan` lists the WAN interfaces as (port, address). Plain packets to the prefixes in `routes` take the first WAN interface.
    """

    name: str
    site: str
    lan: IPv4Interface
    wan: tuple[tuple[str, IPv4Interface], ...]
    routes: tuple[tuple[IPv4Network, IPv4Address], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An ordinary machine with an address and, if needed, a default route or an MTU below that of Ethernet."""

    name: str
    switch: str
    address: IPv4Interface
    gateway: IPv4Address | None = None
    mtu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A machine with one leg per wire, each in a subnet of its own; it is also the server at `address`."""

    name: str
    address: IPv4Interface
    legs: tuple[tuple[str, IPv4Interface], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlace:
    """Namespace for the agent of one switch's node; the agent-config has the agent's address. At a `Node`, this is the node's namespace.

    The namespace is empty while no SosAgent with the pool's name is declared.
    """

    name: str
    switch: str
    pool: str = DEFAULT_POOL

    @property
    def key(self) -> str:
        """Name of the agent: the node's name, followed by the pool's name unless this is the default pool."""
        return agent_key(self.pool, self.switch)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a wire: an interface in the namespace of a switch, a node or a router."""

    switch: str
    port: str

    def __str__(self) -> str:
        """`edge1.wan0`, the name in examples and faults."""
        return f"{self.switch}.{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A cable between two switches or nodes, or between a switch and a router."""

    a: End
    b: End
    shape: Shape | None = None
    parallel: bool = False
    """True if several wires connect the same two parts."""

    @property
    def name(self) -> str:
        """`edge1-core1`: the name of the link in `./lab fault link`; `edge1.wan0` if the wire is parallel to others."""
        return str(self.a) if self.parallel else f"{self.a.switch}-{self.b.switch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A whole network."""

    name: str
    switches: tuple[Switch, ...]
    hosts: tuple[Host, ...]
    agents: tuple[AgentPlace, ...]
    wires: tuple[Wire, ...]
    routers: tuple[Router, ...] = ()
    nodes: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        """Raise LabError unless every name is short and unique, and every end exists and is used once."""
        if len(self.switches) > MAX_SWITCHES:
            raise LabError(f"topology {self.name}: more than {MAX_SWITCHES} switches")
        names = self.parts()
        for name in names:
            if not _NAME.match(name):
                raise LabError(f"topology {self.name}: {name!r} is not a name of 1 to 10 small letters and digits")
        _refuse_duplicates(self.name, names)
        switches = {switch.name for switch in self.switches}
        known = switches | {node.name for node in self.nodes}
        places: list[Host | AgentPlace] = [*self.hosts, *self.agents]
        for place in places:
            if place.switch not in known:
                raise LabError(f"topology {self.name}: {place.name} hangs on an unknown switch {place.switch!r}")
        ends = [end for wire in self.wires for end in (wire.a, wire.b)]
        legs = {(router.name, port) for router in self.routers for port, _ in router.legs}
        legs |= {(node.name, port) for node in self.nodes for port, _ in node.wan}
        for end in ends:
            if (end.switch not in switches and (end.switch, end.port) not in legs) or not _NAME.match(end.port):
                raise LabError(f"topology {self.name}: wire end {end} does not exist")
        _refuse_duplicates(self.name, [str(end) for end in ends])

    def parts(self) -> list[str]:
        """Names of all parts with a namespace."""
        nodes = [node.name for node in self.nodes]
        hung = [*(h.name for h in self.hosts), *(a.name for a in self.agents if a.name not in nodes)]
        return [*(s.name for s in self.switches), *nodes, *hung, *(r.name for r in self.routers)]

    def links(self) -> tuple[Wire, ...]:
        """Wires between switches, which the controller discovers."""
        known = {switch.name for switch in self.switches}
        return tuple(wire for wire in self.wires if {wire.a.switch, wire.b.switch} <= known)

    def shaped(self) -> tuple[Wire, ...]:
        """Emulated wires, in the emulator's numbering order."""
        return tuple(wire for wire in self.wires if wire.shape is not None)

    def wire(self, name: str) -> Wire:
        """Find a wire by its name (in either direction) or by one of its ends; raise LabError with the known names otherwise."""
        for wire in self.wires:
            reverse = "" if wire.parallel else f"{wire.b.switch}-{wire.a.switch}"
            if name and name in {wire.name, reverse, str(wire.a), str(wire.b)}:
                return wire
        raise LabError(f"no link {name!r}; there are {', '.join(wire.name for wire in self.wires)}")


def _refuse_duplicates(topology: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LabError(f"topology {topology}: {', '.join(twice)} used twice")
