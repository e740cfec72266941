"""Flow entries as values, and the difference between desired and installed entries.

An entry is identified by (table, priority, match), as in OpenFlow 1.3.5, 6.4: adding an entry with the identity of an existing entry
replaces that entry in one step, so entries are renewed and changed without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from sos_controller.core.types import Address, DatapathId, MacAddress, PortNo

Masked = tuple[int, int]
"""Value and mask."""


class Match(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Match of an entry; None = anything. `raw` contains OXM bytes of an entry that this version can only delete.

    Matches untagged frames only (OFPVID_NONE; OpenFlow 1.3.5, 7.2.3.8). IP and TCP fields match inside a VLAN tag as well (ovs-fields(7)),
    so entries for hosts' addresses would otherwise capture traffic of VLANs that use the same addresses. `any_vlan` matches frames of every
    VLAN as well: for plain forwarding entries, and for requests to a switch.
    """

    in_port: PortNo | None = None
    eth_dst: MacAddress | None = None
    eth_src: MacAddress | None = None
    eth_type: int | None = None
    ip_proto: int | None = None
    ipv4_src: Masked | None = None
    ipv4_dst: Masked | None = None
    tcp_src: Masked | None = None
    tcp_dst: Masked | None = None
    udp_dst: int | None = None
    icmp_type: int | None = None
    ip_frag: Masked | None = None
    """Open vSwitch only (ovs-fields(7), "nw_frag"): 1/1 = a fragment, including the first."""
    tcp_flags: Masked | None = None
    arp_op: int | None = None
    arp_sender: Masked | None = None
    arp_target: Masked | None = None
    reg0: int | None = None
    reg2: int | None = None
    reg3: int | None = None
    any_vlan: bool = False
    raw: bytes | None = None


class Output(msgspec.Struct, frozen=True, gc=False, tag="output"):
    """Send out of a port; `PortNo` may be one of the reserved ports of `pipeline`."""

    port_no: PortNo


class SetEthDst(msgspec.Struct, frozen=True, gc=False, tag="eth_dst"):
    """Rewrite the destination MAC address."""

    mac: MacAddress


class SetEthSrc(msgspec.Struct, frozen=True, gc=False, tag="eth_src"):
    """Rewrite the source MAC address."""

    mac: MacAddress


class SetIpv4Src(msgspec.Struct, frozen=True, gc=False, tag="ipv4_src"):
    """Rewrite the source address."""

    address: Address


class SetIpv4Dst(msgspec.Struct, frozen=True, gc=False, tag="ipv4_dst"):
    """Rewrite the destination address."""

    address: Address


class SetTcpSrc(msgspec.Struct, frozen=True, gc=False, tag="tcp_src"):
    """Rewrite the source port."""

    port: int


class SetTcpDst(msgspec.Struct, frozen=True, gc=False, tag="tcp_dst"):
    """Rewrite the destination port."""

    port: int


class DecTtl(msgspec.Struct, frozen=True, gc=False, tag="dec_ttl"):
    """Decrement the TTL; a packet whose TTL is used up is dropped."""


class AnswerArp(msgspec.Struct, frozen=True, gc=False, tag="arp"):
    """Turn an ARP request into the reply that its target is at `mac`; Open vSwitch only (ovs-actions(7), "move")."""

    mac: MacAddress


class TellApart(msgspec.Struct, frozen=True, gc=False, tag="apart"):
    """Read addresses and ports, so that the packet's megaflow covers only its connection, and resubmit the packet to the same table with 1
    in register 0. Must be the entry's first action. Open vSwitch only (ovs-actions(7), "move", "resubmit")."""

    ports: Literal["source", "target", "both"]
    """TCP ports to read: only the client's port, if the match determines whether the client is source or target."""


class LearnSource(msgspec.Struct, frozen=True, gc=False, tag="learn_source"):
    """Learn the port of the source MAC address as NORMAL does, without output: an entry that outputs to a port by itself bypasses MAC
    learning, so the switch would keep forwarding to the former port of a host that has moved. Must be the entry's first action. Open
    vSwitch only (ovs-actions(7), "push", "move")."""


class ToGroup(msgspec.Struct, frozen=True, gc=False, tag="group"):
    """Send the packet to a group (`groups.SelectGroup`)."""

    group_id: int


class Resubmit(msgspec.Struct, frozen=True, gc=False, tag="resubmit"):
    """Continue in any table, also an earlier one, with `place` in register 3 if given. Must be the entry's last action. Open vSwitch only
    (ovs-actions(7), "resubmit")."""

    table: int
    place: int | None = None


class TakeTurn(msgspec.Struct, frozen=True, gc=False, tag="take"):
    """Find the current turn of a balance and send the packet to the turn's uplink, through the tables of `ovs_round_robin`. Must be the
    entry's only action. Open vSwitch only (ovs-actions(7), "resubmit")."""

    group_id: int


class GiveTurn(msgspec.Struct, frozen=True, gc=False, tag="give"):
    """Store the next turn in `TABLE_TURN`, and put the first of `ports` that is up into register 0. Must be the entry's only action. The
    learned entry has `cookie` and idle timeout `idle_s`. Open vSwitch only (ovs-actions(7), "learn", "bundle_load")."""

    following: int
    ports: tuple[PortNo, ...]
    idle_s: int
    cookie: int


