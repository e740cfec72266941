"""Admitted objects as frozen, typed values; names of fields contain units. Relations between objects are not checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any, Literal

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

    `policies`: Respect if a pod's connections are accelerated only where its plain path to the server is open (docs/adr/0059).
    """

    type: Literal["Pods", "Routed"]
    interface: str | None = None
    policies: Literal["Respect", "Ignore"] = "Respect"


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
    """One end of a service as declared: site or prefixes may be omitted, but not both. `pods`: None for all hosts."""

    site: str | None
    prefixes: tuple[IPv4Network, ...]
    pods: PodSelection | None = None


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


def parse(obj: Json, file: str | None) -> Parsed:
    """Return the typed form of an admitted object (defaults filled in, schema and rules satisfied)."""
    parsed: Parsed = _PARSERS[obj["kind"]](_origin(obj, file), obj["spec"])
    return parsed


def _origin(obj: Json, file: str | None) -> Origin:
    meta = obj["metadata"]
    key = ObjectKey(obj["kind"], meta.get("namespace") or "", meta["name"])
    labels = tuple(sorted((meta.get("labels") or {}).items()))
    return Origin(key, file, meta.get("uid") or "", str(meta.get("creationTimestamp") or ""), labels)


def _networks(texts: list[str]) -> tuple[IPv4Network, ...]:
    return tuple(sorted(IPv4Network(text) for text in texts))


def _site(origin: Origin, spec: Json) -> Site:
    network, wan = spec["network"], spec["wan"]
    listed = [IPv4Network(text) for text in spec.get("prefixes", [])]
    first = listed[0] if listed else None
    return Site(
        origin=origin,
        site_id=spec.get("siteID"),
        selector=spec.get("nodeSelector"),
        switches=tuple(sorted((item["dpid"], item.get("name", item["dpid"])) for item in spec.get("datapaths", []))),
        prefixes=tuple(sorted(listed)),
        wan=wan["type"],
        uplinks=tuple(_uplink(item) for item in wan.get("uplinks", [])),
        gateway=IPv4Interface(spec["gateway"]) if "gateway" in spec else None,
        subnet=IPv4Network(network["subnet"]) if "subnet" in network else first,
        mtu=network.get("mtu", DEFAULT_MTU - (OVERLAY_OVERHEAD_BYTES if wan["type"] == "Overlay" else 0)),
        ipam=network.get("ipam"),
        routes=tuple((item["to"], item.get("via")) for item in network.get("routes", [])),
        agent_range=IPv4Network(network["agentAddresses"]) if "agentAddresses" in network else first,
        rewrite=spec["datapath"]["rewrite"],
        datapath_type=spec["datapath"]["type"],
        namespaces=spec["services"]["namespaces"],
        services_selector=spec["services"].get("selector"),
        rules=tuple(_rule(item) for item in spec["services"].get("rules", [])),
        controllers=() if wan["type"] == "Routed" else tuple(item["name"] for item in spec["controllers"]),
        intake=_intake(spec["intake"]) if "intake" in spec else None,
        wan_addresses={item["node"]: tuple(map(IPv4Address, item["addresses"])) for item in wan.get("addresses", [])},
        inbound=wan.get("inbound", "Open"),
    )


def _intake(item: Json) -> Intake:
    return Intake(item["type"], item.get("interface"), item.get("networkPolicies", "Respect"))


def _rule(item: Json) -> Rule:
    return Rule(
        namespaces=frozenset(item.get("namespaces", [])),
        selector=item.get("selector"),
        prefixes=_networks(item.get("prefixes", [])),
        ports=_ports(item.get("ports", [])) or ALL_PORTS,
        band=item["band"],
        sessions_percent=item.get("sessionsPercent"),
        modes=frozenset(item["modes"]) if item.get("modes") else None,
        transport=frozenset(item["transport"]) if "transport" in item else None,
        own_pods=item.get("pods") == "OwnNamespace",
    )


def _ports(items: list[Json]) -> tuple[tuple[int, int], ...]:
    return merge_ports(tuple((item["port"], item["endPort"] if "endPort" in item else item["port"]) for item in items))


def _uplink(item: Json) -> Uplink:
    if "address" not in item:
        return Uplink(item["name"], item["base"])
    return Uplink(item["name"], item["base"], IPv4Interface(item["address"]), IPv4Address(item["gateway"]))


def _pool(origin: Origin, spec: Json) -> Pool:
    limits = spec["limits"]
    return Pool(
        origin=origin,
        selector=spec["siteSelector"],
        attach=spec["attach"],
        sessions=limits["sessions"],
        memory_mib=limits["memoryMiB"],
        session_memory_mib=limits["sessionMemoryMiB"],
        drain_s=spec["drainSeconds"],
        image=spec.get("image"),
        resources=spec.get("resources", {}),
        node_selector=spec.get("nodeSelector", {}),
    )


