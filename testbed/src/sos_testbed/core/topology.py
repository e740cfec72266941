r"""Named topologies of labs. Pure.

`figure8` (thesis figure 8): two sites, two paths through one core switch each.

                      core1
       client        /     \        server
             \      /wan0   \wan0  /
              edge1          edge2
             /      \wan1   /wan1  \
       agent1        \     /        agent2
                      core2

`balance` is one site without agents: a client behind edge1, and five uplinks to a router, which is also the server (Al-Najjar et al.
2016, figure 5, with one machine for gateways, router and server).

`pools` is figure8 with up to three agents at each site, from the pools default, second and third (examples/01-two-sites/more-agents).

`routed` is figure8 with a subnet for each site: 10.1.0.0/24 and 10.2.0.0/24. No host owns the gateway addresses (examples/06-routed).

`routed-wan` has no switches: agent1 and agent2 are the gateways of client and server, and two emulated wires connect them
(examples/08-routed-wan). Each wire has an address at both gateways; plain traffic takes the first wire.

`overlay` has two switches, joined by a VXLAN tunnel over one emulated wire between their nodes instead of uplinks. Hosts have the MTU of
the tunnel (examples/01-two-sites/overlay).

`line` is figure8 without core2. `geni` (thesis 4.8, table 20) is figure8 with path round trips of 54 and 160 ms at 1 Gbit/s.
The emulated wires, at edge1 or agent1, have the whole delay of their path; the other wires are plain cables.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface

from sos_testbed.core.model import DEFAULT_POOL, AgentPlace, End, Host, LabError, Node, Router, Shape, Switch, Topology, Wire, bdp_bytes

DEFAULT_RATE_BPS = 500_000_000
DEFAULT_RTT_US = 59_000  # the paper's path between Clemson and Cambridge

UPLINKS = 5
OVERLAY_MTU = 1450  # of a site whose tunnels add 50 bytes to packets of 1500 (docs/install.md)

_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_TIME_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}
_BYTE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOptions:
    """A user's options for one path; `queue_bytes=None` means one bandwidth-delay product."""

    rate_bps: int = DEFAULT_RATE_BPS
    rtt_us: int = DEFAULT_RTT_US
    loss: float = 0.0
    queue_bytes: int | None = None

    def shape(self) -> Shape:
        """The shape of the path's long wire."""
        queue = bdp_bytes(self.rate_bps, self.rtt_us) if self.queue_bytes is None else self.queue_bytes
        return Shape(rate_bps=self.rate_bps, rtt_us=self.rtt_us, loss=self.loss, queue_bytes=queue)


UPLINK = PathOptions(rate_bps=10_000_000, rtt_us=4_000, queue_bytes=2_500_000)
"""Options of an uplink: the paper's rate of 10 Mbit/s. The queue holds 20 downloads of 100 kB, so that the benchmark measures placement and
not TCP under loss."""


def parse_rate(text: str) -> int:
    """`500mbit`, `1g`, `1.5gbit` or bits per second -> bits per second."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:bit|bps|bit/s)?", text.strip().lower())
    if not found:
        raise LabError(f"--rate: {text!r} is not a rate such as 500mbit or 1gbit")
    return round(float(found[1]) * _RATE_UNITS[found[2]])


def parse_time_us(text: str) -> int:
    """`59ms`, `800us`, `0.2s` or a bare number of milliseconds -> microseconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(us|ms|s)?", text.strip().lower())
    if not found:
        raise LabError(f"--rtt: {text!r} is not a time such as 59ms")
    return round(float(found[1]) * _TIME_UNITS[found[2] or "ms"])


def parse_loss(text: str) -> float:
    """`1%` or `0.01` -> 0.01."""
    raw = text.strip()
    try:
        value = float(raw.removesuffix("%")) / (100 if raw.endswith("%") else 1)
    except ValueError:
        raise LabError(f"--loss: {text!r} is not a share such as 1% or 0.01") from None
    if not 0 <= value < 1:
        raise LabError(f"--loss: {text!r} is not a share below 1 (write 1% or 0.01 for one packet in a hundred)")
    return value


