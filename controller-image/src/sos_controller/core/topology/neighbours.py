"""Neighbours: addresses resolved by ARP at a datapath, refreshed, and removed when silent (RFC 1122, 2.3.2.1)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sos_controller.core.types import Address, DatapathId, MacAddress, PortNo

ASK_S = 1.0
"""Interval of requests to a neighbour that has not answered."""
REFRESH_S = 15.0
"""Interval of requests to a neighbour that has answered."""
LOST_S = 30.0
"""Silence after which a neighbour is removed, with 15 unanswered requests: a full queue of an uplink may drop several of them."""


class Place(NamedTuple):
    """An address behind an uplink (by name; "" = on the site's own ports) of a datapath."""

    dpid: DatapathId
    uplink: str
    address: Address


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """A neighbour that answered."""

    mac: MacAddress
    port_no: PortNo
    heard_at: float


class Neighbours:
    """Answers, and times of the last requests. Bounded by the argument of `keep`."""

    def __init__(self) -> None:
        self._heard: dict[Place, Neighbour] = {}
        self._asked: dict[Place, float] = {}

    def find(self, place: Place) -> Neighbour | None:
        """Return the neighbour at a place."""
        return self._heard.get(place)

    def due(self, place: Place, now: float) -> bool:
        """Return whether a request is due now; True counts as a request sent."""
        known, asked = self._heard.get(place), self._asked.get(place, float("-inf"))
        gap = REFRESH_S if known is not None and now - known.heard_at < REFRESH_S else ASK_S
        if now - asked < gap:
            return False
        self._asked[place] = now
        return True

    def hear(self, place: Place, mac: MacAddress, port_no: PortNo, now: float) -> bool:
        """Record an answer; return True if the neighbour is new or has changed. Multicast addresses and zero belong to no host."""
        if mac[0] & 1 or not any(mac):
            return False
        before = self._heard.get(place)
        self._heard[place] = Neighbour(mac, port_no, now)
        return before is None or (before.mac, before.port_no) != (mac, port_no)

    def expire(self, now: float) -> None:
        """Forget silent neighbours."""
        for place in [p for p, n in self._heard.items() if now - n.heard_at >= LOST_S]:
            del self._heard[place]

    def excuse(self, place: Place, now: float) -> None:
        """Do not count the time while a port is down as a neighbour's silence."""
        known = self._heard.get(place)
        if known is not None:
            self._heard[place] = msgspec.structs.replace(known, heard_at=now)

    def keep(self, places: set[Place]) -> None:
        """Forget all other places."""
        self._heard = {p: n for p, n in self._heard.items() if p in places}
        self._asked = {p: at for p, at in self._asked.items() if p in places}
