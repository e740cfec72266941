"""ARP relay: hosts of different sites resolve each other's MAC addresses although no plain path connects the sites.

Accelerated connections use every path; ARP packets of their hosts, like all plain traffic, use only the base path. When the base path is
cut, a host whose ARP entry has aged gets no answer and stops sending within ten seconds: its connections stall although their streams run.
So the controller sends a repeated request from the target's switch, and the reply from the requester's switch. It relays only a reply that
the target itself has just sent; a host that is gone, or has moved, sends none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER
from sos_controller.core.state import State
from sos_controller.core.types import Address, Location, MacAddress
from sos_controller.core.wire.packets import Arp, build_arp_reply, build_arp_request, is_claim

AGAIN_AFTER_S: Final = 0.5
"""Minimum interval after which a request for the same address counts as repeated. A request within this interval is a copy over another
path, or its host does not wait for replies: hosts send at most one request per second (RFC 1122, 2.3.2.1)."""
PENDING_S: Final = 5.0
"""Lifetime of a remembered request. A later request counts as a first request."""
MAX_PENDING: Final = 4096
"""Maximum number of remembered requests. The oldest are dropped: their hosts repeat them."""


class _Asked(NamedTuple):
    location: Location
    mac: MacAddress
    at: float
    relayed: bool


class ArpRelay:
    """Recent requests, by requester and target."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._asked: OrderedDict[tuple[Address, Address], _Asked] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of requests remembered."""
        return len(self._asked)

    def handle(self, location: Location, packet: Arp) -> None:
        """Handle a host's ARP packet, copied to the controller by a switch that forwards by itself."""
        if is_claim(packet) or not self._state.is_edge(location):
            return
        if packet.request:
            self._question(location, packet)
        else:
            self._answer(packet)

    def _question(self, location: Location, packet: Arp) -> None:
        key, now = (packet.sender, packet.target), self._state.now
        before = self._asked.get(key)
        if before is not None and now - before.at < AGAIN_AFTER_S:
            return
        again = before is not None and before.mac == packet.sender_mac and now - before.at < PENDING_S
        self._asked[key] = _Asked(location, packet.sender_mac, now, again)
        self._asked.move_to_end(key)
        while len(self._asked) > MAX_PENDING or now - next(iter(self._asked.values())).at >= PENDING_S:
            self._asked.popitem(last=False)
        target = self._state.hosts.by_address(packet.target)
        if again and target is not None and target.location.dpid != location.dpid:
            self._send(target.location, build_arp_request(packet.sender_mac, packet.sender, packet.target), "relayed")

    def _answer(self, packet: Arp) -> None:
        """Relay a reply to the requester, once, if the controller has relayed the request."""
        key = (packet.target, packet.sender)
        asked = self._asked.get(key)
        if asked is None or not asked.relayed or self._state.now - asked.at >= PENDING_S:
            return
        del self._asked[key]
        question = Arp(request=True, sender_mac=asked.mac, sender=packet.target, target=packet.sender)
        self._send(asked.location, build_arp_reply(question, packet.sender_mac), "relayed_back")

    def _send(self, location: Location, frame: bytes, what: str) -> None:
        self._state.out.append(PacketOut(location.dpid, PORT_CONTROLLER, (Output(location.port_no),), frame))
        self._state.count("arp", what)
