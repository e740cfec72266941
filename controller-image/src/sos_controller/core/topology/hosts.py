"""Locations of hosts, learned from ARP packets, SYNs and tracked segments. The caller excludes agent ports and inter-switch ports.

Bounded: beyond MAX_HOSTS, or MAX_AT_PORT behind one port, no new hosts are learned: traffic to them is flooded, and routed sites do not
reach them. Hosts that are learned already keep their places; silent hosts are forgotten (`forwarding.host_ageing`), which makes room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from sos_controller.core.types import Address, DatapathId, Location, MacAddress

MAX_HOSTS = 65_536
MAX_AT_PORT = 16_384
"""Maximum number of hosts behind one port, so that forged addresses behind one port cannot use up MAX_HOSTS."""
MAX_ADDRESSES = 16
"""Maximum number of addresses remembered per MAC address; the oldest is dropped."""


class Host(msgspec.Struct, frozen=True, gc=False):
    """A MAC address and its last location."""

    mac: MacAddress
    location: Location
    addresses: tuple[Address, ...]
    seen_at: float


class Hosts:
    """All known hosts."""

    def __init__(self, limit: int = MAX_HOSTS) -> None:
        self._limit = limit
        self._by_mac: dict[MacAddress, Host] = {}  # the longest silent host first
        self._by_address: dict[Address, MacAddress] = {}
        self._at: Counter[Location] = Counter()

    def __len__(self) -> int:
        return len(self._by_mac)

    def __iter__(self) -> Iterator[Host]:
        """Return every host, the longest silent first."""
        return iter(self._by_mac.values())

    def all(self) -> list[Host]:
        """Return every host, by MAC address."""
        return [self._by_mac[mac] for mac in sorted(self._by_mac)]

    def by_mac(self, mac: MacAddress) -> Host | None:
        """Return the host with this MAC address."""
        return self._by_mac.get(mac)

    def by_address(self, address: Address) -> Host | None:
        """Return the host that last used this address."""
        mac = self._by_address.get(address)
        return None if mac is None else self._by_mac.get(mac)

    def silent(self, since: float) -> Iterator[Host]:
        """Yield the hosts that have sent nothing since a time, the longest silent first."""
        for host in self._by_mac.values():
            if host.seen_at > since:
                return
            yield host

    def learn(self, mac: MacAddress, address: Address, location: Location, now: float) -> bool:
        """Record a host's location; return True if the host is new or has moved. Multicast addresses and address 0 belong to no host."""
        if mac[0] & 1 or not any(mac):
            return False
        before = self._by_mac.get(mac)
        if before is None and (len(self._by_mac) >= self._limit or self._at[location] >= MAX_AT_PORT):
            return False
        addresses = before.addresses if before is not None else ()
        if address and address not in addresses:
            for dropped in addresses[MAX_ADDRESSES - 1 :]:
                self._unbind(dropped, mac)
            addresses = (address, *addresses)[:MAX_ADDRESSES]
        if before is not None:
            self._left(before)
            del self._by_mac[mac]
        self._at[location] += 1
        self._by_mac[mac] = Host(mac, location, addresses, now)
        if address:
            self._by_address[address] = mac
        return before is None or before.location != location

    def forget(self, macs: list[MacAddress]) -> list[Host]:
        """Forget hosts by MAC address."""
        return self._forget([self._by_mac[mac] for mac in macs if mac in self._by_mac])

    def forget_location(self, location: Location) -> list[Host]:
        """Forget all hosts behind a port."""
        return self._forget([h for h in self._by_mac.values() if h.location == location])

    def forget_datapath(self, dpid: DatapathId) -> list[Host]:
        """Forget all hosts at a datapath."""
        return self._forget([h for h in self._by_mac.values() if h.location.dpid == dpid])

    def _forget(self, gone: list[Host]) -> list[Host]:
        for host in gone:
            del self._by_mac[host.mac]
            self._left(host)
            for address in host.addresses:
                self._unbind(address, host.mac)
        return gone

    def _left(self, host: Host) -> None:
        self._at[host.location] -= 1
        if not self._at[host.location]:
            del self._at[host.location]

    def _unbind(self, address: Address, mac: MacAddress) -> None:
        if self._by_address.get(address) == mac:
            del self._by_address[address]
