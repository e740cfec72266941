"""Regions of the services that an agent arms: elements of its nftables sets (spec/node-config.md clause 11, docs/adr/0050).

The agent classifies a SYN in three look-ups: client address, server address, port. Clients of the same services form one class, and within
a class servers of the same services. Counts exactly what the agent builds (`sos-agent/src/policy/classifier.rs`); `spec/vectors/arming`
compares the two. Sets of services are bit masks, in which the lowest bit is the service that is tried first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

MAX_REGIONS: Final = 16_384
"""Maximum number of regions of one agent (`MAX_ARMED` in arming.rs); services beyond it stay plain."""
MAX_BUILDS: Final = 32
"""Maximum number of attempts to find services that fit together, as in the agent."""

Range = tuple[int, int]
"""First and last value of a field."""


class TooLargeError(Exception):
    """More regions than allowed."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Connections of a service. `held`: the agent holds their SYNs."""

    clients: tuple[Range, ...]
    servers: tuple[Range, ...]
    ports: tuple[Range, ...]
    held: bool = False


def count(rules: Sequence[Rule], limit: int = MAX_REGIONS) -> int:
    """Return the number of regions of these rules together. Raise TooLargeError above the limit."""
    return _Count(rules, limit).run()


def fitting(rules: Sequence[Rule], limit: int = MAX_REGIONS) -> tuple[int, list[int]]:
    """Return the number of regions of the rules that fit into the limit, and the indices of the other rules, in order."""
    fit = _Fit(rules, limit)
    fit.take(range(len(rules)))
    return fit.count, sorted(fit.left_out)


class _Count:
    def __init__(self, rules: Sequence[Rule], limit: int) -> None:
        self._rules, self._limit, self._found = rules, limit, 0
        self._of_clients: dict[int, int] = {}
        self._of_servers: dict[int, int] = {}
        self._server_tables: dict[tuple[tuple[Range, int], ...], int] = {}
        self._port_tables: dict[tuple[tuple[Range, bool], ...], int] = {}

    def run(self) -> int:
        for _, mask in self._cut((1 << len(self._rules)) - 1, "clients"):
            if mask not in self._of_clients:
                self._of_clients[mask] = self._servers(mask)
            self._add(1)
        return self._found

    def _add(self, regions: int) -> None:
        self._found += regions
        if self._found > self._limit:
            raise TooLargeError

    def _servers(self, mask: int) -> int:
        """Return the class of clients of these rules."""
        table = tuple((range_, self._ports(both)) for range_, both in self._cut(mask, "servers"))
        if table not in self._server_tables:
            self._add(len(table))
            self._server_tables[table] = len(self._server_tables)
        return self._server_tables[table]

    def _ports(self, mask: int) -> int:
        """Return the class of connections whose addresses these rules name."""
        if mask in self._of_servers:
            return self._of_servers[mask]
        table: list[tuple[Range, bool]] = []
        for (first, last), both in self._cut(mask, "ports"):
            held = self._rules[(both & -both).bit_length() - 1].held
            if table and table[-1][0][1] + 1 == first and table[-1][1] == held:
                table[-1] = ((table[-1][0][0], last), held)
            else:
                table.append(((first, last), held))
        key = tuple(table)
        if key not in self._port_tables:
            self._add(len(key))
            self._port_tables[key] = len(self._port_tables)
        self._of_servers[mask] = self._port_tables[key]
        return self._of_servers[mask]

    def _cut(self, mask: int, field: str) -> list[tuple[Range, int]]:
        """Split the values of a field where the set of rules that name a value changes; omit values that no rule names."""
        edges: list[tuple[int, int, int]] = []
        for rule in _bits(mask):
            for first, last in getattr(self._rules[rule], field):
                edges += ((first, 1, rule), (last + 1, -1, rule))
        edges.sort()
        pieces: list[tuple[Range, int]] = []
        depth, inside = dict[int, int](), 0
        for number, (at, step, rule) in enumerate(edges):
            depth[rule] = depth.get(rule, 0) + step
            inside = inside | 1 << rule if depth[rule] else inside & ~(1 << rule)
            after = edges[number + 1][0] if number + 1 < len(edges) else at
            if after == at or not inside:
                continue
            if pieces and pieces[-1][0][1] + 1 == at and pieces[-1][1] == inside:
                pieces[-1] = ((pieces[-1][0][0], after - 1), inside)
            else:
                pieces.append(((at, after - 1), inside))
            if len(pieces) > self._limit:
                raise TooLargeError
        return pieces


def _bits(mask: int) -> Iterable[int]:
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


class _Fit:
    def __init__(self, rules: Sequence[Rule], limit: int) -> None:
        self._rules, self._limit, self._builds = rules, limit, 0
        self._kept: list[int] = []
        self.left_out: list[int] = []
        self.count = 0

    def take(self, more: Sequence[int]) -> None:
        """Add these rules. If they do not fit together, try each half separately, in order."""
        if not more:
            return
        if self._builds == MAX_BUILDS:
            self.left_out += more
            return
        self._builds += 1
        try:
            self.count = count([self._rules[index] for index in (*self._kept, *more)], self._limit)
            self._kept += more
        except TooLargeError:
            if len(more) == 1:
                self.left_out += more
                return
            half = len(more) // 2
            self.take(more[:half])
            self.take(more[half:])
