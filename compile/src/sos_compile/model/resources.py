"""Admitted objects as frozen, typed values; names of fields contain units. Relations between objects are not checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Literal

from sos_compile.model.world import Json, ObjectKey

ALL_PORTS = ((1, 65535),)
OVERLAY_OVERHEAD_BYTES = 50  # VXLAN over IPv4: 14 inner Ethernet + 8 VXLAN + 8 UDP + 20 IPv4 (RFC 7348, 5)
DEFAULT_MTU = 1500


@dataclass(frozen=True)
class Origin:
    """Source of an object. `created` is its creationTimestamp ("" in files): of two conflicting objects the older wins, then the first by
    name."""

    key: ObjectKey
    file: str | None
    uid: str
    created: str
    labels: tuple[tuple[str, str], ...]

    @property
    def age(self) -> tuple[str, str, str]:
        """Sort key: oldest first."""
        return (self.created, self.key.namespace, self.key.name)

    @property
    def name(self) -> str:
        """The object's name."""
        return self.key.name


@dataclass(frozen=True)
class Uplink:
    """A WAN interface of every node of a site; `address` and `gateway` are both set or neither."""

    name: str
    base: bool
    address: IPv4Interface | None = None
    gateway: IPv4Address | None = None


@dataclass(frozen=True)
class Bond:
    """Base uplinks as one logical uplink."""

    mode: Literal["ActiveBackup", "BalanceTCP"]
    up_delay_s: int


@dataclass(frozen=True)
class LanInterface:
    """An interface of a node that leads to hosts; `node` is "" for every node of the site."""

    name: str
    node: str


@dataclass(frozen=True)
class Rule:
    """Permissions of some namespaces' services at a site. Empty `prefixes`, and `modes` or `transport` of None: no restriction."""

    namespaces: frozenset[str] = frozenset()
    selector: Json | None = None
    prefixes: tuple[IPv4Network, ...] = ()
    ports: tuple[tuple[int, int], ...] = ALL_PORTS
    band: int = 100
    sessions_percent: int | None = None
    modes: frozenset[str] | None = None
    transport: frozenset[str] | None = None
    own_pods: bool = False
    """True if services cover client pods of their own namespace only, at a site with intake Pods."""


@dataclass(frozen=True)
class Intake:
    """Interception of connections at a site without a bridge: Pods, or Routed with the nodes' interface towards the hosts.

    `virtual_address`: gateway of the hosts that a program moves between the site's nodes (docs/adr/0068).
    `policies`: Respect if a pod's connections are accelerated only where its plain path to the server is open (docs/adr/0059).
    """

    type: Literal["Pods", "Routed"]
    interface: str | None = None
    policies: Literal["Respect", "Ignore"] = "Respect"
    virtual_address: IPv4Address | None = None


@dataclass(frozen=True)
class Site:
    """SosSite. `selector` and `services_selector` are label selectors as in the object; only transit sites may have no `subnet`."""

    origin: Origin
    site_id: int | None
    selector: Json | None
    switches: tuple[tuple[str, str], ...]
    prefixes: tuple[IPv4Network, ...]
    wan: str
    uplinks: tuple[Uplink, ...]
    gateway: IPv4Interface | None
    subnet: IPv4Network | None
    mtu: int
    ipam: Json | None
    routes: tuple[tuple[str, str | None], ...]
    agent_range: IPv4Network | None
    rewrite: Literal["Transparent", "OpenFlow"]
    datapath_type: str
    namespaces: str
    services_selector: Json | None
    rules: tuple[Rule, ...]
    controllers: tuple[str, ...]
    intake: Intake | None = None
    peer: str = ""
    """Name of the SosPeer that announces the site; "" for a site of this cluster."""
    wan_addresses: Mapping[str, tuple[IPv4Address, ...]] = field(default_factory=dict)
    """Addresses of a site without a bridge for each path, by node; a node that is not listed has its InternalIP alone."""
    inbound: Literal["Open", "Blocked"] = "Open"
    """Blocked: no agent of another site can open a connection to agents of this site without a bridge."""
    lan: tuple[LanInterface, ...] = ()
    bond: Bond | None = None
    plain_switches: frozenset[str] = frozenset()
    """Datapath ids of the external switches that may connect without TLS to a controller that requires it."""
    link_ports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ports at which links are discovered, by the datapath id of an external switch; all ports of a switch that is not listed."""

    @property
    def name(self) -> str:
        """The site's name."""
        return self.origin.name

    @property
    def remote(self) -> bool:
        """True for the site of a peer."""
        return bool(self.peer)

    @property
    def transit(self) -> bool:
        """True if the site has switches only."""
        return not self.prefixes

    @property
    def routed(self) -> bool:
        """True if the site has no bridge: its agents use the nodes' own addresses and routes (docs/adr/0056)."""
        return self.intake is not None

    @property
    def translates(self) -> bool:
        """True if its switches may have to rewrite IP addresses, which breaks segmentation offload in user space."""
        return any(uplink.address is not None for uplink in self.uplinks)


@dataclass(frozen=True)
class Pool:
    """SosAgent: a pool of agents. `selector` selects sites, `node_selector` selects nodes of these sites."""

    origin: Origin
    selector: Json
    attach: str
    sessions: int
    memory_mib: int
    session_memory_mib: int
    drain_s: int
    image: str | None
    resources: Json
    node_selector: Json = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.origin.name


