"""Programmer: desired, sent and acknowledged entries of every datapath.

Desired entries are kept in named *groups* (guards, the paths of a pair, a host, ...). Each group is replaced as a whole and compared with
its former contents; redirect entries of sessions are added and removed one by one. After a datapath connects, nothing is sent to it until
its entries have been read; then all entries are compared together.

Changes of a datapath whose tables are bounded are collected, and sent by `settle` at the end of the event, as far as they fit (`budget`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sos_controller.core.commands import Apply, Command, Install, Withdraw
from sos_controller.core.flow_tables import budget
from sos_controller.core.flow_tables.batches import Batches, Waiter
from sos_controller.core.flow_tables.bounded_datapath import BoundedDatapath
from sos_controller.core.flow_tables.budget import MAX_ENTRIES, Group, Limits, Rank, Room, Shortfall, Space, rank_of
from sos_controller.core.openflow import flow_entries
from sos_controller.core.openflow.flow_entries import Entries, FlowEntry
from sos_controller.core.types import DatapathId

MAX_TOKEN: Final = 0xFFFFFFFF
MAX_PENDING = 262_144
"""No session begins while more than half of this number of barriers, over all datapaths, and of session entries that wait for them are
unanswered."""

ENTRIES_PER_SESSION: Final = 2
"""Number of entries of a session's side at a site that rewrites; other sides have one per datapath."""


class Pending(NamedTuple):
    """An unanswered barrier after a group's entries, its serial number, and the entries that are deleted before it."""

    dpid: DatapathId
    serial: int
    deletes: tuple[FlowEntry, ...]


