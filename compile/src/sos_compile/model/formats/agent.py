"""Model of the agent-config (spec/node-config.md section 3)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sos_compile.model.formats.shared import (
    FIRST_STREAM_PORT,
    OPTIONAL,
    STREAM_PORTS,
    UNLESS_ABSENT,
    Address,
    Device,
    Discovery,
    Document,
    Mac,
    Model,
    Mtu,
    OfPort,
    Ports,
    Prefix,
    SomePrefixes,
    Transport,
)
from sos_compile.model.scalars import AgentId, Label, Name, Port, SiteId

UNLESS_NONE = Field(exclude_if=lambda value: value == "None", json_schema_extra=OPTIONAL)


class AgentTransport(Transport):
    """Transport settings of streams for agents."""

    # omitted if None: programs that do not know the field refuse documents with it
    encryption: Annotated[Literal["None", "TLS"], UNLESS_NONE] = "None"
    compression: Annotated[Literal["None", "Adaptive"], UNLESS_NONE] = "None"


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
