"""The controller-config document as frozen types (spec/controller-config.md). `files.config` parses it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sos_controller.core.types import (
    Address,
    AgentId,
    DatapathId,
    MacAddress,
    Prefix,
    parse_address,
    parse_mac,
    parse_prefix,
    tunnel_number,
)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
ShortName = Annotated[str, Meta(min_length=1, max_length=63)]
"""Name that fits into the value of a Kubernetes label."""
PortName = Annotated[str, Meta(pattern="^[!-~]{1,15}\\Z")]
UplinkName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,14}\\Z")]
Dpid = Annotated[str, Meta(pattern="^[0-9a-f]{16}\\Z")]
PortNumber = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[int, Meta(ge=1, le=3600)]
SiteId = Annotated[int, Meta(ge=1, le=65535)]

MAX_SITES = 1_024
MAX_DATAPATHS = 4_096
MAX_SERVICES = 4_096
MAX_BALANCES = 64
"""Maximum number of balances of one datapath: each uses a group and two priorities."""
MAX_BYTES = 16 * 1024 * 1024


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Unknown fields are errors."""


class Controller(_Strict, frozen=True):
    """This controller; the id is part of every cookie."""

    name: ShortName
    id: Annotated[int, Meta(ge=1, le=0xFEFF)]
    tls: Literal["Required", "Disabled"] = "Disabled"
    """Required: switches connect with TLS and a certificate, except for datapaths with `tls: Disabled`."""
    replicas: Annotated[int, Meta(ge=1, le=2)] = 1
    """Number of processes with this configuration, of which one is active (`core.openflow.election`)."""

    def is_same(self, other: Controller) -> bool:
        """Return whether another configuration is of the same controller; its settings may differ."""
        return (self.name, self.id) == (other.name, other.id)


class Discovery(_Strict, frozen=True):
    """Destination of beacons and orders, and the time after which silent agents and links expire."""

    address: str
    mac: str
    beacon_port: PortNumber
    order_port: PortNumber
    redirect_port: PortNumber
    beacon_expiry_seconds: Seconds
    probe_interval_seconds: Seconds
    link_expiry_seconds: Seconds

    @property
    def ip(self) -> Address:
        """Return the address as a number."""
        return parse_address(self.address)

    @property
    def ether(self) -> MacAddress:
        """Return the MAC address as bytes."""
        return parse_mac(self.mac)


class Datapath(_Strict, frozen=True):
    """A datapath claimed by a site."""

    dpid: Dpid
    name: Name
    forwarding: Literal["Node", "Controller"]
    labelled_ports: Annotated[list[UplinkName], Meta(max_length=32)] = []
    """Ports that carry labelled paths and no plain traffic."""
    link_ports: Annotated[list[PortName], Meta(max_length=160)] | None = None
    """Ports at which links are discovered, with ports of tunnels; None = all ports."""
    tunnel: Annotated[int, Meta(ge=0, le=4095)] = 0
    """Number in the names of other datapaths' tunnels to this one (`topology.tunnels`); 0 = there are none."""
    tls: Literal["Required", "Disabled"] = "Required"
    """Disabled: the switch may connect without TLS although the controller requires TLS."""

    @property
    def number(self) -> DatapathId:
        """Return the id as a number."""
        return DatapathId(int(self.dpid, 16))

    def may_link(self, port: str) -> bool:
        """Return whether a port may lead to another datapath."""
        return self.link_ports is None or port in self.link_ports or (self.tunnel > 0 and tunnel_number(port) > 0)