def _service(origin: Origin, spec: Json) -> Service:
    transport, paths = spec["transport"], spec["paths"]
    return Service(
        origin=origin,
        source=End(spec["from"].get("site"), _networks(spec["from"].get("prefixes", [])), _pod_selection(spec["from"].get("pods"))),
        target=End(spec["to"].get("site"), _networks(spec["to"].get("prefixes", []))),
        ports=_ports(spec.get("ports", [])),
        mode=spec["mode"],
        percent=spec["percent"],
        setup="Reactive" if spec["setup"] == "Auto" else spec["setup"],
        accept=spec.get("accept", "Learned"),
        priority=spec["priority"],
        transport=Transport(
            streams=_streams(transport),
            block_bytes=transport.get("blockKiB", 0) * 1024,
            queue_bytes=transport.get("queueMiB", 0) * 1024 * 1024,
            congestion_control=transport["congestionControl"],
            encryption=transport.get("encryption", "None"),
            compression=transport.get("compression", "None"),
            protocol=transport.get("protocol", "TCP"),
        ),
        paths_mode="Shortest" if paths["mode"] == "Auto" else paths["mode"],
        paths_max=1 if paths["mode"] in ("Auto", "Shortest") else paths["max"],
        controller=spec.get("controller", {}).get("name"),
        balance=_balance(spec["balance"]) if "balance" in spec else None,
        require=frozenset(spec.get("require", [])),
        reactive=spec["setup"] == "Reactive",
        all_paths=paths["mode"] == "Auto",
        connect_from=spec["to"].get("source", "Preserve"),
        proxy_protocol=spec["to"].get("proxyProtocol", "None"),
    )


def _pod_selection(block: Json | None) -> PodSelection | None:
    return None if block is None else PodSelection(block.get("selector", {}), block.get("namespaceSelector"))


def _streams(transport: Json) -> int:
    return 0 if transport["streams"] == "Auto" else int(transport["streams"])


def _pair_transport(block: Json) -> PairTransport:
    return PairTransport(_streams(block), block["congestionControl"], block["encryption"], block["protocol"])


def _balance(block: Json) -> Balance:
    return Balance(block["at"], tuple((item["name"], item["weight"]) for item in block.get("uplinks", [])))


def _controller(origin: Origin, spec: Json) -> Controller:
    return Controller(
        origin=origin,
        managed=spec["type"] == "Managed",
        endpoints=tuple(spec.get("external", {}).get("endpoints", [])),
        service_type=spec["service"]["type"],
        image=spec.get("image"),
        resources=spec.get("resources", {}),
        placement={name: spec[name] for name in ("nodeSelector", "tolerations", "affinity") if spec.get(name)},
    )


def _link(origin: Origin, spec: Json) -> Link | SitePair:
    if "uplink" not in spec["a"]:
        return SitePair(origin, (spec["a"]["site"], spec["b"]["site"]), _pair_transport(spec["transport"]))
    a, b = ((spec[end]["site"], spec[end]["uplink"]) for end in ("a", "b"))
    return Link(origin, a, b, spec["cost"], spec.get("capacityMbps"))


def _peer(origin: Origin, spec: Json) -> Peer:
    ends = (text.rpartition(":") for text in spec["endpoints"])
    endpoints = tuple((address, int(port)) for address, _, port in ends)
    machine = _machine(origin, spec["machine"]) if "machine" in spec else None
    transport = _pair_transport(spec["transport"]) if "transport" in spec else None
    return Peer(origin, endpoints, _networks(spec["prefixes"]), transport, machine)


def _machine(origin: Origin, spec: Json) -> Machine:
    pool = {"siteSelector": {}, "attach": "Host", "limits": spec["limits"], "drainSeconds": spec["drainSeconds"]}
    return Machine(spec["siteID"], tuple(spec["addresses"]), spec["interface"], spec["inbound"], _pool(origin, pool))


_PARSERS: dict[str, Any] = {
    "SosSite": _site,
    "SosAgent": _pool,
    "SosService": _service,
    "SosController": _controller,
    "SosLink": _link,
    "SosPeer": _peer,
}


def merge_ports(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges sorted, with overlapping and adjacent ranges joined: this saves switch entries and avoids duplicates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def selects(selector: Json, labels: dict[str, str]) -> bool:
    """Return whether a label selector matches labels, as in Kubernetes (an empty selector matches everything)."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_expression_holds(each, labels) for each in selector.get("matchExpressions", []))


def _expression_holds(expression: Json, labels: dict[str, str]) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None


def address_text(address: IPv4Address | None) -> str | None:
    """Return an address as text, None if there is no address."""
    return None if address is None else str(address)
