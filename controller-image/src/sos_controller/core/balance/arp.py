"""ARP entries of a balance: its switch answers requests by itself, so that host and routers resolve addresses while no controller runs."""

from __future__ import annotations

from collections.abc import Iterable

from sos_controller.core.balance.policy import Policy
from sos_controller.core.openflow.arp_responder import arp_answer, asking
from sos_controller.core.openflow.flow_entries import FlowEntry, Output
from sos_controller.core.openflow.pipeline import (
    GATEWAY_MAC,
    PORT_NORMAL,
    PRIORITY_NEIGHBOUR,
    PRIORITY_STAND_IN,
    TABLE_FORWARD,
)
from sos_controller.core.tables.policies import outermost
from sos_controller.core.types import Address, Port, Prefix

_EXACT = 0xFFFFFFFF


def host_answers(policy: Policy, gateway: Address | None, subnets: Iterable[Prefix], cookie: int) -> list[FlowEntry]:
    """Return entries that answer a host's ARP requests for its gateway, and for destinations outside its subnets (requested by hosts with
    routes but no gateway). Requests for addresses in its subnets are forwarded: neighbours answer them."""
    sender = (policy.client, _EXACT)
    # Forward a host's probe of its own address, so that any other owner answers it (RFC 5227), even if the address is a destination.
    own = FlowEntry(TABLE_FORWARD, PRIORITY_NEIGHBOUR, asking(sender, sender), (Output(PORT_NORMAL),), cookie)
    found = [own] if gateway is None else [own, arp_answer(asking((gateway, _EXACT), sender), GATEWAY_MAC, cookie)]
    for prefix in subnets:
        found.append(FlowEntry(TABLE_FORWARD, PRIORITY_NEIGHBOUR, asking(prefix.masked, sender), (Output(PORT_NORMAL),), cookie))
    beyond = outermost(policy.destinations) if policy.fits else ()
    return found + [arp_answer(asking(p.masked, sender), GATEWAY_MAC, cookie, PRIORITY_STAND_IN) for p in beyond]


def router_answer(port: Port, uplink: Address, cookie: int) -> FlowEntry:
    """Return the entry that answers a router's request for an uplink's address with the port's MAC address."""
    return arp_answer(asking((uplink, _EXACT), in_port=port.port_no), port.mac, cookie)
