"""Who answers ARP for an address at a datapath: asked for again and again, and lost when silent (RFC 1122, 2.3.2.1)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sos_controller.core.types import Address, DatapathId, MacAddress, PortNo

ASK_S = 1.0
"""Between two requests to somebody who owes an answer."""
REFRESH_S = 15.0
"""Somebody who answered is asked again after this long."""
LOST_S = 30.0
"""Silent for this long, that is 15 requests unanswered: gone. A full queue of an uplink drops some of them."""


class Place(NamedTuple):
    """An address behind an uplink (by name; "" = on the site's own ports) of a datapath."""

    dpid: DatapathId
    uplink: str
    address: Address


class Neighbour(msgspec.Struct, frozen=True, gc=False):
    """Somebody who answered."""

    mac: MacAddress
    port_no: PortNo
    heard_at: float


class Neighbours:
    """Answers and when to ask. Bounded by what `keep` is given."""

    def __init__(self) -> None:
        self._heard: dict[Place, Neighbour] = {}
        self._asked: dict[Place, float] = {}

    def find(self, place: Place) -> Neighbour | None:
        """Who is there."""
        return self._heard.get(place)

    def due(self, place: Place, now: float) -> bool:
        """Whether to ask now; the answer yes is taken for asking."""
        known, asked = self._heard.get(place), self._asked.get(place, float("-inf"))
        gap = REFRESH_S if known is not None and now - known.heard_at < REFRESH_S else ASK_S
        if now - asked < gap:
            return False
        self._asked[place] = now
        return True

    def hear(self, place: Place, mac: MacAddress, port_no: PortNo, now: float) -> bool:
        """Somebody said that the address is theirs; True when that is news. Multicast addresses and zero are nobody's."""
        if mac[0] & 1 or not any(mac):
            return False
        before = self._heard.get(place)
        self._heard[place] = Neighbour(mac, port_no, now)
        return before is None or (before.mac, before.port_no) != (mac, port_no)

    def expire(self, now: float) -> None:
        """Forget the silent."""
        for place in [p for p, n in self._heard.items() if now - n.heard_at >= LOST_S]:
            del self._heard[place]

    def excuse(self, place: Place, now: float) -> None:
        """Somebody cannot answer (the port is down): do not count it as silence."""
        known = self._heard.get(place)
        if known is not None:
            self._heard[place] = msgspec.structs.replace(known, heard_at=now)

    def keep(self, places: set[Place]) -> None:
        """Forget everything but these."""
        self._heard = {p: n for p, n in self._heard.items() if p in places}
        self._asked = {p: at for p, at in self._asked.items() if p in places}
