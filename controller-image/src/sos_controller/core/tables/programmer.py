"""Programmer: desired, sent and acknowledged entries of every datapath.

Desired entries are kept in named *groups* (guards, the paths of a pair, a host, ...). Each group is replaced as a whole and compared with
its former contents; redirect entries of sessions are added and removed one by one. After a datapath connects, nothing is sent to it until
its entries have been read; then all entries are compared together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, NamedTuple

from sos_controller.core.commands import Apply, Command, Install, Withdraw
from sos_controller.core.openflow import flow_entries
from sos_controller.core.openflow.flow_entries import Entries, FlowEntry
from sos_controller.core.tables.batches import Batches, Waiter
from sos_controller.core.types import DatapathId

MAX_TOKEN: Final = 0xFFFFFFFF
MAX_PENDING = 262_144
"""No session begins while more than half of this number of barriers, over all datapaths, and of session entries that wait for them are
unanswered."""

Group = Hashable


class Pending(NamedTuple):
    """An unanswered barrier after a group's entries, and its serial number."""

    dpid: DatapathId
    serial: int


class Programmer:
    """Owner of all desired entries."""

    def __init__(self) -> None:
        self.owner = (0, 0)
        self._desired: dict[DatapathId, Entries] = {}
        self._groups: dict[Group, dict[DatapathId, Entries]] = {}
        self._synced: set[DatapathId] = set()
        self._marks: dict[DatapathId, int] = {}
        self._acked: dict[DatapathId, int] = {}
        self._pending: dict[int, Pending] = {}
        self._batches = Batches(self._next_token)
        self._serial = 0
        self._token = 0

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._desired.values())

    @property
    def busy(self) -> bool:
        """Return whether too many messages are unanswered to begin new sessions."""
        return len(self._pending) + len(self._batches) > MAX_PENDING // 2

    def entries(self, dpid: DatapathId) -> list[FlowEntry]:
        """Return all desired entries of a datapath, in canonical order."""
        return sorted(self._desired.get(dpid, {}).values(), key=flow_entries.order)

    def groups(self) -> list[Group]:
        """Return the names of the groups that exist."""
        return list(self._groups)

    def is_synced(self, dpid: DatapathId) -> bool:
        """Return whether the datapath is connected and has been compared."""
        return dpid in self._synced

    def is_acknowledged(self, dpid: DatapathId) -> bool:
        """Return whether the datapath has acknowledged, by barriers, all entries sent to it for groups."""
        return dpid in self._synced and self._acked.get(dpid, 0) >= self._marks.get(dpid, 0)

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
        for dpid in sorted(before.keys() | after.keys()):
            self._replace(dpid, before.get(dpid, {}), after.get(dpid, {}), out)

    def standing(self, dpid: DatapathId, table: int, without: Group) -> int:
        """Return the number of entries that all groups but one have in a table of a datapath. Entries of sessions are not counted."""
        groups = (those.get(dpid, {}) for group, those in self._groups.items() if group != without)
        return sum(entry.table == table for entries in groups for entry in entries.values())

    def renew(self, group: Group, out: list[Command]) -> None:
        """Resend a group's entries, which restarts their hard timeouts."""
        for dpid, entries in sorted(self._groups.get(group, {}).items()):
            if dpid in self._synced:
                out.append(Apply(dpid, tuple(entries.values()), (), 0, False))

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
                out.append(Apply(dpid, (), tuple(leased), self._expect(dpid), True))

    def sync(self, dpid: DatapathId, installed: Iterable[FlowEntry], out: list[Command]) -> None:
        """Compare a datapath that has just been read with the desired entries, and send the difference."""
        there = flow_entries.index(installed)
        changes = flow_entries.diff(self._desired.get(dpid, {}), there, self.owner)
        leased = [e for key, e in self._desired.get(dpid, {}).items() if e.hard_timeout and there.get(key) == e]
        self._synced.add(dpid)
        self._marks[dpid] = self._serial + 1
        out.append(Apply(dpid, (*changes.adds, *leased), changes.deletes, self._expect(dpid), True))

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

    def reject(self, dpid: DatapathId, token: int) -> bool:
        """Handle a refused message. Return True if it belonged to a group, so that the datapath has to be read again, or if it has no token
        (0)."""
        if self._batches.reject(dpid, token):
            return False
        failed = self._pending.get(token)
        if failed is None or failed.dpid != dpid:
            return token == 0
        del self._pending[token]
        self._synced.discard(dpid)
        return True

    def disconnect(self, dpid: DatapathId) -> None:
        """Handle a lost connection: nothing in flight will be answered."""
        self._synced.discard(dpid)
        self._pending = {token: pending for token, pending in self._pending.items() if pending.dpid != dpid}
        self._batches.disconnect(dpid)

    def _replace(self, dpid: DatapathId, before: Entries, after: Entries, out: list[Command]) -> None:
        wanted = self._desired.setdefault(dpid, {})
        deletes = [e for key, e in before.items() if key not in after and wanted.get(key) is e]
        adds = [e for key, e in after.items() if before.get(key) != e]
        for entry in deletes:
            wanted.pop(entry.key, None)
        wanted.update((entry.key, entry) for entry in adds)
        if not wanted:
            del self._desired[dpid]
        if dpid in self._synced and (adds or deletes):
            self._marks[dpid] = self._serial + 1
            ordered = (tuple(sorted(adds, key=flow_entries.order)), tuple(sorted(deletes, key=flow_entries.order)))
            out.append(Apply(dpid, *ordered, self._expect(dpid), True))

    def _expect(self, dpid: DatapathId) -> int:
        self._serial += 1
        token = self._next_token()
        self._pending[token] = Pending(dpid, self._serial)
        return token

    def _next_token(self) -> int:
        self._token = self._token % MAX_TOKEN + 1
        return self._token


def _unchanged(before: Entries, entries: Iterable[FlowEntry]) -> Entries:
    """Return entries by identity, with the objects of `before` where they are equal: `_replace` recognizes a group's own entry by its
    object."""
    return {key: before[key] if before.get(key) == e else e for key, e in flow_entries.index(entries).items()}
