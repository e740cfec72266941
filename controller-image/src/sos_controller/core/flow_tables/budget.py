"""Budget of a datapath's tables: groups of entries that fit, by rank, before anything is sent.

A switch announces the size of each table as `max_entries` (OpenFlow 1.3.5, 7.3.5.5.1), and refuses entries beyond it with
OFPFMFC_TABLE_FULL (7.4.4.6). The announcement is advisory, and some switches announce nothing, so a refusal teaches a smaller limit. All
functions are pure; `Programmer` applies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import EntryKey
from sos_controller.core.openflow.pipeline import TABLE_REDIRECT

MAX_ENTRIES: Final = 262_144
"""Maximum number of our entries on one datapath: two for each side of 65,536 sessions. A session has only one side on a datapath, so half
of this number is left for other entries. A switch that reports more entries of ours is not programmed."""
SESSIONS_DIVISOR: Final = 4
"""Divisor that gives the reserved part of a table's size: a quarter, for the entries of sessions, two for each session."""

Group = Hashable


class Rank(IntEnum):
    """Importance of a group of entries; groups of a higher number give way first."""

    GUARD = 1
    """Base and flood entries of plain forwarding, and guards: without them packets would be lost or accelerated by mistake."""
    PATH = 2
    """Paths of pairs of agents, and the way to the agents' MAC addresses."""
    SERVICE = 3
    HOST = 4
    """Entries of single hosts: a host without entries is reached by flooding."""
    KEPT = 5
    """Entries of an earlier run of the controller."""


_RANKS: Final = {
    "base": Rank.GUARD,
    "flood": Rank.GUARD,
    "guards": Rank.GUARD,
    "test": Rank.GUARD,
    "path": Rank.PATH,
    "agent": Rank.PATH,
    "ring": Rank.PATH,
    "host": Rank.HOST,
    "kept": Rank.KEPT,
}


_ADMITTED: Final = frozenset({"exact", "icmp", "fragments", "services", "measure"})


def is_admitted(group: Group) -> bool:
    """Return whether a group has entries of services, which `pairs.table_capacity` admits as a whole."""
    return group in _ADMITTED or (isinstance(group, tuple) and group[0] == "punts")


def rank_of(group: Group) -> Rank:
    """Return the rank of a group by its name, the first part of the group's identity."""
    name = group[0] if isinstance(group, tuple) else group
    return _RANKS.get(str(name), Rank.SERVICE)


class Limits(NamedTuple):
    """Numbers of entries that a datapath takes."""

    announced: Mapping[int, int] = {}
    """Size by table, as far as the switch has announced it."""
    learned: Mapping[int, int] = {}
    """Size by table, learned from refusals."""
    total: int | None = None
    """Size of all tables together, learned from a refusal: many switches keep all tables in one memory."""

    @property
    def is_learned(self) -> bool:
        """Return whether a refusal has taught a limit."""
        return self.total is not None or bool(self.learned)

    def size(self, table: int) -> int | None:
        """Return the size of a table, None if unknown."""
        known = [sizes[table] for sizes in (self.announced, self.learned) if table in sizes]
        return min(known, default=None)