class Agent(_Strict, frozen=True):
    """An agent that is expected to announce itself."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}\\Z")]
    pool: ShortName
    node: ShortName
    address: str

    @property
    def agent_id(self) -> AgentId:
        """Return the id as bytes."""
        return AgentId(bytes.fromhex(self.id))

    @property
    def ip(self) -> Address:
        """Return the address as a number."""
        return parse_address(self.address)


class Share(_Strict, frozen=True):
    """Maximum percentage of a site's sessions for services of a namespace. `standing`: these services may be proactive despite the
    share."""

    namespace: ShortName
    percent: Annotated[int, Meta(ge=1, le=100)]
    standing: bool


class Site(_Strict, frozen=True):
    """One network under one set of datapaths."""

    name: ShortName
    id: SiteId
    prefixes: Annotated[list[str], Meta(max_length=64)]
    subnet: str | None
    gateway: str | None
    transit: bool
    mtu: Annotated[int, Meta(ge=576, le=9216)]
    rewrite: Literal["Transparent", "OpenFlow"]
    datapaths: Annotated[list[Datapath], Meta(max_length=MAX_DATAPATHS)]
    agents: Annotated[list[Agent], Meta(max_length=4096)]
    shares: Annotated[list[Share], Meta(max_length=4096)] = []


class End(_Strict, frozen=True):
    """One end of a service."""

    site: ShortName
    prefixes: Annotated[list[str], Meta(min_length=1, max_length=64)]

    def parsed(self) -> tuple[Prefix, ...]:
        """Return the prefixes as values."""
        return tuple(parse_prefix(p) for p in self.prefixes)


class PortRange(_Strict, frozen=True):
    """Inclusive range of TCP ports."""

    first: PortNumber
    last: PortNumber


class Transport(_Strict, frozen=True):
    """Requested relay settings; 0 = the agent decides."""

    streams: Annotated[int, Meta(ge=0, le=256)]
    block_bytes: Annotated[int, Meta(ge=0, le=262_144)]
    queue_bytes: Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
    congestion_control: Literal["Auto", "Cubic", "BBR", "Reno"]
    protocol: Literal["TCP", "QUIC"] = "TCP"


class Paths(_Strict, frozen=True):
    """Paths of each session: the shortest, up to `max` simultaneously, or one of up to `max`."""

    mode: Literal["Shortest", "Disjoint", "RoundRobin", "LeastLoaded", "Measured"]
    max: Annotated[int, Meta(ge=1, le=8)]


ONE_PATH_MODES = frozenset(("RoundRobin", "LeastLoaded", "Measured"))
"""Modes of `Paths` in which each session takes a single path."""


class Service(_Strict, frozen=True):
    """Connections to accelerate, and their treatment."""

    id: Name
    priority: Annotated[int, Meta(ge=0, le=65535)]
    mode: Literal["Accelerate", "Observe"]
    percent: Annotated[int, Meta(ge=0, le=100)]
    setup: Literal["Reactive", "Proactive"]
    from_: End = msgspec.field(name="from")
    to: End
    ports: Annotated[list[PortRange], Meta(min_length=1, max_length=64)]
    transport: Transport
    paths: Paths
    accept: Literal["Learned", "Confirmed", "Early"] = "Learned"
    require: Annotated[list[Literal["Accelerated", "Encrypted"]], Meta(max_length=2)] = []
    """Requirements: connections that do not meet them are refused. Encrypted includes Accelerated: only accelerated connections are
    encrypted."""

    @property
    def labels(self) -> int:
        """Return the number of path labels that its sessions together may use."""
        return 1 if self.paths.mode == "Shortest" else self.paths.max


class BalanceUplink(_Strict, frozen=True):
    """An uplink over which connections are spread."""

    name: UplinkName
    address: str
    gateway: str
    weight: Annotated[int, Meta(ge=1, le=100)]

    @property
    def ip(self) -> Address:
        """Return the address that represents the client, as a number."""
        return parse_address(self.address)

    @property
    def router(self) -> Address:
        """Return the gateway's address as a number."""
        return parse_address(self.gateway)


class Balance(_Strict, frozen=True):
    """Connections that are spread over uplinks without agents (clause 5)."""

    id: Name
    priority: Annotated[int, Meta(ge=0, le=65535)]
    site: ShortName
    dpid: Dpid
    client: str
    to: Annotated[list[str], Meta(min_length=1, max_length=64)]
    ports: Annotated[list[PortRange], Meta(min_length=1, max_length=64)]
    at: Literal["Controller", "Switch"]
    uplinks: Annotated[list[BalanceUplink], Meta(min_length=1, max_length=32)]

    @property
    def number(self) -> DatapathId:
        """Return the datapath id as a number."""
        return DatapathId(int(self.dpid, 16))

    @property
    def host(self) -> Address:
        """Return the client's address as a number."""
        return parse_address(self.client)

    def destinations(self) -> tuple[Prefix, ...]:
        """Return the prefixes of the servers."""
        return tuple(parse_prefix(p) for p in self.to)


class LinkEnd(_Strict, frozen=True):
    """An uplink of a site."""

    site: ShortName
    uplink: UplinkName


class LinkDeclaration(_Strict, frozen=True):
    """Cost and capacity of a link between uplinks."""

    a: LinkEnd
    b: LinkEnd
    cost: Annotated[int, Meta(ge=1, le=65535)]
    capacity_mbps: Annotated[int, Meta(ge=0, le=1_000_000)]


class Config(_Strict, frozen=True):
    """The whole document."""

    version: Literal["v1alpha1"]
    generation: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    hash: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}\\Z")]
    controller: Controller
    discovery: Discovery
    sites: Annotated[list[Site], Meta(max_length=MAX_SITES)]
    services: Annotated[list[Service], Meta(max_length=MAX_SERVICES)]
    balances: Annotated[list[Balance], Meta(max_length=MAX_SERVICES)]
    links: Annotated[list[LinkDeclaration], Meta(max_length=4096)]
