"""Model of the node-config (spec/node-config.md section 1)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sos_compile.model.formats.shared import OPTIONAL, UNLESS_ABSENT, Address, Device, Document, Dpid, Model, Mtu, OfPort
from sos_compile.model.scalars import Label, Port, SiteId


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