class Remember(msgspec.Struct, frozen=True, gc=False, tag="remember"):
    """Learn an entry that sends the packet's connection to the port in register 0, with source MAC `mac`, destination MAC `router` and
    source address `address`. Set bit 16 of the register if the entry was learned. Do nothing if `limit` entries with `cookie` exist. Must
    be the entry's only action. Times as in `FlowEntry` and `FinTimeout`. Open vSwitch only (ovs-actions(7), "learn")."""

    mac: MacAddress
    router: MacAddress
    address: Address
    idle_s: int
    ended_idle_s: int
    limit: int
    cookie: int


class RememberAnswers(msgspec.Struct, frozen=True, gc=False, tag="answers"):
    """Learn an entry that forwards responses on the packet's connection, received on `port_no` for `address`, to `client` at the packet's
    ingress port. Must be the entry's first action; limit, cookie and times as in `Remember`. Open vSwitch only (ovs-actions(7),
    "learn")."""

    port_no: PortNo
    address: Address
    client: Address
    client_mac: MacAddress
    idle_s: int
    ended_idle_s: int
    limit: int
    cookie: int


class ForgetPort(msgspec.Struct, frozen=True, gc=False, tag="forget"):
    """Clear the ingress port. Open vSwitch only: with the port set, Open vSwitch forwards no packet from one protected port to another,
    even if an entry requests it (`xlate_flow_is_protected`, ofproto-dpif-xlate.c)."""


class FinTimeout(msgspec.Struct, frozen=True, gc=False, tag="fin"):
    """Shorten the entry's idle timeout (seconds) once a FIN or RST has passed; Open vSwitch only (ovs-actions(7))."""

    idle_s: int


class Goto(msgspec.Struct, frozen=True, gc=False, tag="goto"):
    """Continue in a later table (an instruction; always last)."""

    table: int


Action = (
    Output
    | SetEthDst
    | SetEthSrc
    | SetIpv4Src
    | SetIpv4Dst
    | SetTcpSrc
    | SetTcpDst
    | DecTtl
    | AnswerArp
    | TellApart
    | LearnSource
    | ToGroup
    | Resubmit
    | TakeTurn
    | GiveTurn
    | Remember
    | RememberAnswers
    | ForgetPort
    | FinTimeout
    | Goto
)


UNKNOWN: Action = Output(PortNo(0xFFFFFFFF))
"""Placeholder for an unknown action: an output that no entry of ours has, so that the entry differs from every desired entry."""


EntryKey = tuple[int, int, Match]
"""Identity of an entry within one datapath: table, priority and match. A plain tuple, since it is made for every entry: a named tuple takes
five times as long."""


class FlowEntry(msgspec.Struct, frozen=True, gc=False):
    """One row of a flow table. No actions = drop. Timeouts in seconds, 0 = none. `told` = the switch notifies the controller when the entry
    is removed."""

    table: int
    priority: int
    match: Match
    actions: tuple[Action, ...]
    cookie: int
    hard_timeout: int = 0
    idle_timeout: int = 0
    told: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether the entry can be installed again: another version may have left entries that this version cannot parse."""
        return self.match.raw is None and UNKNOWN not in self.actions

    @property
    def key(self) -> EntryKey:
        """Return the identity of the entry."""
        return (self.table, self.priority, self.match)


_encode: Final = msgspec.msgpack.Encoder().encode

Entries = dict[EntryKey, FlowEntry]
Placed = tuple[tuple[DatapathId, ...], FlowEntry]
"""An entry, and the datapaths that have it."""


class Changes(NamedTuple):
    """Difference between two tables: adds (which replace) first, then deletes."""

    adds: tuple[FlowEntry, ...]
    deletes: tuple[FlowEntry, ...]


def index(entries: Iterable[FlowEntry]) -> Entries:
    """Return entries by identity; of two entries with the same identity, the first stays."""
    table: Entries = {}
    for entry in entries:
        table.setdefault(entry.key, entry)
    return table


def order(entry: FlowEntry) -> tuple[int, int, bytes]:
    """Return the key of the canonical order: by table, highest priority first, then by match."""
    return (entry.table, -entry.priority, _encode(entry.match))


def diff(desired: Mapping[EntryKey, FlowEntry], installed: Mapping[EntryKey, FlowEntry], owner: tuple[int, int]) -> Changes:
    """Return the entries to add and delete. `owner` = (cookie, mask): entries with other cookies are ignored and never deleted."""
    value, mask = owner
    ours = {key: e for key, e in installed.items() if e.cookie & mask == value}
    adds = [e for key, e in desired.items() if ours.get(key) != e]
    deletes = [e for key, e in ours.items() if key not in desired]
    return Changes(tuple(sorted(adds, key=order)), tuple(sorted(deletes, key=order)))


def apply(installed: Mapping[EntryKey, FlowEntry], changes: Changes) -> Entries:
    """Return a switch's table after the changes: adds replace, deletes remove only the entry with that cookie."""
    table = dict(installed)
    for entry in changes.adds:
        table[entry.key] = entry
    for entry in changes.deletes:
        there = table.get(entry.key)
        if there is not None and there.cookie == entry.cookie:
            del table[entry.key]
    return table
