"""Select groups as values, and tables of desired and sent groups. Groups have no cookies: their ids identify their owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from sos_controller.core.openflow.flow_entries import Action, FlowEntry, ToGroup
from sos_controller.core.types import DatapathId, MacAddress, PortNo

KEEP_S = 10.0
"""Delay before groups of an earlier run are deleted: by then this run has requested all groups that are still needed."""


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """One choice of a group. `watch_port`: the switch skips the bucket while this port is down."""

    weight: int
    watch_port: PortNo
    actions: tuple[Action, ...]


class SelectGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that picks one bucket per packet, by a hash of the connection (OpenFlow 1.3.5, 5.10.1; Open vSwitch: dp_hash)."""

    group_id: int
    buckets: tuple[Bucket, ...]


class ApplyGroups(msgspec.Struct, frozen=True, gc=False):
    """A command: make these groups, and delete others by id, with all entries that point to them.

    Groups of `puts` may or may not exist; groups of `changes` exist.
    """

    dpid: DatapathId
    puts: tuple[SelectGroup, ...] = ()
    changes: tuple[SelectGroup, ...] = ()
    deletes: tuple[int, ...] = ()


class FailoverGroup(msgspec.Struct, frozen=True, gc=False):
    """A group that sends a packet to the first agent whose port is live, and forwards it plainly if there is none (OpenFlow 1.3.5, 5.6.1,
    fast failover)."""

    group_id: int
    ways: tuple[tuple[PortNo, MacAddress], ...]


class ApplyFailovers(msgspec.Struct, frozen=True, gc=False):
    """A command: make or change these groups, and delete others by id. `plain_id`: the group that forwards plainly."""

    dpid: DatapathId
    plain_id: int
    groups: tuple[FailoverGroup, ...] = ()
    deletes: tuple[int, ...] = ()


Groups = dict[int, SelectGroup]


def group_id(controller_id: int, number: int) -> int:
    """Return the id of a controller's group: each slice has 65,536 ids of its own."""
    return ((controller_id + 0x100) & 0xFFFF) << 16 | number


class GroupTable:
    """Desired groups, and groups sent since a datapath connected."""

    def __init__(self) -> None:
        self._wanted: dict[DatapathId, Groups] = {}
        self._sent: dict[DatapathId, Groups] = {}
        self._old: dict[DatapathId, tuple[float, set[int]]] = {}

    def want(self, wanted: Mapping[DatapathId, Iterable[SelectGroup]]) -> None:
        """Set the desired groups of all datapaths."""
        self._wanted = {dpid: {g.group_id: g for g in groups} for dpid, groups in wanted.items()}

    def wanted(self, dpid: DatapathId) -> list[SelectGroup]:
        """Return the desired groups of a datapath, by id."""
        return [group for _, group in sorted(self._wanted.get(dpid, {}).items())]

    def found(self, dpid: DatapathId, controller_id: int, entries: Iterable[FlowEntry], now: float) -> None:
        """Record this controller's groups that a datapath's entries point to, after these entries have been read."""
        named = {a.group_id for e in entries for a in e.actions if isinstance(a, ToGroup)}
        self._old[dpid] = (now + KEEP_S, {number for number in named if number >> 16 == group_id(controller_id, 0) >> 16})

    def forget(self, dpid: DatapathId) -> None:
        """Forget a lost datapath: which groups it has when it reconnects is unknown."""
        self._sent.pop(dpid, None)
        self._old.pop(dpid, None)

    def puts(self, dpid: DatapathId) -> list[ApplyGroups]:
        """Return the command that makes the groups; to be carried out before entries point to them."""
        wanted, sent = self._wanted.get(dpid, {}), self._sent.get(dpid, {})
        differ = [group for number, group in sorted(wanted.items()) if sent.get(number) != group]
        if not differ:
            return []
        self._sent[dpid] = {**sent, **{group.group_id: group for group in differ}}
        puts = tuple(group for group in differ if group.group_id not in sent)
        return [ApplyGroups(dpid, puts, tuple(group for group in differ if group.group_id in sent))]

    def deletes(self, dpid: DatapathId, now: float) -> list[ApplyGroups]:
        """Return the command that deletes unwanted groups; to be carried out after the entries that point to them are gone."""
        wanted, sent = self._wanted.get(dpid, {}), self._sent.get(dpid, {})
        gone = {number for number in sent if number not in wanted}
        until, old = self._old.get(dpid, (0.0, set()))
        if old and now >= until:
            gone |= {number for number in old if number not in wanted}
            del self._old[dpid]
        for number in gone:
            sent.pop(number, None)
        return [ApplyGroups(dpid, deletes=tuple(sorted(gone)))] if gone else []
