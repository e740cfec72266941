"""Models of the three documents of spec/controller-config.md and spec/node-config.md. The compiler builds its documents from these models,
and spec/*.schema.json is generated from them, so that specification, schema and documents cannot differ."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from sos_compile.model.scalars import AgentId, Label, Name, Port, SiteId
from sos_compile.model.world import Json

DISCOVERY_ADDRESS = "198.18.255.254"  # spec/beacon.md clause 1; from the block for benchmarks (RFC 2544), which is not routed
DISCOVERY_MAC = "02:53:4f:53:00:01"
BEACON_PORT = 9875
ORDER_PORT = 9876
REDIRECT_PORT = 9877  # TCP port at which agents of sites that rewrite accept clients
FIRST_STREAM_PORT = 10000
STREAM_PORTS = 8  # one per path label (spec/node-config.md clause 9)

Device = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$")]
PortName = Annotated[str, Field(pattern=r"^[!-~]{1,15}$")]
Prefix = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$")]
Address = Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){3}$")]
Mac = Annotated[str, Field(pattern=r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")]
Dpid = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
OfPort = Annotated[int, Field(ge=1, le=65279)]
Mtu = Annotated[int, Field(ge=576, le=9216)]
Seconds = Annotated[int, Field(ge=1, le=3600)]
MAX_GENERATION = 2**53 - 1  # the largest integer that every JSON reader accepts
Generation = Annotated[int, Field(ge=1, le=MAX_GENERATION)]
Prefixes = Annotated[list[Prefix], Field(max_length=64)]
SomePrefixes = Annotated[list[Prefix], Field(min_length=1, max_length=64)]


OPTIONAL: JsonDict = {"optional": True}  # marks a field that may be missing, unlike every other field; removed from the published schema


class Model(BaseModel):
    """Unknown fields are errors; names are camelCase in JSON."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel, populate_by_name=True)


class Discovery(Model):
    """Destination of beacons and orders, and of clients at sites that rewrite addresses."""

    address: Address = DISCOVERY_ADDRESS
    mac: Mac = DISCOVERY_MAC
    beacon_port: Port = BEACON_PORT
    order_port: Port = ORDER_PORT
    redirect_port: Port = REDIRECT_PORT


class ControllerDiscovery(Discovery):
    """Discovery, and the expiry times of beacons and links (seconds)."""

    beacon_expiry_seconds: Seconds = 4
    probe_interval_seconds: Seconds = 1
    link_expiry_seconds: Seconds = 3


class PortRange(Model):
    """TCP ports, both ends included."""

    first: Port
    last: Port


class Transport(Model):
    """Transport settings of streams; 0 = the agent decides."""

    streams: Annotated[int, Field(ge=0, le=256)]
    block_bytes: Annotated[int, Field(ge=0, le=262_144)]
    queue_bytes: Annotated[int, Field(ge=0, le=2**32 - 1)]
    congestion_control: Literal["Auto", "Cubic", "BBR", "Reno"]
    # omitted for TCP: programs that do not know the field refuse documents with it
    protocol: Annotated[Literal["TCP", "QUIC"], Field(exclude_if=lambda value: value == "TCP", json_schema_extra=OPTIONAL)] = "TCP"


UNLESS_NONE = Field(exclude_if=lambda value: value == "None", json_schema_extra=OPTIONAL)
UNLESS_ABSENT = Field(exclude_if=lambda value: value is None, json_schema_extra=OPTIONAL)


class AgentTransport(Transport):
    """Transport settings of streams for agents."""

    # omitted if None: programs that do not know the field refuse documents with it
    encryption: Annotated[Literal["None", "TLS"], UNLESS_NONE] = "None"
    compression: Annotated[Literal["None", "Adaptive"], UNLESS_NONE] = "None"


Ports = Annotated[list[PortRange], Field(min_length=1, max_length=64)]


Tls = Literal["Required", "Disabled"]


