"""Model of the controller-config (spec/controller-config.md)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sos_compile.model.formats.shared import (
    OPTIONAL,
    Address,
    Device,
    Discovery,
    Document,
    Dpid,
    Model,
    Mtu,
    Ports,
    Prefix,
    SomePrefixes,
    Transport,
)
from sos_compile.model.scalars import AgentId, Label, Name, SiteId

PortName = Annotated[str, Field(pattern=r"^[!-~]{1,15}$")]
Seconds = Annotated[int, Field(ge=1, le=3600)]
Prefixes = Annotated[list[Prefix], Field(max_length=64)]


class ControllerDiscovery(Discovery):
    """Discovery, and the expiry times of beacons and links (seconds)."""

    beacon_expiry_seconds: Seconds = 4
    probe_interval_seconds: Seconds = 1
    link_expiry_seconds: Seconds = 3


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


class ControllerConfig(Document):
    """spec/controller-config.md."""

    controller: ControllerIdentity
    discovery: ControllerDiscovery = ControllerDiscovery()
    sites: Annotated[list[SiteEntry], Field(max_length=1024)]
    services: Annotated[list[ServiceEntry], Field(max_length=4096)]
    balances: Annotated[list[BalanceEntry], Field(max_length=4096)]
    links: Annotated[list[LinkEntry], Field(max_length=4096)]
