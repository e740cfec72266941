"""Entries of one datapath whose tables are bounded: groups that want entries, and the entries that fit (`budget`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from sos_controller.core.flow_tables import budget
from sos_controller.core.flow_tables.budget import Demand, Group, Limits, Rank, Room, Shortfall, rank_of
from sos_controller.core.openflow.flow_entries import Entries, EntryKey
from sos_controller.core.openflow.pipeline import TABLE_REDIRECT


class BoundedDatapath:
    """Groups by name, and the entries placed for them. Entries of sessions are counted by the caller."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.placed: Entries = {}
        """Entries of groups that are on the switch, or being sent to it. Changed by `place`."""
        self.refused: dict[Group, Shortfall] = {}
        """Groups that did not fit when the entries were last placed."""
        self.revision = 0
        """Changes with the entries beside which paths and services have to fit (`budget.Space`)."""
        self._groups: dict[Group, Entries] = {}
        self._wanting: Counter[EntryKey] = Counter()  # number of groups that want an entry
        self._used: Counter[int] = Counter()  # number of wanted entries by table
        self._first = 0  # number of placed entries in the first table

    def change(self, group: Group, entries: Entries) -> None:
        """Replace a group. A group that exists keeps its place in the order."""
        before = self._groups.get(group, {})
        if rank_of(group) <= Rank.SERVICE and not budget.is_admitted(group) and before.keys() != entries.keys():
            self.revision += 1
        for key in before:
            self._wanting[key] -= 1
            if not self._wanting[key]:
                del self._wanting[key]
                self._used[key[0]] -= 1
        for key in entries:
            self._used[key[0]] += key not in self._wanting
            self._wanting[key] += 1
        if entries:
            self._groups[group] = entries
        else:
            self._groups.pop(group, None)

    def has_room(self, keys: Iterable[EntryKey], rank: Rank, sessions: int) -> bool:
        """Return whether entries fit beside everything that is wanted now. Entries that are wanted already take no space."""
        needed = Counter(key[0] for key in keys if key not in self._wanting)
        return budget.shortfall(self.limits, sessions, self._used, needed, rank) is None

    def shortfall(self, group: Group, keys: Collection[EntryKey], sessions: int) -> Shortfall | None:
        """Return the numbers if a group does not fit beside the other groups of its rank and of higher ranks."""
        rank = rank_of(group)
        if self.has_room(keys, rank, sessions) and budget.shortfall(self.limits, sessions, Counter(), self._used, rank) is None:
            return None
        return self.room(rank, lambda other: other == group, sessions).shortfall(keys, rank)

    def room(self, rank: Rank, is_left_out: Callable[[Group], bool], sessions: int) -> Room:
        """Return the space beside the groups of a rank and of higher ranks, except some groups."""
        room = Room(self.limits, sessions)
        for group, entries in self._groups.items():
            if rank_of(group) <= rank and not is_left_out(group):
                room.take(entries)
        return room

    def is_overfull(self, rank: Rank, sessions: int) -> bool:
        """Return whether the groups of a rank and of higher ranks do not fit together."""
        room = self.room(rank, lambda _: False, sessions)
        left = [room.left(table, rank) for table in (None, *self._used)]
        return any(free is not None and free < 0 for free in left)

    def fit(self, sessions: int) -> Entries:
        """Return the entries that fit, and update `refused`."""
        demands = [Demand(group, entries) for group, entries in self._groups.items()]
        if budget.shortfall(self.limits, sessions, Counter(), self._used, Rank.SERVICE) is None:
            admitted, self.refused = {demand.group: tuple(demand.keys) for demand in demands}, {}
        else:
            admitted, self.refused = budget.fit(self.limits, sessions, demands)
        wanted: Entries = {}
        for group in sorted(admitted, key=rank_of):
            entries = self._groups[group]
            for key in admitted[group]:
                wanted.setdefault(key, entries[key])
        return wanted

    def place(self, entries: Entries) -> None:
        """Record the entries that are being sent."""
        self.placed = entries
        self._first = sum(key[0] == TABLE_REDIRECT for key in entries)

    def takes(self, entries: int) -> bool:
        """Return whether the first table can hold this number of entries of sessions now."""
        size, total = self.limits.size(TABLE_REDIRECT), self.limits.total
        return (size is None or self._first + entries <= size) and (total is None or len(self.placed) + entries <= total)

    def overflows(self, installed: int, adds: int) -> bool:
        """Return whether further entries may not fit before others are deleted. `installed`: number of our entries on the switch."""
        sizes = [size for table in self._used if (size := self.limits.size(table)) is not None]
        bound = min([*sizes, *(() if self.limits.total is None else (self.limits.total,))], default=None)
        return bound is not None and installed + adds > bound