class ControllerIdentity(Model):
    """The controller that the configuration belongs to."""

    name: Label
    id: Annotated[int, Field(ge=1, le=0xFEFF)]
    # omitted if Disabled: programs that do not know the field refuse documents with it
    tls: Annotated[Tls, Field(exclude_if=lambda value: value == "Disabled", json_schema_extra=OPTIONAL)] = "Disabled"
    replicas: Annotated[int, Field(ge=1, le=2, exclude_if=lambda value: value == 1, json_schema_extra=OPTIONAL)] = 1


class DatapathEntry(Model):
    """A switch of a site."""

    dpid: Dpid
    name: Name
    forwarding: Literal["Node", "Controller"]
    # omitted if empty or not needed: programs that do not know the field refuse documents with it
    labelled_ports: Annotated[list[Device], Field(max_length=32, exclude_if=lambda ports: not ports, json_schema_extra=OPTIONAL)] = []
    # omitted if links are discovered at all ports, likewise
    link_ports: Annotated[
        list[PortName] | None, Field(max_length=160, exclude_if=lambda ports: ports is None, json_schema_extra=OPTIONAL)
    ] = None
    # omitted if there are none, likewise
    tunnel: Annotated[int, Field(ge=0, le=4095, exclude_if=lambda number: not number, json_schema_extra=OPTIONAL)] = 0
    # omitted if Required, likewise
    tls: Annotated[Tls, Field(exclude_if=lambda value: value == "Required", json_schema_extra=OPTIONAL)] = "Required"


class AgentEntry(Model):
    """An expected agent."""

    id: AgentId
    pool: Label
    node: Label
    address: Address


class ShareEntry(Model):
    """Maximum percentage of a site's sessions for services of a namespace; `standing`: sessions of proactive services are not counted."""

    namespace: Label
    percent: Annotated[int, Field(ge=1, le=100)]
    standing: bool


class SiteEntry(Model):
    """A site as a controller sees it."""

    name: Label
    id: SiteId
    prefixes: Prefixes
    subnet: Prefix | None
    gateway: Address | None
    transit: bool
    mtu: Mtu
    rewrite: Literal["Transparent", "OpenFlow"]
    datapaths: Annotated[list[DatapathEntry], Field(max_length=4096)]
    agents: Annotated[list[AgentEntry], Field(max_length=4096)]
    # omitted if empty: programs that do not know the field refuse documents with it
    shares: Annotated[list[ShareEntry], Field(max_length=4096, exclude_if=lambda shares: not shares, json_schema_extra=OPTIONAL)] = []


class ServiceEnd(Model):
    """One end of a service."""

    site: Label
    prefixes: SomePrefixes


class Paths(Model):
    """Number and choice of paths through the network."""

    mode: Literal["Shortest", "Disjoint", "RoundRobin", "LeastLoaded", "Measured"]
    max: Annotated[int, Field(ge=1, le=8)]


class ServiceEntry(Model):
    """A service as a controller sees it."""

    id: Name
    priority: Annotated[int, Field(ge=0, le=65535)]
    mode: Literal["Accelerate", "Observe"]
    percent: Annotated[int, Field(ge=0, le=100)]
    setup: Literal["Reactive", "Proactive"]
    # omitted if Learned, which is the meaning of an absent field
    accept: Annotated[
        Literal["Learned", "Confirmed", "Early"], Field(exclude_if=lambda value: value == "Learned", json_schema_extra=OPTIONAL)
    ] = "Learned"
    # omitted if empty: programs that do not know the field refuse documents with it
    require: Annotated[
        list[Literal["Accelerated", "Encrypted"]], Field(max_length=2, exclude_if=lambda found: not found, json_schema_extra=OPTIONAL)
    ] = []
    source: Annotated[ServiceEnd, Field(alias="from")]
    target: Annotated[ServiceEnd, Field(alias="to")]
    ports: Ports
    transport: Transport
    paths: Paths


class BalanceUplink(Model):
    """An uplink over which connections are spread."""

    name: Device
    address: Address
    gateway: Address
    weight: Annotated[int, Field(ge=1, le=100)]