def parse_queue(text: str) -> int | None:
    """`bdp` -> None (one bandwidth-delay product), `1m`, `256ki` or bytes -> bytes."""
    raw = text.strip().lower()
    if raw == "bdp":
        return None
    found = re.fullmatch(r"(\d+)([kmg]i?)?b?", raw)
    if not found:
        raise LabError(f"--queue: {text!r} is neither bdp nor a number of bytes")
    return int(found[1]) * _BYTE_UNITS[found[2] or ""]


def _edges(transit: tuple[str, ...], wires: tuple[Wire, ...], name: str) -> Topology:
    return Topology(
        name=name,
        switches=(
            Switch(name="edge1", site="west"),
            *(Switch(name=core, site=core) for core in transit),
            Switch(name="edge2", site="east"),
        ),
        hosts=(
            Host(name="client", switch="edge1", address=IPv4Interface("10.0.0.11/24")),
            Host(name="server", switch="edge2", address=IPv4Interface("10.0.0.139/24")),
        ),
        agents=(AgentPlace(name="agent1", switch="edge1"), AgentPlace(name="agent2", switch="edge2")),
        wires=wires,
    )


def _path(core: str, port: str, shape: Shape) -> tuple[Wire, Wire]:
    return (
        Wire(a=End(switch="edge1", port=port), b=End(switch=core, port="wan0"), shape=shape),
        Wire(a=End(switch=core, port="wan1"), b=End(switch="edge2", port=port)),
    )


def figure8(path1: PathOptions, path2: PathOptions) -> Topology:
    """Two sites with two paths."""
    wires = (*_path("core1", "wan0", path1.shape()), *_path("core2", "wan1", path2.shape()))
    return _edges(("core1", "core2"), wires, "figure8")


POOLS = {"": DEFAULT_POOL, "b": "second", "c": "third"}


def pools(path1: PathOptions, path2: PathOptions) -> Topology:
    """figure8 with places for additional agents: agent1b and agent1c beside agent1, agent2b and agent2c beside agent2."""
    plain = figure8(path1, path2)
    places = [AgentPlace(name=f"{p.name}{suffix}", switch=p.switch, pool=pool) for suffix, pool in POOLS.items() for p in plain.agents]
    return replace(plain, name="pools", agents=tuple(places))


def routed(path1: PathOptions, path2: PathOptions) -> Topology:
    """figure8, with a separate subnet for each site and a default route for each host."""
    plain = figure8(path1, path2)
    hosts = (
        Host(name="client", switch="edge1", address=IPv4Interface("10.1.0.11/24"), gateway=IPv4Address("10.1.0.1")),
        Host(name="server", switch="edge2", address=IPv4Interface("10.2.0.11/24"), gateway=IPv4Address("10.2.0.1")),
    )
    return replace(plain, name="routed", hosts=hosts)


def routed_wan(path1: PathOptions, path2: PathOptions) -> Topology:
    """Two sites without switches, connected by two routed paths."""
    lans = {"agent1": IPv4Interface("10.1.0.1/24"), "agent2": IPv4Interface("10.2.0.1/24")}
    ends = {name: _wan_addresses(number) for number, name in enumerate(lans, 1)}
    nodes = []
    for name, other, site in (("agent1", "agent2", "west"), ("agent2", "agent1", "east")):
        route = (lans[other].network, ends[other][0][1].ip)
        nodes.append(Node(name=name, site=site, lan=lans[name], wan=ends[name], routes=(route,)))
    wires = tuple(
        Wire(a=End(switch="agent1", port=port), b=End(switch="agent2", port=port), shape=path.shape(), parallel=True)
        for port, path in (("wan0", path1), ("wan1", path2))
    )
    hosts = (
        Host(name="client", switch="agent1", address=IPv4Interface("10.1.0.11/24"), gateway=lans["agent1"].ip),
        Host(name="server", switch="agent2", address=IPv4Interface("10.2.0.11/24"), gateway=lans["agent2"].ip),
    )
    agents = tuple(AgentPlace(name=node.name, switch=node.name) for node in nodes)
    return Topology(name="routed-wan", switches=(), hosts=hosts, agents=agents, wires=wires, nodes=tuple(nodes))