@dataclass(frozen=True)
class PodSelection:
    """Client pods of a service, as label selectors. `namespace_selector` is None for the service's own namespace."""

    selector: Json
    namespace_selector: Json | None


@dataclass(frozen=True)
class End:
    """One end of a service as declared: site or prefixes may be omitted, but not both. `pods`: None for all hosts. `service`: namespace and
    name of a Kubernetes Service at the site; if it is set, there are no prefixes."""

    site: str | None
    prefixes: tuple[IPv4Network, ...]
    pods: PodSelection | None = None
    service: tuple[str, str] | None = None


@dataclass(frozen=True)
class Transport:
    """Transport settings of streams; 0 = the agents decide."""

    streams: int
    block_bytes: int
    queue_bytes: int
    congestion_control: str
    encryption: str
    compression: str
    protocol: str

    @property
    def named(self) -> frozenset[str]:
        """The fields that differ from their defaults."""
        said = {
            "streams": self.streams != 0,
            "blockKiB": self.block_bytes != 0,
            "queueMiB": self.queue_bytes != 0,
            "congestionControl": self.congestion_control != "Auto",
            "encryption": self.encryption != "None",
            "compression": self.compression != "None",
            "protocol": self.protocol != "TCP",
        }
        return frozenset(name for name, there in said.items() if there)


@dataclass(frozen=True)
class PairTransport:
    """Settings of all streams between two sites, declared for the pair (docs/adr/0061); 0 streams = the agents decide."""

    streams: int
    congestion_control: str
    encryption: str
    protocol: str

    def applied(self, own: Transport) -> Transport:
        """Return a service's transport with these settings in place of its own."""
        return replace(
            own, streams=self.streams, congestion_control=self.congestion_control, encryption=self.encryption, protocol=self.protocol
        )


PAIR_FIELDS = ("congestionControl", "encryption", "protocol", "streams")
"""Fields of a service's transport that apply to all services between its two sites."""


@dataclass(frozen=True)
class Balance:
    """Spreading over uplinks. `uplinks`: (name, weight); if empty, all uplinks with an address, with equal weights."""

    at: str
    uplinks: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Service:
    """SosService. No `ports`: every port that the sites' rules allow."""

    origin: Origin
    source: End
    target: End
    ports: tuple[tuple[int, int], ...]
    mode: str
    percent: int
    setup: str
    accept: str
    priority: int
    transport: Transport
    paths_mode: str
    paths_max: int
    controller: str | None = None
    balance: Balance | None = None
    require: frozenset[str] = frozenset()
    reactive: bool = False
    """True if spec.setup is Reactive; `setup` is Reactive for Auto, too."""
    all_paths: bool = False
    """True if spec.paths.mode is Auto: all paths between sites without bridges, Shortest between other sites."""
    connect_from: Literal["Preserve", "Agent"] = "Preserve"
    """Source address of the egress agent's connections to the servers."""
    proxy_protocol: Literal["None", "V2"] = "None"
    """Header that names the client to the servers; only with `connect_from` Agent (the schema requires this)."""

    @property
    def id(self) -> str:
        """`namespace/name`, the service's name in every document."""
        return f"{self.origin.key.namespace}/{self.origin.name}"


@dataclass(frozen=True)
class Controller:
    """SosController. `placement`: nodeSelector, tolerations and affinity of its pod, as far as they are set."""

    origin: Origin
    managed: bool
    endpoints: tuple[str, ...]
    service_type: str
    image: str | None
    resources: Json
    placement: Json = field(default_factory=dict)
    tls: Literal["Required", "Disabled"] = "Disabled"
    replicas: int = 1

    @property
    def name(self) -> str:
        """The controller's name."""
        return self.origin.name


@dataclass(frozen=True)
class Link:
    """SosLink: ends as (site, uplink)."""

    origin: Origin
    a: tuple[str, str]
    b: tuple[str, str]
    cost: int
    capacity_mbps: int | None


@dataclass(frozen=True)
class SitePair:
    """SosLink without uplinks: two sites, and the transport of all streams between them."""

    origin: Origin
    sites: tuple[str, str]
    transport: PairTransport

    @property
    def key(self) -> frozenset[str]:
        """The two sites, in no order."""
        return frozenset(self.sites)


@dataclass(frozen=True)
class Machine:
    """A machine outside Kubernetes with one agent, which this cluster configures (spec/card.md section 5).

    `addresses`: of the agent's streams, one for each path. `interface`: towards the hosts of the machine's site.
    """

    site_id: int
    addresses: tuple[str, ...]
    interface: str
    inbound: Literal["Open", "Blocked"]
    pool: Pool
    """The limits of the agent."""


@dataclass(frozen=True)
class Peer:
    """SosPeer: another cluster, or a machine. `endpoints`: (address, port) of its agents for the first contact. `prefixes`: addresses that
    its sites may have; a machine's site has all of them."""

    origin: Origin
    endpoints: tuple[tuple[str, int], ...]
    prefixes: tuple[IPv4Network, ...]
    transport: PairTransport | None = None
    machine: Machine | None = None

    @property
    def name(self) -> str:
        """The peer's name."""
        return self.origin.name


Parsed = Site | Pool | Service | Controller | Link | SitePair | Peer