class BalanceEntry(Model):
    """A service that is spread over uplinks, as a controller sees it."""

    id: Name
    priority: Annotated[int, Field(ge=0, le=65535)]
    site: Label
    dpid: Dpid
    client: Address
    target: Annotated[SomePrefixes, Field(alias="to")]
    ports: Ports
    at: Literal["Controller", "Switch"]
    uplinks: Annotated[list[BalanceUplink], Field(min_length=1, max_length=32)]


class LinkEnd(Model):
    """An uplink of a site."""

    site: Label
    uplink: Device


class LinkEntry(Model):
    """A declared link; a capacity of 0 is unknown."""

    a: LinkEnd
    b: LinkEnd
    cost: Annotated[int, Field(ge=1, le=65535)]
    capacity_mbps: Annotated[int, Field(ge=0, le=1_000_000)]


class Document(Model):
    """Fields of every document."""

    version: Literal["v1alpha1"] = "v1alpha1"
    generation: Generation
    hash: Hash = "sha256:" + "0" * 64


class ControllerConfig(Document):
    """spec/controller-config.md."""

    controller: ControllerIdentity
    discovery: ControllerDiscovery = ControllerDiscovery()
    sites: Annotated[list[SiteEntry], Field(max_length=1024)]
    services: Annotated[list[ServiceEntry], Field(max_length=4096)]
    balances: Annotated[list[BalanceEntry], Field(max_length=4096)]
    links: Annotated[list[LinkEntry], Field(max_length=4096)]


class Bridge(Model):
    """The node's bridge."""

    name: Device
    datapath_id: Dpid
    datapath_type: Literal["Auto", "system", "netdev"]
    mtu: Mtu
    userspace_tso: bool


class UplinkPort(Model):
    """A WAN interface."""

    name: Device
    ofport: OfPort
    base: bool


class Bond(Model):
    """Base uplinks as one logical uplink."""

    mode: Literal["ActiveBackup", "BalanceTCP"]
    up_delay_seconds: Annotated[int, Field(ge=0, le=600)]


class LanPort(Model):
    """An interface that leads to hosts."""

    name: Device
    ofport: OfPort


class TunnelPort(Model):
    """A point-to-point VXLAN tunnel to another node."""

    name: Device
    ofport: OfPort
    remote: Address
    vni: Annotated[int, Field(ge=1, le=0xFFFFFF)]
    udp_port: Port
    base: bool


class AgentPort(Model):
    """The port of an agent."""

    name: Device
    ofport: OfPort


class RejectPort(Model):
    """A pair of devices: `name` on the bridge, and `peer`, at which the kernel answers TCP with a reset."""

    name: Device
    peer: Device
    ofport: OfPort


class BaseFlow(Model):
    """One entry of the base table, in the syntax of ovs-ofctl(8)."""

    table: Annotated[int, Field(ge=0, le=253)]
    priority: Annotated[int, Field(ge=0, le=65535)]
    match: Annotated[str, Field(max_length=2048)]
    actions: Annotated[str, Field(min_length=1, max_length=2048)]


class FlowGroup(Model):
    """Entries of the base table that differ in their matches only (clause 47)."""

    table: Annotated[int, Field(ge=0, le=253)]
    priority: Annotated[int, Field(ge=0, le=65535)]
    matches: Annotated[list[Annotated[str, Field(max_length=2048)]], Field(min_length=1, max_length=16_384)]
    actions: Annotated[str, Field(min_length=1, max_length=2048)]


NodeNumber = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}$")]


class Mesh(Model):
    """Nodes with tunnels to one another, by number, with the node itself (clause 47)."""

    udp_port: Port
    nodes: Annotated[dict[NodeNumber, Address], Field(min_length=1, max_length=1025)]


