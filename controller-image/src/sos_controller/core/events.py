"""Events, which the adapter (`app`) creates and the engine handles."""

from __future__ import annotations

import msgspec

from sos_controller.core.config import Config
from sos_controller.core.openflow.flow_entries import FlowEntry, Match
from sos_controller.core.types import DatapathId, Port, PortNo


class PacketIn(msgspec.Struct, frozen=True, gc=False):
    """A packet punted or copied by a switch; `cookie` is the cookie of the entry that punted or copied it."""

    dpid: DatapathId
    in_port: PortNo
    cookie: int
    data: bytes


class DatapathUp(msgspec.Struct, frozen=True):
    """A datapath has connected (or reconnected)."""

    dpid: DatapathId
    ports: tuple[Port, ...]


class DatapathDown(msgspec.Struct, frozen=True):
    """A datapath's connection is lost."""

    dpid: DatapathId


class PortChanged(msgspec.Struct, frozen=True):
    """A port was added, changed or (`gone`) removed."""

    dpid: DatapathId
    port: Port
    gone: bool


class EntriesRead(msgspec.Struct, frozen=True):
    """All entries with our cookie prefix on a datapath."""

    dpid: DatapathId
    entries: tuple[FlowEntry, ...]


class TablesRead(msgspec.Struct, frozen=True):
    """Capacity of a datapath's tables, by number."""

    dpid: DatapathId
    sizes: dict[int, int]


class EntriesUnreadable(msgspec.Struct, frozen=True):
    """A datapath has reported more entries of ours than a datapath can have (`budget.MAX_ENTRIES`)."""

    dpid: DatapathId


class BarrierReplies(msgspec.Struct, frozen=True, gc=False):
    """A datapath has answered the consecutive barriers `tokens`: it has processed all messages before each barrier."""

    dpid: DatapathId
    tokens: tuple[int, ...]


class Echoed(msgspec.Struct, frozen=True, gc=False):
    """A datapath has answered the echo request with this marker: the messages before it are older than the request's reply."""

    dpid: DatapathId
    marker_ms: int


class EntryGone(msgspec.Struct, frozen=True, gc=False):
    """A datapath removed an entry with notification (`FlowEntry.told`)."""

    dpid: DatapathId
    cookie: int
    match: Match


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """A datapath refused a message that carries `token`. `full_table`: the message was a flow-mod for this table, which is full."""

    dpid: DatapathId
    token: int
    full_table: int | None = None


class ConfigChanged(msgspec.Struct, frozen=True):
    """A new configuration is in force."""

    config: Config


class KeysChanged(msgspec.Struct, frozen=True):
    """The current site keys, by site id and key id. `sending`: id of the signing key, if it is not the highest id."""

    sites: dict[int, dict[int, bytes]]
    sending: int | None = None


class Leaving(msgspec.Struct, frozen=True, gc=False):
    """Graceful shutdown begins: from now on every new connection is plain. Retransmitted SYNs of connections being opened are still
    handled."""


class EndLeases(msgspec.Struct, frozen=True, gc=False):
    """The controller exits now: end the leases, so that switches stop punting and new connections go plain immediately."""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time has passed. `wall_ms` is the wall clock, for messages that carry or check it."""

    wall_ms: int


Event = (
    PacketIn
    | DatapathUp
    | DatapathDown
    | PortChanged
    | EntriesRead
    | EntriesUnreadable
    | TablesRead
    | EntryGone
    | BarrierReplies
    | Echoed
    | Rejected
    | ConfigChanged
    | KeysChanged
    | Leaving
    | EndLeases
    | Tick
)
WHILE_LEAVING = frozenset({PacketIn, BarrierReplies, DatapathDown, Rejected, EndLeases})
"""Events handled during graceful shutdown: the controller plans nothing, renews nothing and accepts no configuration."""
