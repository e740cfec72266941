"""The resolved network. Built by resolver.py, read by documents, manifests and facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network

from sos_compile.model.formats.shared import FIRST_STREAM_PORT, STREAM_PORTS
from sos_compile.model.resources import Controller, Link, Peer, Pool, Service, Site, SitePair, Transport, Uplink
from sos_compile.model.site_card import CardAgent
from sos_compile.model.world import Allocations, Node, ObjectKey, Shadow

# Open vSwitch assigns port numbers up to 32767 by itself (ovs-vswitchd.conf.db(5), Interface:ofport_request). SOS uses higher numbers, so
# that no pod's port is ever renumbered to free a requested number.
UPLINK_OFPORT = 33001
LAN_OFPORT = 33101  # above the numbers of uplinks, 64 at most
AGENT_OFPORT = 34001
TUNNEL_OFPORT = 35000
REJECT_OFPORT = 33900  # between the numbers of LAN ports, 64 at most, and of agents
MAX_NODE_NUMBER = 4095
MAX_REJECTS = 4096  # maximum number of a node's base entries for `require`, out of 16,384 base entries
MAX_SLOTS = 128  # maximum number of pools; a node has at most 256 agent ports (spec/node-config.md clause 6)


@dataclass(frozen=True)
class NodePlace:
    """A node in its site. `number` is unique over all sites; `dpid` is 16 hex digits."""

    node: Node
    site: str
    number: int
    dpid: str


@dataclass(frozen=True)
class AgentPlace:
    """An agent: `id` is 32 hex digits (spec/README.md clause 6), `slot` its index on the node."""

    pool: str
    node: str
    site: str
    id: str
    address: IPv4Address
    slot: int
    more_addresses: tuple[IPv4Address, ...] = ()
    """Addresses of the second path and of further paths, at a site without a bridge."""

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """One address for each path."""
        return (self.address, *self.more_addresses)

    @property
    def first_stream_port(self) -> int:
        """The first stream port of an agent on routes. It depends on the slot, as agents of several pools share a node's address."""
        return FIRST_STREAM_PORT + self.slot * STREAM_PORTS

    @property
    def mac(self) -> str:
        """A locally administered MAC address; never a path MAC or the discovery MAC, as its third byte has the top bit set (node-config.md
        clause 15)."""
        tail = bytes.fromhex(self.id[:8])
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x53, tail[0] | 0x80, *tail[1:]))

    @property
    def host_name(self) -> str:
        """Name of the port on the bridge."""
        return f"sosag{self.slot}"

    @property
    def host_port(self) -> int:
        """OpenFlow port number on the bridge."""
        return AGENT_OFPORT + self.slot


@dataclass(frozen=True)
class PlacedSite:
    """An accepted site with its number, nodes and agents, sorted by name."""

    site: Site
    id: int
    nodes: tuple[NodePlace, ...] = ()
    agents: tuple[AgentPlace, ...] = ()
    left_out: tuple[str, ...] = ()
    """Nodes that the selector matches but that belong to an older site."""
    node_problems: tuple[tuple[str, str], ...] = ()
    """Problems with nodes' addresses, by node name."""
    remote_agents: tuple[CardAgent, ...] = ()
    """Agents of a peer's site, as the peer announces them; `agents` and `nodes` are then empty."""
    machine: AgentPlace | None = None
    """The agent of a machine's site, which is also in `remote_agents`."""

    @property
    def remote(self) -> bool:
        """True for the site of a peer."""
        return self.site.remote


ClientPods = Mapping[str, tuple[IPv4Network, ...]]
"""Addresses of pods by node, as the minimum number of prefixes."""


@dataclass(frozen=True)
class PlacedService:
    """An accepted service: both sites known, prefixes and ports filled in, one controller, or "" between sites without bridges."""

    service: Service
    source: str
    source_prefixes: tuple[IPv4Network, ...]
    target: str
    target_prefixes: tuple[IPv4Network, ...]
    ports: tuple[tuple[int, int], ...]
    controller: str
    transport: Transport
    """Transport in force: the service's own, with the settings of its pair of sites."""
    client_pods: ClientPods | None = None
    """Addresses of the selected client pods by node, without nodes that have none; None for all hosts in `source_prefixes`."""

    @property
    def pair(self) -> frozenset[str]:
        """The two sites, in no order."""
        return frozenset((self.source, self.target))

    @property
    def unencrypted(self) -> bool:
        """True if the service requires encrypted streams and its pair of sites has none: all its connections are refused."""
        return "Encrypted" in self.service.require and self.transport.encryption != "TLS"

    def clients_at(self, node: str) -> tuple[IPv4Network, ...]:
        """Return the clients of an ingress agent on a node."""
        return self.source_prefixes if self.client_pods is None else self.client_pods.get(node, ())


@dataclass(frozen=True)
class PlacedBalance:
    """An accepted service with spec.balance: one host at a site, the site's switch, and the weighted uplinks that it may use."""

    service: Service
    site: str
    client: IPv4Address
    dpid: str
    uplinks: tuple[tuple[Uplink, int], ...]
    ports: tuple[tuple[int, int], ...]
    controller: str


@dataclass(frozen=True)
class Network:
    """Accepted objects by name; `services` and `balances` in the order in which they are tried."""

    controllers: Mapping[str, Controller]
    sites: Mapping[str, PlacedSite]
    pools: Mapping[str, Pool]
    services: tuple[PlacedService, ...]
    links: tuple[Link, ...]
    allocations: Allocations
    balances: tuple[PlacedBalance, ...] = ()
    peers: Mapping[str, Peer] = field(default_factory=dict)
    pairs: Mapping[frozenset[str], SitePair] = field(default_factory=dict)
    """Pairs of this cluster's sites whose transport is declared."""
    offered: Mapping[str, tuple[PlacedService, ...]] = field(default_factory=dict)
    """Accepted services with a peer's sites, in force or not, by SosPeer: in the order of their ids."""
    shadows: Mapping[ObjectKey, Shadow] = field(default_factory=dict)
    shares: Mapping[str, tuple[tuple[str, int, bool], ...]] = field(default_factory=dict)
    """Session quotas of namespaces at each site (session_quotas)."""
    rejects: Mapping[str, tuple[tuple[PlacedService, tuple[str, ...]], ...]] = field(default_factory=dict)
    """Services with requirements, by their clients' site, with the matches of their rejected connections (rejects.build)."""

    @cached_property
    def services_of(self) -> Mapping[str, tuple[PlacedService, ...]]:
        """Services by the name of either of their sites, in the order in which they are tried."""
        found: dict[str, list[PlacedService]] = {name: [] for name in self.sites}
        for service in self.services:
            found[service.source].append(service)
            found[service.target].append(service)
        return {name: tuple(services) for name, services in found.items()}

    def sites_of(self, controller: str) -> list[PlacedSite]:
        """Return the sites that connect to a controller, by name."""
        return [placed for _, placed in sorted(self.sites.items()) if controller in placed.site.controllers and not placed.site.routed]

    def mesh_of(self, placed: PlacedSite) -> list[NodePlace]:
        """Return the nodes to which each node of an Overlay site has tunnels: all nodes of Overlay sites that share a controller."""
        if placed.site.wan != "Overlay":
            return []
        joined = [
            other
            for other in self.sites.values()
            if other.site.wan == "Overlay" and set(other.site.controllers) & set(placed.site.controllers)
        ]
        return sorted((node for other in joined for node in other.nodes), key=lambda node: node.number)
