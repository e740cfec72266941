"""Ports between two hosts: a port of a service for an accelerated connection, and a port without a service for a plain connection."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

Json = dict[str, Any]
Range = tuple[int, int]

BESIDE: tuple[Range, ...] = ((20_000, 60_999), (1_024, 19_999))
"""Ranges to search for a plain port; the first range avoids well-known servers."""
UNPRIVILEGED = 1_024


def subtract(ranges: list[Range], others: list[Range]) -> list[Range]:
    """Return the parts of some ranges that are in none of the other ranges, in order."""
    left = list(ranges)
    for first, last in others:
        left = [part for whole in left for part in _without(whole, first, last)]
    return left


def _without(whole: Range, first: int, last: int) -> list[Range]:
    low, high = whole
    if last < low or high < first:
        return [whole]
    return [part for part in ((low, first - 1), (last + 1, high)) if part[0] <= part[1]]


def covers(service: Json, client: str, server: str) -> bool:
    """True if a service covers connections between two hosts on some port."""
    return inside(client, service["from"]["prefixes"]) and inside(server, service["to"]["prefixes"])


def holds(service: Json, port: int) -> bool:
    """True if a service covers the port."""
    return any(found["first"] <= port <= found["last"] for found in service["ports"])


def inside(address: str, prefixes: list[str]) -> bool:
    """True if an address is in one of the prefixes."""
    return any(IPv4Address(address) in IPv4Network(prefix, strict=False) for prefix in prefixes)


def of_service(service: Json, config: Json, client: str, server: str) -> list[Range]:
    """The ports for which a service is the first that covers a connection; unprivileged ports come first."""
    mine = [(r["first"], r["last"]) for r in service["ports"]]
    for earlier in config["services"]:
        if earlier["id"] == service["id"]:
            break
        if covers(earlier, client, server):
            mine = subtract(mine, [(r["first"], r["last"]) for r in earlier["ports"]])
    return sorted(mine, key=lambda found: found[0] < UNPRIVILEGED)


def beside(config: Json, client: str, server: str) -> list[Range]:
    """Ports in BESIDE for which no service and no balance covers a connection between two hosts."""
    taken = [(r["first"], r["last"]) for s in config["services"] if covers(s, client, server) for r in s["ports"]]
    balances = [b for b in config["balances"] if b["client"] == client and inside(server, b["to"])]
    taken += [(r["first"], r["last"]) for b in balances for r in b["ports"]]
    return subtract(list(BESIDE), taken)


def written(found: Range) -> str:
    """Format a range for sos-probe."""
    return f"{found[0]}-{found[1]}"
