"""Index of policies: the policies that cover a connection, found by its addresses and port instead of by trying one policy after another.

A policy covers a connection if one of its client prefixes, one of its server prefixes and one of its port ranges do. Each of the three
tables therefore returns the set of policies that its field permits; the intersection of the sets has the policies that cover the
connection, and its lowest number is the first of them in their order. A set is an integer with one bit for each policy, so a look-up takes
as long for 4,096 policies as for one, apart from 512 bytes per set (docs/adr/0067).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from sos_controller.core.types import Prefix

ADDRESS_BITS: Final = 32

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of ports."""
Selection = tuple[tuple[Prefix, ...], tuple[Prefix, ...], Ranges]
"""Client prefixes, server prefixes and ports of a policy."""


class PrefixTable:
    """Sets of policies by prefix: one hash table for each length that occurs, which is at most 33 look-ups for an address."""

    def __init__(self, prefixes: Iterable[tuple[Prefix, ...]]) -> None:
        by_length: dict[int, dict[int, int]] = {}
        for number, own in enumerate(prefixes):
            for prefix in own:
                shift = ADDRESS_BITS - prefix.length
                table = by_length.setdefault(shift, {})
                network = prefix.network >> shift
                table[network] = table.get(network, 0) | 1 << number
        known: dict[int, int] = {}
        for table in by_length.values():
            for network, found in table.items():
                table[network] = known.setdefault(found, found)  # prefixes of one policy share their set
        self._by_length = sorted(by_length.items())

    def find(self, address: int) -> int:
        """Return the set of policies with a prefix that contains an address."""
        found = 0
        for shift, table in self._by_length:
            found |= table.get(address >> shift, 0)
        return found


class PortTable:
    """Sets of policies by port: one for each interval between two ports at which a range begins or ends."""

    def __init__(self, ranges: Iterable[Ranges]) -> None:
        changes: dict[int, int] = {0: 0}  # by port: the policies whose ranges begin or end there
        for number, own in enumerate(ranges):
            for first, last in merged(own):
                changes[first] = changes.get(first, 0) ^ 1 << number
                changes[last + 1] = changes.get(last + 1, 0) ^ 1 << number
        known: dict[int, int] = {}
        self._begins = sorted(changes)
        self._sets: list[int] = []
        current = 0
        for begin in self._begins:
            current ^= changes[begin]
            self._sets.append(known.setdefault(current, current))

    def find(self, port: int) -> int:
        """Return the set of policies with a range that contains a port."""
        return self._sets[bisect_right(self._begins, port) - 1]


class PolicyIndex:
    """Look-up of the policies that cover a connection, by their numbers in the order in which they are tried."""

    def __init__(self, policies: Sequence[Selection]) -> None:
        self._clients = PrefixTable([clients for clients, _, _ in policies])
        self._servers = PrefixTable([servers for _, servers, _ in policies])
        self._ports = PortTable([ports for _, _, ports in policies])

    def first(self, client: int, server: int, port: int) -> int:
        """Return the number of the first policy that covers a connection, -1 if there is none."""
        found = self._covering(client, server, port)
        return (found & -found).bit_length() - 1

    def numbers(self, client: int, server: int, port: int, limit: int) -> list[int]:
        """Return the numbers of the first policies that cover a connection, at most `limit` of them."""
        found, numbers = self._covering(client, server, port), list[int]()
        while found and len(numbers) < limit:
            lowest = found & -found
            numbers.append(lowest.bit_length() - 1)
            found ^= lowest
        return numbers

    def _covering(self, client: int, server: int, port: int) -> int:
        found = self._servers.find(server)
        if not found:
            return 0
        found &= self._ports.find(port)
        return found & self._clients.find(client) if found else 0


def merged(ranges: Ranges) -> list[tuple[int, int]]:
    """Return ranges without overlaps and without adjacent ranges, sorted."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        elif first <= last:
            found.append((first, last))
    return found