class NodeConfig(Document):
    """spec/node-config.md section 1."""

    node: Label
    site: Label
    site_id: Annotated[SiteId, Field(alias="siteID")]
    state: Literal["Present", "Absent"]
    bridge: Bridge
    uplinks: Annotated[list[UplinkPort], Field(max_length=64)]
    tunnels: Annotated[list[TunnelPort], Field(max_length=1024)]
    agent_ports: Annotated[list[AgentPort], Field(max_length=256)]
    controllers: Annotated[list[Annotated[str, Field(pattern=r"^(tcp|ssl):[0-9.]+:[0-9]{1,5}$")]], Field(max_length=16)]
    base_flows: Annotated[list[BaseFlow], Field(max_length=16_384)]
    # omitted if empty: programs that do not know the field refuse documents with it
    lan: Annotated[list[LanPort], Field(max_length=64, exclude_if=lambda ports: not ports, json_schema_extra=OPTIONAL)] = []
    # omitted if there is none, likewise
    bond: Annotated[Bond | None, Field(exclude_if=lambda bond: bond is None, json_schema_extra=OPTIONAL)] = None
    # with parts only (clauses 46 and 47)
    number: Annotated[int | None, Field(ge=1, le=4095, exclude_if=lambda number: number is None, json_schema_extra=OPTIONAL)] = None
    mesh: Annotated[Mesh | None, UNLESS_ABSENT] = None
    flow_groups: Annotated[list[FlowGroup], Field(max_length=16_384, exclude_if=lambda groups: not groups, json_schema_extra=OPTIONAL)] = []
    # omitted if no service requires anything: programs that do not know the field refuse documents with it
    reject_port: Annotated[RejectPort | None, Field(exclude_if=lambda port: port is None, json_schema_extra=OPTIONAL)] = None


class AgentSite(Model):
    """The agent's own site."""

    name: Label
    id: SiteId
    prefixes: SomePrefixes
    rewrite: Literal["Transparent", "OpenFlow"]


class Interface(Model):
    """The agent's port."""

    name: Device
    address: Prefix
    mac: Mac
    mtu: Mtu
    gateway: Address | None
    host_name: Device
    host_port: OfPort


class StreamPorts(Model):
    """Ports that receive streams: first + path label."""

    first: Port
    count: Annotated[int, Field(ge=1, le=8)]


class RoutedIntake(Model):
    """Hosts' routes lead to the agent's machine."""

    type: Literal["Routed"] = "Routed"
    interface: Device
    virtual_address: Annotated[Address | None, UNLESS_ABSENT] = None


class PodsIntake(Model):
    """The agent opens its sockets inside the network namespaces of its node's pods."""

    type: Literal["Pods"] = "Pods"
    network_policies: Annotated[
        Literal["Respect", "Ignore"], Field(exclude_if=lambda value: value == "Ignore", json_schema_extra=OPTIONAL)
    ] = "Ignore"


class InterceptedPod(Model):
    """A pod of the agent's node."""

    name: Name
    address: Address


Addresses = Annotated[list[Address], Field(max_length=STREAM_PORTS, exclude_if=lambda found: not found, json_schema_extra=OPTIONAL)]


class PeerAgent(Model):
    """An agent of a peer site."""

    id: AgentId
    node: Label
    address: Address
    # Addresses by path label, if an agent without a bridge has several addresses; the first one equals `address`
    addresses: Addresses = []
    # Servers to which only this agent connects: the pods on the node of an agent without a bridge (clause 37)
    prefixes: Annotated[list[Prefix], Field(max_length=64, exclude_if=lambda found: not found, json_schema_extra=OPTIONAL)] = []
    first_stream_port: Port


class Peer(Model):
    """A site that shares a service with the agent's site."""

    site: Label
    site_id: Annotated[SiteId, Field(alias="siteID")]
    prefixes: SomePrefixes
    # Agent that opens the streams. ByID: the agent with the lower id; Always: this agent; Never: the peer's agent. Omitted if ByID
    dial: Annotated[Literal["ByID", "Always", "Never"], Field(exclude_if=lambda value: value == "ByID", json_schema_extra=OPTIONAL)] = (
        "ByID"
    )
    agents: Annotated[list[PeerAgent], Field(max_length=1024)]


