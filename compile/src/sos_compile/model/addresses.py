"""Addresses, prefixes and port ranges as text."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # RFC 6890 section 2.2.2
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")

_REMEMBERED = 8_192  # parsed texts: the validation rules of one object parse each of its prefixes up to twenty times

CIDR = re.compile(r"^[0-9A-Fa-f:.]+/[0-9]{1,3}\Z")


def is_cidr(text: str) -> bool:
    """Return whether the text is an address with a prefix length (host bits may be set), like isCIDR() of CEL."""
    try:
        parse_cidr(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=_REMEMBERED)
def parse_cidr(text: str) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    """Return the address and its network. Raises ValueError, also for a netmask in place of the length."""
    if not CIDR.match(text):
        raise ValueError(f"{text!r} is not an address with a prefix length")
    return ipaddress.ip_interface(text)


def is_ipv4_prefix(text: str) -> bool:
    """Return whether the text is an IPv4 prefix without host bits."""
    try:
        return isinstance(ipaddress.ip_network(text), ipaddress.IPv4Network) and is_cidr(text)
    except ValueError:
        return False


def is_ip(text: str) -> bool:
    """Return whether the text is an IPv4 or IPv6 address without a zone, like isIP() of CEL."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def is_ipv4(text: str) -> bool:
    """Return whether the text is an IPv4 address."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def is_reachable(address: ipaddress.IPv4Address) -> bool:
    """Return whether other machines can reach a machine at the address. 240.0.0.0/4 counts, because some clouds use it."""
    special = address.is_loopback or address.is_multicast or address.is_link_local or address in _THIS_NETWORK
    return not special and address != _BROADCAST


def ports(ranges: Iterable[tuple[int, int]]) -> str:
    """Return port ranges as short text, `22,80,5000-5999`; `*` for every port."""
    listed = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return "*" if listed == ["1-65535"] else ",".join(listed)


def merge_ports(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges sorted, with overlapping and adjacent ranges joined: this saves switch entries and avoids duplicates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def address_text(address: ipaddress.IPv4Address | None) -> str | None:
    """Return an address as text, None if there is no address."""
    return None if address is None else str(address)
