"""ARP responder: entry by which a switch answers ARP requests by itself, with or without a controller."""

from __future__ import annotations

from sos_controller.core.openflow.flow_entries import AnswerArp, FlowEntry, Masked, Match, Output
from sos_controller.core.openflow.pipeline import ARP_REQUEST, ETH_ARP, PORT_IN_PORT, PRIORITY_ANSWER_ARP, TABLE_FORWARD
from sos_controller.core.types import MacAddress, PortNo


def asking(target: Masked | None, sender: Masked | None = None, in_port: PortNo | None = None) -> Match:
    """Match ARP requests for `target`; None matches any target, sender or port."""
    return Match(in_port=in_port, eth_type=ETH_ARP, arp_op=ARP_REQUEST, arp_sender=sender, arp_target=target)


def arp_answer(question: Match, mac: MacAddress, cookie: int, priority: int = PRIORITY_ANSWER_ARP) -> FlowEntry:
    """Return the entry that answers requests matching `question` with `mac` (RFC 826: sender and target swapped)."""
    return FlowEntry(TABLE_FORWARD, priority, question, (AnswerArp(mac), Output(PORT_IN_PORT)), cookie)
