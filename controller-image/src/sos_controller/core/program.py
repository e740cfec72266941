"""What every datapath should hold, what has been sent to it, and what it has acknowledged.

Entries wanted are kept in named *groups* (guards, the paths of a pair, a host, ...), each replaced as a whole and compared with what
it was; redirect entries of sessions come and go one by one. A datapath that has not been read since it connected gets nothing
until it has: then everything is compared at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

from sos_controller.core import flowtable
from sos_controller.core.commands import Apply, Command
from sos_controller.core.flowtable import Entries, FlowEntry
from sos_controller.core.model import DatapathId

MAX_TOKEN = 0xFFFFFFFF
MAX_PENDING = 262_144
"""Barriers not yet answered, over all datapaths. Sessions are not begun above half of it."""

Group = Hashable
Waiter = Callable[[bool], None]


class Pending(NamedTuple):
    """A barrier on its way: serial number, and who waits for it."""

    dpid: DatapathId
    serial: int
    waiter: Waiter | None


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
        self._serial = 0
        self._token = 0

    def __len__(self) -> int:
        return sum(len(entries) for entries in self._desired.values())

    @property
    def busy(self) -> bool:
        """Too many barriers are unanswered to begin anything new."""
        return len(self._pending) > MAX_PENDING // 2

    def entries(self, dpid: DatapathId) -> list[FlowEntry]:
        """All entries wanted on a datapath, in canonical order."""
        return sorted(self._desired.get(dpid, {}).values(), key=flowtable.order)

    def groups(self) -> list[Group]:
        """Names of the groups that exist."""
        return list(self._groups)

    def is_synced(self, dpid: DatapathId) -> bool:
        """Whether the datapath is connected and has been compared."""
        return dpid in self._synced

    def is_acknowledged(self, dpid: DatapathId) -> bool:
        """Whether everything sent to it for groups has been acknowledged by barrier."""
        return dpid in self._synced and self._acked.get(dpid, 0) >= self._marks.get(dpid, 0)

    def set_group(self, group: Group, wanted: Mapping[DatapathId, Iterable[FlowEntry]], out: list[Command]) -> None:
        """Replace a group; emits the difference for every datapath that has been read."""
        before = self._groups.pop(group, {})
        after = {dpid: _unchanged(before.get(dpid, {}), entries) for dpid, entries in wanted.items()}
        after = {dpid: entries for dpid, entries in after.items() if entries}
        if after:
            self._groups[group] = after
        for dpid in sorted(before.keys() | after.keys()):
            self._replace(dpid, before.get(dpid, {}), after.get(dpid, {}), out)

    def renew(self, group: Group, out: list[Command]) -> None:
        """Send a group's entries again, which starts their hard timeouts anew."""
        for dpid, entries in sorted(self._groups.get(group, {}).items()):
            if dpid in self._synced:
                out.append(Apply(dpid, tuple(entries.values()), (), 0, False))

    def install(self, dpid: DatapathId, entry: FlowEntry, waiter: Waiter, out: list[Command]) -> int:
        """Add one entry with a barrier behind it; `waiter` hears whether it worked. Returns the token."""
        self._desired.setdefault(dpid, {})[entry.key] = entry
        token = self._expect(dpid, waiter)
        out.append(Apply(dpid, (entry,), (), token, True))
        return token

    def adopt(self, dpid: DatapathId, entry: FlowEntry) -> None:
        """Want an entry that is there already."""
        self._desired.setdefault(dpid, {}).setdefault(entry.key, entry)

    def wants(self, dpid: DatapathId, entry: FlowEntry) -> bool:
        """Whether an entry of this identity is wanted."""
        return entry.key in self._desired.get(dpid, {})

    def remove(self, dpid: DatapathId, entry: FlowEntry, out: list[Command]) -> None:
        """Delete one entry, unless another one has taken its place."""
        wanted = self._desired.get(dpid, {})
        there = wanted.get(entry.key)
        if there is not None and there.cookie == entry.cookie:
            del wanted[entry.key]
            if dpid in self._synced:
                out.append(Apply(dpid, (), (entry,), 0, False))

    def sync(self, dpid: DatapathId, installed: Iterable[FlowEntry], out: list[Command]) -> None:
        """Compare a datapath that has just been read with what is wanted, and make it so."""
        there = flowtable.index(installed)
        changes = flowtable.diff(self._desired.get(dpid, {}), there, self.owner)
        leased = [e for key, e in self._desired.get(dpid, {}).items() if e.hard_timeout and there.get(key) == e]
        self._synced.add(dpid)
        self._marks[dpid] = self._serial + 1
        out.append(Apply(dpid, (*changes.adds, *leased), changes.deletes, self._expect(dpid, None), True))

    def acknowledge(self, dpid: DatapathId, token: int) -> bool:
        """A barrier was answered: everything sent to the datapath up to it is done. True when it stood behind a group."""
        done = self._pending.get(token)
        if done is None or done.dpid != dpid:
            return False
        del self._pending[token]
        self._acked[dpid] = max(self._acked.get(dpid, 0), done.serial)
        if done.waiter is not None:
            done.waiter(True)
        return done.waiter is None

    def reject(self, dpid: DatapathId, token: int) -> bool:
        """A message was refused. True when it belonged to a group: the datapath has to be read again."""
        failed = self._pending.get(token)
        if failed is None or failed.dpid != dpid:
            return token == 0
        del self._pending[token]
        if failed.waiter is None:
            self._synced.discard(dpid)
            return True
        failed.waiter(False)
        return False

    def disconnect(self, dpid: DatapathId) -> None:
        """The connection is gone: nothing on its way will be answered."""
        self._synced.discard(dpid)
        lost = [token for token, p in self._pending.items() if p.dpid == dpid]
        waiters = [self._pending.pop(token).waiter for token in lost]
        for waiter in waiters:
            if waiter is not None:
                waiter(False)

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
            ordered = (tuple(sorted(adds, key=flowtable.order)), tuple(sorted(deletes, key=flowtable.order)))
            out.append(Apply(dpid, *ordered, self._expect(dpid, None), True))

    def _expect(self, dpid: DatapathId, waiter: Waiter | None) -> int:
        self._serial += 1
        self._token = self._token % MAX_TOKEN + 1
        self._pending[self._token] = Pending(dpid, self._serial, waiter)
        return self._token


def _unchanged(before: Entries, entries: Iterable[FlowEntry]) -> Entries:
    """Entries by identity, keeping the very objects of before where they are equal: whose an entry is, is told by the object."""
    return {key: before[key] if before.get(key) == e else e for key, e in flowtable.index(entries).items()}