def _wan_addresses(number: int) -> tuple[tuple[str, IPv4Interface], ...]:
    return ("wan0", IPv4Interface(f"192.0.2.{number}/30")), ("wan1", IPv4Interface(f"198.51.100.{number}/30"))


def line(path1: PathOptions, _path2: PathOptions) -> Topology:
    """Two sites with one path."""
    return _edges(("core1",), _path("core1", "wan0", path1.shape()), "line")


def overlay(path1: PathOptions, _path2: PathOptions) -> Topology:
    """Two sites joined by a tunnel between their nodes."""
    plain = _edges((), (Wire(a=End(switch="edge1", port="wan0"), b=End(switch="edge2", port="wan0"), shape=path1.shape()),), "overlay")
    switches = (
        replace(switch, underlay=("wan0", IPv4Interface(f"192.0.2.{number}/30"))) for number, switch in enumerate(plain.switches, 1)
    )
    return replace(plain, switches=tuple(switches), hosts=tuple(replace(host, mtu=OVERLAY_MTU) for host in plain.hosts))


def geni(path1: PathOptions, path2: PathOptions) -> Topology:
    """figure8, named after the national network of the thesis."""
    wires = (*_path("core1", "wan0", path1.shape()), *_path("core2", "wan1", path2.shape()))
    return _edges(("core1", "core2"), wires, "geni")


def balance(path1: PathOptions, path2: PathOptions) -> Topology:
    """One host with five uplinks: the second uplink has the options of path2, the others of path1."""
    legs = tuple((f"leg{i}", IPv4Interface(f"192.0.2.{4 * i + 1}/30")) for i in range(UPLINKS))
    wires = tuple(
        Wire(
            a=End(switch="edge1", port=f"wan{i}"),
            b=End(switch="router", port=port),
            shape=(path2 if i == 1 else path1).shape(),
            parallel=True,
        )
        for i, (port, _) in enumerate(legs)
    )
    return Topology(
        name="balance",
        switches=(Switch(name="edge1", site="home"),),
        hosts=(Host(name="client", switch="edge1", address=IPv4Interface("10.0.0.11/24"), gateway=IPv4Address("10.0.0.1")),),
        agents=(),
        wires=wires,
        routers=(Router(name="router", address=IPv4Interface("198.51.100.10/32"), legs=legs),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """A named topology, the defaults of its two paths, and its folder of examples/, with the subfolder that is applied after it."""

    build: Callable[[PathOptions, PathOptions], Topology]
    path1: PathOptions
    path2: PathOptions
    example: str = "01-two-sites"
    variant: str = ""


BUILDERS: dict[str, Builder] = {
    "figure8": Builder(build=figure8, path1=PathOptions(), path2=PathOptions()),
    "pools": Builder(build=pools, path1=PathOptions(), path2=PathOptions()),
    "routed": Builder(build=routed, path1=PathOptions(), path2=PathOptions(), example="06-routed"),
    "routed-wan": Builder(build=routed_wan, path1=PathOptions(), path2=PathOptions(), example="08-routed-wan"),
    "overlay": Builder(build=overlay, path1=PathOptions(), path2=PathOptions(), variant="overlay"),
    "line": Builder(build=line, path1=PathOptions(), path2=PathOptions()),
    "geni": Builder(  # thesis table 20: 54 and 160 ms, 952 Mbit/s of UDP payload on each path, as on a gigabit wire
        build=geni,
        path1=PathOptions(rate_bps=1_000_000_000, rtt_us=54_000),
        path2=PathOptions(rate_bps=1_000_000_000, rtt_us=160_000),
    ),
    "balance": Builder(build=balance, path1=UPLINK, path2=UPLINK, example="04-balance"),
}


def builder(name: str) -> Builder:
    """Find the builder with this name; raise LabError with the known names otherwise."""
    if name not in BUILDERS:
        raise LabError(f"no topology {name!r}; there are {', '.join(sorted(BUILDERS))}")
    return BUILDERS[name]