class Space(NamedTuple):
    """Inputs of the free space for paths and services in a datapath's tables; equal inputs give equal free space."""

    limits: Limits
    sessions: int
    """Number of entries of sessions."""
    revision: int
    """Number that changes with the entries of paths and of higher ranks, and of groups that are not admitted."""

    @property
    def for_services(self) -> Space:
        """Return the same without entries of sessions that the reserved part of each table can hold."""
        sizes = [size for size in (self.limits.size(TABLE_REDIRECT), self.limits.total) if size is not None]
        reserved = min((size // SESSIONS_DIVISOR for size in sizes), default=self.sessions)
        return self if self.sessions > reserved else self._replace(sessions=0)


def learn(limits: Limits, table: int, installed: Mapping[int, int]) -> Limits:
    """Return the limits after a refusal in a table. `installed`: number of our entries by table, read after the refusal.

    First assume that all tables share one memory. If a table refuses entries although this memory has space, the table itself is full. Each
    refusal lowers a limit, so learning ends.
    """
    total, known = sum(installed.values()), limits.total
    if known is None:
        return limits._replace(total=total)
    before = limits.size(table)
    here = installed.get(table, 0)
    return limits._replace(learned={**limits.learned, table: here if before is None else max(0, min(here, before - 1))})


class Shortfall(NamedTuple):
    """Numbers of a demand that does not fit. `table`: None = all tables together."""

    table: int | None
    size: int
    left: int
    needed: int
    learned: bool

    def message(self, datapath: str, of_what: str) -> str:
        """Return the numbers as text for status."""
        tables = "its tables together take" if self.table is None else f"table {self.table} takes"
        how = " (learned from a refusal)" if self.learned else ""
        return f"datapath {datapath}: {tables} {self.size} entries{how}, {self.left} are left for {of_what}, and {self.needed} are needed"


class Room:
    """Free entries of a datapath's tables while demands are taken, the most important first. An entry that several demands share counts
    once."""

    def __init__(self, limits: Limits, sessions: int) -> None:
        self._limits, self._sessions = limits, sessions
        self._taken: set[EntryKey] = set()
        self._used: Counter[int] = Counter()

    def left(self, table: int | None, rank: Rank) -> int | None:
        """Return the number of free entries of a table (None: of all tables together) for a rank; None if unbounded."""
        return left(self._limits, self._sessions, self._used, table, rank)

    def shortfall(self, keys: Collection[EntryKey], rank: Rank) -> Shortfall | None:
        """Return the numbers of the tightest table if a demand does not fit as a whole."""
        needed = Counter(key[0] for key in keys if key not in self._taken)
        return shortfall(self._limits, self._sessions, self._used, needed, rank)

    def take(self, keys: Iterable[EntryKey]) -> None:
        """Take a demand."""
        for key in keys:
            if key not in self._taken:
                self._taken.add(key)
                self._used[key[0]] += 1


def left(limits: Limits, sessions: int, used: Mapping[int, int], table: int | None, rank: Rank) -> int | None:
    """Return the number of free entries of a table, or of all tables (None), for a rank. `sessions`: number of entries that sessions have
    now, all in the first table. From services downwards a part is reserved for sessions."""
    size = limits.total if table is None else limits.size(table)
    if size is None:
        return None
    reserved = 0
    if table is None or table == TABLE_REDIRECT:
        reserved = max(sessions, size // SESSIONS_DIVISOR if rank >= Rank.SERVICE else 0)
    return size - reserved - (sum(used.values()) if table is None else used.get(table, 0))


def shortfall(limits: Limits, sessions: int, used: Mapping[int, int], needed: Mapping[int, int], rank: Rank) -> Shortfall | None:
    """Return the numbers if further entries, by table, do not fit."""
    wanted: list[tuple[int | None, int]] = [*needed.items(), (None, sum(needed.values()))]
    for table, count in wanted:
        free = left(limits, sessions, used, table, rank)
        if free is not None and count > 0 and count > free:
            size = limits.total if table is None else limits.size(table)
            learned = table is None or table in limits.learned
            return Shortfall(table, size or 0, max(0, free), count, learned)
    return None


class Demand(NamedTuple):
    """A group that wants entries on a datapath."""

    group: Group
    keys: Collection[EntryKey]


class Fit(NamedTuple):
    """Result of a budget."""

    admitted: dict[Group, tuple[EntryKey, ...]]
    refused: dict[Group, Shortfall]
    """Groups that do not fit. The first entries of a SERVICE, GUARD or KEPT group may be admitted nevertheless."""


def fit(limits: Limits, sessions: int, demands: Iterable[Demand]) -> Fit:
    """Return the entries that fit, by rank; groups of the same rank in their order. Groups of paths and hosts fit as a whole or not at all;
    of other groups, the first entries that fit are admitted."""
    room, found = Room(limits, sessions), Fit({}, {})
    for group, keys in sorted(demands, key=lambda demand: rank_of(demand.group)):
        rank = rank_of(group)
        short = room.shortfall(keys, rank)
        admitted = tuple(keys)
        if short is not None:
            found.refused[group] = short
            admitted = () if rank in (Rank.PATH, Rank.HOST) else _some(room, keys, rank)
        room.take(admitted)
        found.admitted[group] = admitted
    return found


def _some(room: Room, keys: Iterable[EntryKey], rank: Rank) -> tuple[EntryKey, ...]:
    """Take the entries of a demand that fit, in their order, and return them."""
    taken = []
    for key in keys:
        if room.shortfall((key,), rank) is None:
            room.take((key,))
            taken.append(key)
    return tuple(taken)
