"""Sets of connections as products of intervals: client addresses, server addresses, server ports.

A service covers clients x servers x ports, each a list of intervals. The intersection of two regions is one region, and their difference
consists of at most three regions, so the sets stay small. With one interval in each dimension instead of a list, a single service could
need 64 x 64 x 64 regions.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, summarize_address_range
from typing import NamedTuple

Interval = tuple[int, int]
"""First and last number, both included."""
Intervals = tuple[Interval, ...]
"""Sorted, without overlapping or adjacent intervals."""


class Region(NamedTuple):
    """All connections from one of `clients` to one of `servers` at one of `ports`."""

    clients: Intervals
    servers: Intervals
    ports: Intervals

    @property
    def empty(self) -> bool:
        """True if the region holds no connection."""
        return not (self.clients and self.servers and self.ports)


def joined(intervals: Iterable[Interval]) -> Intervals:
    """Return the intervals sorted, with overlapping and adjacent intervals joined."""
    found: list[Interval] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def addresses(prefixes: Iterable[IPv4Network]) -> Intervals:
    """Return the addresses of prefixes."""
    return joined((int(prefix.network_address), int(prefix.broadcast_address)) for prefix in prefixes)


def common(one: Intervals, other: Intervals) -> Intervals:
    """Return the numbers that are in both lists."""
    found: list[Interval] = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            found.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def without(one: Intervals, other: Intervals) -> Intervals:
    """Return the numbers of the first list that are not in the other list."""
    found: list[Interval] = []
    j = 0
    for first, last in one:
        while j < len(other) and other[j][1] < first:
            j += 1
        k, at = j, first
        while k < len(other) and other[k][0] <= last:
            if at < other[k][0]:
                found.append((at, other[k][0] - 1))
            at = other[k][1] + 1
            k += 1
        if at <= last:
            found.append((at, last))
    return tuple(found)


def intersection(one: Region, other: Region) -> Region:
    """Return the connections that are in both regions."""
    return Region(*(common(a, b) for a, b in zip(one, other, strict=True)))


def difference(one: Region, other: Region) -> list[Region]:
    """Return the connections of the first region that are not in the other region, as disjoint regions."""
    clients, servers = common(one.clients, other.clients), common(one.servers, other.servers)
    parts = (
        Region(without(one.clients, other.clients), one.servers, one.ports),
        Region(clients, without(one.servers, other.servers), one.ports),
        Region(clients, servers, without(one.ports, other.ports)),
    )
    return [part for part in parts if not part.empty]


def overlap(one: Region, other: Region) -> bool:
    """True if some connection is in both regions."""
    return all(common(a, b) for a, b in zip(one, other, strict=True))


def prefixes(intervals: Intervals) -> list[IPv4Network]:
    """Return the minimum number of prefixes that cover exactly these addresses."""
    return [net for first, last in intervals for net in summarize_address_range(IPv4Address(first), IPv4Address(last))]
