"""Commands, which the engine returns and the adapter (`app`) carries out in order."""

from __future__ import annotations

from typing import Any

import msgspec

from sos_controller.core.openflow.flow_entries import Action, FlowEntry
from sos_controller.core.openflow.groups import ApplyFailovers, ApplyGroups
from sos_controller.core.openflow.pipeline import PORT_NORMAL
from sos_controller.core.types import AgentId, DatapathId, FlowKey, MacAddress, PortNo
from sos_controller.core.wire.order import Ended


class Apply(msgspec.Struct, frozen=True, gc=False):
    """Change entries: adds (which replace), then deletes, with a barrier in between if both exist; then a barrier if `barrier`.

    All messages except the barrier in between carry `token`, so that a refusal is attributed to this command.
    """

    dpid: DatapathId
    adds: tuple[FlowEntry, ...]
    deletes: tuple[FlowEntry, ...]
    token: int
    barrier: bool


class Install(msgspec.Struct, frozen=True, gc=False):
    """Add one entry to datapaths; the messages carry `token`. A `Barrier` follows."""

    dpids: tuple[DatapathId, ...]
    entry: FlowEntry
    token: int


class Barrier(msgspec.Struct, frozen=True, gc=False):
    """Request confirmation, with `token`, that datapaths have processed all earlier messages."""

    dpids: tuple[DatapathId, ...]
    token: int


class Withdraw(msgspec.Struct, frozen=True, gc=False):
    """Delete one entry from datapaths."""

    dpids: tuple[DatapathId, ...]
    entry: FlowEntry


class PacketOut(msgspec.Struct, frozen=True, gc=False):
    """Send a packet from a datapath as if it had been received on `in_port`."""

    dpid: DatapathId
    in_port: PortNo
    actions: tuple[Action, ...]
    data: bytes
    after_s: float = 0.0
    """Minimum delay."""


class ApplyGroup(msgspec.Struct, frozen=True, gc=False):
    """Make a group that redirects to `mac` out of `port_no` while that port is live, and otherwise outputs to `otherwise` (plain forwarding
    by default). No `mac` = remove the group."""

    dpid: DatapathId
    group_id: int
    port_no: PortNo = PortNo(0)
    mac: MacAddress | None = None
    otherwise: PortNo = PORT_NORMAL


class ReadEntries(msgspec.Struct, frozen=True):
    """Request a datapath's entries with our cookie prefix (value, mask)."""

    dpid: DatapathId
    cookie: int
    mask: int


class Echo(msgspec.Struct, frozen=True, gc=False):
    """Send an echo request; its reply returns `marker_ms`."""

    dpid: DatapathId
    marker_ms: int


class ReadTables(msgspec.Struct, frozen=True):
    """Request the capacity of a datapath's tables."""

    dpid: DatapathId


class Notice(msgspec.Struct, frozen=True):
    """A change for readers of the event stream. `data` is JSON without user addresses."""

    kind: str
    data: dict[str, Any]


class SessionOver(msgspec.Struct, frozen=True, gc=False):
    """Description, for the audit log, of a session that has left the tables. Each session gets exactly one, even if it never became
    active."""

    uuid: bytes
    service: str
    key: FlowKey
    ingress: AgentId
    egress: AgentId
    labels: int
    adopted: bool
    began_ms: int
    """Milliseconds since 1970; for an adopted session, the time of its adoption."""
    seconds: float
    reason: str
    ingress_end: Ended | str | None
    """The agent's Ended order, or the reason why the controller assumed the end of this side, or None."""
    egress_end: Ended | str | None


Command = (
    Apply
    | ApplyFailovers
    | ApplyGroup
    | ApplyGroups
    | Barrier
    | Echo
    | Install
    | PacketOut
    | ReadEntries
    | ReadTables
    | SessionOver
    | Withdraw
    | Notice
)
