"""ARP that the switch of a balance answers by itself, so that host and routers find it while no controller lives."""

from __future__ import annotations

from collections.abc import Iterable

from sos_controller.core.balance_policy import Policy
from sos_controller.core.flowtable import AnswerArp, FlowEntry, Masked, Match, Output
from sos_controller.core.model import Address, Port, Prefix
from sos_controller.core.pipeline import (
    ARP_REQUEST,
    ETH_ARP,
    GATEWAY_MAC,
    PORT_IN_PORT,
    PORT_NORMAL,
    PRIORITY_ANSWER_ARP,
    PRIORITY_NEIGHBOUR,
    PRIORITY_STAND_IN,
    TABLE_FORWARD,
)
from sos_controller.core.services import outermost

_EXACT = 0xFFFFFFFF


def host_answers(policy: Policy, gateway: Address | None, subnets: Iterable[Prefix], cookie: int) -> list[FlowEntry]:
    """A host asks for its gateway, or, with routes but no gateway, for a destination itself; neighbours answer for themselves."""
    sender = (policy.client, _EXACT)
    found = [] if gateway is None else [_turned(PRIORITY_ANSWER_ARP, sender, (gateway, _EXACT), cookie)]
    for prefix in subnets:
        match = Match(eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_sender=sender, arp_target=prefix.masked)
        found.append(FlowEntry(TABLE_FORWARD, PRIORITY_NEIGHBOUR, match, (Output(PORT_NORMAL),), cookie))
    beyond = outermost(policy.destinations) if policy.fits else ()
    return found + [_turned(PRIORITY_STAND_IN, sender, prefix.masked, cookie) for prefix in beyond]


def router_answer(port: Port, uplink: Address, cookie: int) -> FlowEntry:
    """A router asks for an uplink's address: it is the port's."""
    match = Match(in_port=port.port_no, eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_target=(uplink, _EXACT))
    return FlowEntry(TABLE_FORWARD, PRIORITY_ANSWER_ARP, match, (AnswerArp(port.mac), Output(PORT_IN_PORT)), cookie)


def _turned(priority: int, sender: Masked, target: Masked | None, cookie: int) -> FlowEntry:
    match = Match(eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_sender=sender, arp_target=target)
    return FlowEntry(TABLE_FORWARD, priority, match, (AnswerArp(GATEWAY_MAC), Output(PORT_IN_PORT)), cookie)
