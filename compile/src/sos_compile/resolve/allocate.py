"""Stable allocation of numbers and addresses: deterministic, unique, and independent of the order of the objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import TypeVar

Key = TypeVar("Key")


def numbers(wanted: Iterable[Key], previous: Mapping[Key, int], reserved: Iterable[int], bounds: tuple[int, int]) -> dict[Key, int]:
    """Give each wanted key a number within `bounds`, unique and not in `reserved`.

    A key keeps its previous number unless it is out of bounds, reserved, or used by an earlier key; new keys get the lowest free number, in
    the order of `wanted`. If the numbers run out, the remaining keys are missing from the result.
    """
    order = list(dict.fromkeys(wanted))
    taken = set(reserved)
    given: dict[Key, int] = {}
    for key in order:
        number = previous.get(key)
        if number is not None and bounds[0] <= number <= bounds[1] and number not in taken:
            given[key] = number
            taken.add(number)
    candidate = bounds[0]
    for key in order:
        if key in given:
            continue
        while candidate in taken:
            candidate += 1
        if candidate > bounds[1]:
            break
        given[key] = candidate
        taken.add(candidate)
    return given


def usable(address: IPv4Address, pool: IPv4Network, subnet: IPv4Network) -> bool:
    """Return whether a host may have the address: inside both networks, and not the network or broadcast address of either."""
    edges = {net[0] for net in (pool, subnet) if net.prefixlen < 31} | {net[-1] for net in (pool, subnet) if net.prefixlen < 31}
    return address in pool and address in subnet and address not in edges


def highest_free(pool: IPv4Network, subnet: IPv4Network, taken: set[IPv4Address]) -> IPv4Address | None:
    """Return the highest usable address of `pool` that is not taken, None if there is none; tries at most `len(taken) + 5` addresses."""
    top = int(pool[-1])
    for value in range(top, max(int(pool[0]), top - len(taken) - 4) - 1, -1):
        address = IPv4Address(value)
        if address not in taken and usable(address, pool, subnet):
            return address
    return None