class Programmer:
    """Owner of all desired entries."""

    def __init__(self) -> None:
        self.owner = (0, 0)
        self._desired: dict[DatapathId, Entries] = {}
        self._groups: dict[Group, dict[DatapathId, Entries]] = {}
        self._leases: dict[Group, list[tuple[DatapathId, tuple[FlowEntry, ...]]]] = {}  # what `renew` resends until the group changes
        self._synced: set[DatapathId] = set()
        self._marks: dict[DatapathId, int] = {}
        self._acked: dict[DatapathId, int] = {}
        self._pending: dict[int, Pending] = {}
        self._batches = Batches(self._next_token)
        self._serial = 0
        self._token = 0
        self._bounded: dict[DatapathId, BoundedDatapath] = {}
        self._stale: set[DatapathId] = set()  # bounded datapaths with changes that `settle` sends
        self._deleted: dict[DatapathId, Counter[int]] = {}  # entries by table that a datapath still had when it refused another

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._desired.values())

    def continue_tokens(self, former: Programmer) -> None:
        """Use none of the tokens of a former programmer of the same connections, so that late answers to its messages confirm nothing."""
        self._token = former._token

    @property
    def busy(self) -> bool:
        """Return whether too many messages are unanswered to begin new sessions."""
        return len(self._pending) + len(self._batches) > MAX_PENDING // 2

    def entries(self, dpid: DatapathId) -> list[FlowEntry]:
        """Return all desired entries of a datapath, in canonical order."""
        return sorted(self._desired.get(dpid, {}).values(), key=flow_entries.order)

    def has_group(self, group: Group) -> bool:
        """Return whether a group exists."""
        return group in self._groups

    def groups(self) -> list[Group]:
        """Return the names of the groups that exist."""
        return list(self._groups)

    def is_synced(self, dpid: DatapathId) -> bool:
        """Return whether the datapath is connected and has been compared."""
        return dpid in self._synced

    def is_acknowledged(self, dpid: DatapathId) -> bool:
        """Return whether the datapath has acknowledged, by barriers, all entries sent to it for groups."""
        return dpid in self._synced and dpid not in self._stale and self._acked.get(dpid, 0) >= self._marks.get(dpid, 0)

    @property
    def is_quiet(self) -> bool:
        """Return whether every datapath that has been read has acknowledged all entries sent to it for groups."""
        return all(map(self.is_acknowledged, self._synced))

    def set_group(self, group: Group, wanted: Mapping[DatapathId, Iterable[FlowEntry]], out: list[Command]) -> None:
        """Replace a group; emit the difference for every datapath that has been read."""
        before = self._groups.pop(group, {})
        after = {dpid: _unchanged(before.get(dpid, {}), entries) for dpid, entries in wanted.items()}
        after = {dpid: entries for dpid, entries in after.items() if entries}
        if after:
            self._groups[group] = after
        if after != before:
            self._leases.pop(group, None)
        for dpid in sorted(before.keys() | after.keys()):
            bounded = self._bounded.get(dpid)
            if bounded is None:
                self._replace(dpid, before.get(dpid, {}), after.get(dpid, {}), out)
            elif before.get(dpid, {}) != after.get(dpid, {}):
                bounded.change(group, after.get(dpid, {}))
                self._stale.add(dpid)

    def renew(self, group: Group, out: list[Command]) -> None:
        """Resend a group's entries, which restarts their hard timeouts. While the group is unchanged, these are the same tuples each time,
        so that they need to be encoded only once."""
        leases = self._leases.get(group)
        if leases is None:
            leases = sorted((dpid, tuple(entries.values())) for dpid, entries in self._groups.get(group, {}).items())
            self._leases[group] = leases
        for dpid, entries in leases:
            bounded = self._bounded.get(dpid)
            if bounded is not None and group in bounded.refused:
                entries = tuple(entry for entry in entries if entry.key in bounded.placed)  # noqa: PLW2901 - all others stay the same tuple
            if dpid in self._synced and entries:
                out.append(Apply(dpid, entries, (), 0, False))

    def install(self, dpids: tuple[DatapathId, ...], entry: FlowEntry, waiter: Waiter, out: list[Command]) -> None:
        """Add one entry to datapaths; `close` emits its barrier. `waiter` is called once: True when all datapaths have the entry, False if
        a datapath will never have it."""
        key, desired = entry.key, self._desired
        for dpid in dpids:
            desired.setdefault(dpid, {})[key] = entry
        out.append(Install(dpids, entry, self._batches.add(dpids, waiter)))

    def close(self, out: list[Command]) -> None:
        """Emit the barriers after the entries installed since the last call."""
        self._batches.close(out)

    def adopt(self, dpid: DatapathId, entry: FlowEntry) -> None:
        """Add an entry that the datapath already has to the desired entries."""
        self._desired.setdefault(dpid, {}).setdefault(entry.key, entry)

    def wants(self, dpid: DatapathId, entry: FlowEntry) -> bool:
        """Return whether an entry with this identity is desired."""
        return entry.key in self._desired.get(dpid, {})

    def remove(self, dpids: tuple[DatapathId, ...], entry: FlowEntry, out: list[Command]) -> None:
        """Delete one entry from datapaths, unless another entry has replaced it."""
        key, deleted = entry.key, []
        for dpid in dpids:
            wanted = self._desired.get(dpid, {})
            there = wanted.get(key)
            if there is not None and there.cookie == entry.cookie:
                del wanted[key]
                if dpid in self._synced:
                    deleted.append(dpid)
        if deleted:
            out.append(Withdraw(tuple(deleted), entry))

    def end_leases(self, out: list[Command]) -> None:
        """Delete leases immediately instead of letting them expire, on every datapath that has been read."""
        for dpid in sorted(self._synced):
            leased = sorted((entry for entry in self._desired.get(dpid, {}).values() if entry.hard_timeout), key=flow_entries.order)
            for entry in leased:
                del self._desired[dpid][entry.key]
            if leased:
                self._marks[dpid] = self._serial + 1
                out.append(Apply(dpid, (), tuple(leased), self._expect(dpid, ()), True))

    def sync(self, dpid: DatapathId, installed: Iterable[FlowEntry], out: list[Command]) -> None:
        """Compare a datapath that has just been read with the desired entries, and send the difference."""
        there = flow_entries.index(installed)
        self._synced.discard(dpid)
        self.settle(out)
        changes = flow_entries.diff(self._desired.get(dpid, {}), there, self.owner)
        leased = [e for key, e in self._desired.get(dpid, {}).items() if e.hard_timeout and there.get(key) == e]
        self._synced.add(dpid)
        self._send(dpid, (*changes.adds, *leased), changes.deletes, len(there), out)

    # -- bounded tables

    def announce(self, dpid: DatapathId, sizes: Mapping[int, int]) -> None:
        """Bound a datapath by the sizes of its tables. Tables larger than MAX_ENTRIES do not bound it."""
        announced = {table: size for table, size in sizes.items() if size < MAX_ENTRIES}
        known = self._bounded.get(dpid)
        if announced or known is not None:
            self._bound(dpid, (Limits() if known is None else known.limits)._replace(announced=announced))

    def learn(self, dpid: DatapathId, table: int, installed: Iterable[FlowEntry]) -> None:
        """Bound a datapath after it has refused an entry because a table is full. `installed`: all our entries there, read after the
        refusal."""
        known = self._bounded.get(dpid)
        counts = Counter(entry.table for entry in installed) + self._deleted.pop(dpid, Counter())
        self._bound(dpid, budget.learn(Limits() if known is None else known.limits, table, counts))

    def forget_learned(self, dpid: DatapathId) -> None:
        """Forget what refusals have taught, so that the datapath is tried again."""
        known = self._bounded.get(dpid)
        if known is not None and known.limits.is_learned:
            self._bound(dpid, Limits(known.limits.announced))

    @property
    def is_bounded(self) -> bool:
        """Return whether the tables of some datapath are bounded."""
        return bool(self._bounded)

    def limits(self, dpid: DatapathId) -> Limits | None:
        """Return the limits of a datapath, None if it is not bounded."""
        bounded = self._bounded.get(dpid)
        return None if bounded is None else bounded.limits

    def spaces(self) -> dict[DatapathId, Space]:
        """Return, for every bounded datapath, what its free space for paths and services depends on."""
        return {dpid: Space(b.limits, self._of_sessions(dpid), b.revision) for dpid, b in self._bounded.items()}

    def is_overfull(self, dpid: DatapathId, rank: Rank) -> bool:
        """Return whether groups of a rank and of higher ranks do not fit on a datapath together, since its limits have been lowered."""
        bounded = self._bounded.get(dpid)
        return bounded is not None and bounded.is_overfull(rank, self._of_sessions(dpid))

    def room_for_services(self, dpid: DatapathId) -> Room | None:
        """Return the space on a bounded datapath beside all entries but those of admitted services and hosts; None if not bounded."""
        bounded = self._bounded.get(dpid)
        return None if bounded is None else bounded.room(Rank.SERVICE, budget.is_admitted, self._of_sessions(dpid))

    def has_room(self, group: Group, wanted: Mapping[DatapathId, Iterable[FlowEntry]]) -> bool:
        """Return whether a group's entries fit on all its datapaths beside everything that is wanted now."""
        places = [(dpid, bounded) for dpid in wanted if (bounded := self._bounded.get(dpid)) is not None] if self._bounded else []
        rank = rank_of(group)
        return all(bounded.has_room([e.key for e in wanted[dpid]], rank, self._of_sessions(dpid)) for dpid, bounded in places)

    def shortfall(self, group: Group, wanted: Mapping[DatapathId, Iterable[FlowEntry]]) -> tuple[DatapathId, Shortfall] | None:
        """Return the first datapath on which a group does not fit beside groups of its rank and of higher ranks, with the numbers."""
        for dpid in sorted(wanted.keys() & self._bounded.keys()):
            short = self._bounded[dpid].shortfall(group, [e.key for e in wanted[dpid]], self._of_sessions(dpid))
            if short is not None:
                return dpid, short
        return None

    def takes_session(self, dpids: Iterable[DatapathId]) -> bool:
        """Return whether the tables of datapaths have space for the entries of one more session."""
        if not self._bounded:
            return True
        places = [(dpid, bounded) for dpid in dpids if (bounded := self._bounded.get(dpid)) is not None]
        return all(bounded.takes(self._of_sessions(dpid) + ENTRIES_PER_SESSION) for dpid, bounded in places)

    def settle(self, out: list[Command]) -> set[str]:
        """Send the changes of bounded datapaths, as far as they fit: deletions first if there is no space for both. Return the parts of the
        plan that depend on the result: all if a group other than a host's does not fit any more, the arming if nothing had to be sent."""
        depends: set[str] = set()
        while self._stale:
            dpid = min(self._stale)
            bounded = self._bounded[dpid]
            before, wanted = bounded.refused, bounded.fit(self._of_sessions(dpid))
            hosts = [group for group in bounded.refused if rank_of(group) is Rank.HOST]
            for group in hosts:
                self.set_group(group, {}, out)  # on every datapath: a host without entries is flooded everywhere
            if hosts:
                continue
            self._stale.discard(dpid)
            placed = bounded.placed
            wanted = {key: placed[key] if placed.get(key) == e else e for key, e in wanted.items()}  # `_replace` compares objects
            bounded.place(wanted)
            sent = len(out)
            self._replace(dpid, placed, wanted, out)
            if bounded.refused.keys() - before.keys():
                depends.add("plan")
            elif len(out) == sent:
                depends.add("arm")
        return depends

    def _bound(self, dpid: DatapathId, limits: Limits) -> None:
        bounded = self._bounded.get(dpid)
        if bounded is None:
            bounded = self._bounded[dpid] = BoundedDatapath(limits)
            wanted = self._desired.get(dpid, {})
            here = [(group, those[dpid]) for group, those in self._groups.items() if dpid in those]
            for group, entries in here:
                bounded.change(group, entries)
            bounded.place({key: e for _, entries in here for key, e in entries.items() if wanted.get(key) is e})
        bounded.limits = limits
        self._stale.add(dpid)

    def _of_sessions(self, dpid: DatapathId) -> int:
        """Return the number of entries of sessions on a bounded datapath."""
        return max(0, len(self._desired.get(dpid, {})) - len(self._bounded[dpid].placed))

    # -- answers

    def acknowledge(self, dpid: DatapathId, token: int) -> bool:
        """Handle a barrier reply: the datapath has processed all earlier messages. Return True if the barrier followed a group's
        entries."""
        if self._batches.acknowledge(dpid, token):
            return False
        done = self._pending.get(token)
        if done is None or done.dpid != dpid:
            return False
        del self._pending[token]
        self._acked[dpid] = max(self._acked.get(dpid, 0), done.serial)
        return True

    def reject(self, dpid: DatapathId, token: int, full: bool = False) -> bool:
        """Handle a refused message. Return True if it belonged to a group, so that the datapath has to be read again, or if it has no token
        (0). `full`: a table is full, so all other entries are as expected, and the datapath stays in use."""
        if self._batches.reject(dpid, token):
            return False
        failed = self._pending.get(token)
        if failed is None or failed.dpid != dpid:
            return token == 0
        if full:
            later = (p.deletes for p in self._pending.values() if p.dpid == dpid and p.serial >= failed.serial)
            self._deleted.setdefault(dpid, Counter(entry.table for deletes in later for entry in deletes))
        else:
            self._synced.discard(dpid)
        del self._pending[token]
        return True

    def disconnect(self, dpid: DatapathId) -> None:
        """Handle a lost connection: nothing in flight will be answered."""
        self._synced.discard(dpid)
        self._pending = {token: pending for token, pending in self._pending.items() if pending.dpid != dpid}
        self._batches.disconnect(dpid)
        self._deleted.pop(dpid, None)

    def _replace(self, dpid: DatapathId, before: Entries, after: Entries, out: list[Command]) -> None:
        wanted = self._desired.setdefault(dpid, {})
        installed = len(wanted)
        deletes = [e for key, e in before.items() if key not in after and wanted.get(key) is e]
        adds = [e for key, e in after.items() if before.get(key) != e]
        for entry in deletes:
            wanted.pop(entry.key, None)
        wanted.update((entry.key, entry) for entry in adds)
        if not wanted:
            del self._desired[dpid]
        if dpid in self._synced and (adds or deletes):
            ordered = (tuple(sorted(adds, key=flow_entries.order)), tuple(sorted(deletes, key=flow_entries.order)))
            self._send(dpid, *ordered, installed, out)

    def _send(
        self, dpid: DatapathId, adds: tuple[FlowEntry, ...], deletes: tuple[FlowEntry, ...], installed: int, out: list[Command]
    ) -> None:
        """Send changes to a datapath that has `installed` entries: adds before deletes, so that no packet is without an entry, unless the
        tables may not hold both."""
        bounded = self._bounded.get(dpid)
        if bounded is not None and deletes and bounded.overflows(installed, len(adds)):
            self._emit(dpid, (), deletes, out)
            deletes = ()
            if not adds:
                return
        self._emit(dpid, adds, deletes, out)

    def _emit(self, dpid: DatapathId, adds: tuple[FlowEntry, ...], deletes: tuple[FlowEntry, ...], out: list[Command]) -> None:
        self._marks[dpid] = self._serial + 1
        out.append(Apply(dpid, adds, deletes, self._expect(dpid, deletes), True))

    def _expect(self, dpid: DatapathId, deletes: tuple[FlowEntry, ...]) -> int:
        self._serial += 1
        token = self._next_token()
        self._pending[token] = Pending(dpid, self._serial, deletes)
        return token

    def _next_token(self) -> int:
        self._token = self._token % MAX_TOKEN + 1
        return self._token


def _unchanged(before: Entries, entries: Iterable[FlowEntry]) -> Entries:
    """Return entries by identity, with the objects of `before` where they are equal: `_replace` recognizes a group's own entry by its
    object."""
    return {key: before[key] if before.get(key) == e else e for key, e in flow_entries.index(entries).items()}