MAX_PODS = 512
"""Maximum number of pods of a node that its agent intercepts."""
ClientPrefixes = Annotated[list[Prefix], Field(min_length=1, max_length=MAX_PODS)]


class AgentService(Model):
    """A service as one of its two sites sees it."""

    id: Name
    role: Literal["Ingress", "Egress"]
    peer: Label
    setup: Literal["Reactive", "Proactive"]
    # omitted if Early, which is the meaning of an absent field: agents of earlier versions refuse documents with it
    accept: Annotated[
        Literal["Learned", "Confirmed", "Early"], Field(exclude_if=lambda value: value == "Early", json_schema_extra=OPTIONAL)
    ] = "Early"
    # Source address of connections to servers; omitted if it is the client's address
    connect_from: Annotated[
        Literal["Preserve", "Agent"],
        Field(alias="source", exclude_if=lambda value: value == "Preserve", json_schema_extra=OPTIONAL),
    ] = "Preserve"
    # Header of connections to servers, with the agent's address as source; omitted if there is none
    proxy_protocol: Annotated[Literal["None", "V2"], Field(exclude_if=lambda value: value == "None", json_schema_extra=OPTIONAL)] = "None"
    source: Annotated[ClientPrefixes, Field(alias="from")]
    target: Annotated[SomePrefixes, Field(alias="to")]
    ports: Ports
    transport: AgentTransport
    # True if its connections may use encrypted streams only; omitted if False
    encrypted_only: Annotated[bool, Field(exclude_if=lambda value: not value, json_schema_extra=OPTIONAL)] = False
    labels: Annotated[int, Field(ge=1, le=STREAM_PORTS)]


class SessionShare(Model):
    """Maximum percentage of the agent's sessions for services of a namespace."""

    namespace: Label
    percent: Annotated[int, Field(ge=1, le=100)]


class Limits(Model):
    """Limits of one agent."""

    sessions: Annotated[int, Field(ge=1, le=65_536)]
    memory_mib: Annotated[int, Field(ge=64, le=1_048_576, alias="memoryMiB")]
    session_memory_mib: Annotated[int, Field(ge=1, le=4096, alias="sessionMemoryMiB")]


class AgentConfig(Document):
    """spec/node-config.md section 3."""

    node: Label
    pool: Label
    agent_id: AgentId
    site: AgentSite
    # At a site with a bridge
    interface: Annotated[Interface | None, UNLESS_ABSENT] = None
    discovery: Annotated[Discovery | None, UNLESS_ABSENT] = Discovery()
    # At a site without bridges (clauses 37 and 38)
    wan: Addresses = []
    intake: Annotated[Annotated[RoutedIntake | PodsIntake, Field(discriminator="type")] | None, UNLESS_ABSENT] = None
    pods: Annotated[Annotated[list[InterceptedPod], Field(max_length=MAX_PODS)] | None, UNLESS_ABSENT] = None
    stream_ports: StreamPorts = StreamPorts(first=FIRST_STREAM_PORT, count=STREAM_PORTS)
    peers: Annotated[list[Peer], Field(max_length=1024)]
    services: Annotated[list[AgentService], Field(max_length=4096)]
    # At a site without bridges (clause 41); omitted if empty
    shares: Annotated[list[SessionShare], Field(max_length=4096, exclude_if=lambda shares: not shares, json_schema_extra=OPTIONAL)] = []
    limits: Limits
    metrics_address: Annotated[str, Field(pattern=r"^[0-9.]+:[0-9]{1,5}$")]
    drain_seconds: Annotated[int, Field(ge=0, le=3600)]


def content_hash(document: Json) -> str:
    """Return the hash of a document without its generation and hash (spec/controller-config.md clause 2)."""
    content = {key: value for key, value in document.items() if key not in {"generation", "hash"}}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def encode(document: Document) -> Json:
    """Return the document as JSON values, with its hash."""
    encoded: Json = document.model_dump(mode="json", by_alias=True)
    return {**encoded, "hash": content_hash(encoded)}
