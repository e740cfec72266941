"""Reasons why a connection that a service covers is not accelerated: one closed set for controller, agents, metrics, API and status
(spec/northbound.md 4, spec/order.md 14).

The names are labels of metrics and reasons of conditions, the numbers are part of the wire format. Names and numbers keep their meaning;
new reasons are added at the end.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class PlainReason(IntEnum):
    """Reason for plain TCP, with its number in an agent's PlainReport."""

    OPTION = 1
    UNPARSED = 2
    VLAN = 3
    FULL = 4
    NO_AGENT = 5
    NO_PATH = 6
    DATAPATH_NOT_READY = 7
    NO_ANSWER = 8
    AGENT_LOST = 9
    AGENT_DRAINING = 10
    AGENT_SESSIONS = 11
    AGENT_MEMORY = 12
    AGENT_NO_STREAMS = 13
    AGENT_NOT_PERMITTED = 14
    AGENT_TRANSPORT = 15
    SERVER_UNREACHABLE = 16
    CLIENT_SILENT = 17
    NOT_ARMED = 18
    SHADOWED = 19
    PERCENT = 20
    OBSERVED = 21
    PORT_TAKEN = 22
    CONTROLLER_LEAVING = 23
    NO_KEY = 24
    AGENT_REFUSED = 25
    SERVER_ELSEWHERE = 26
    DECIDED = 27
    SERVER_REFUSED = 28
    SERVER_SILENT = 29
    SHARE = 30
    FRAGMENTS = 31
    TABLE_FULL = 32
    NOT_ENCRYPTED = 33
    PORT_SHARE = 34

    @property
    def label(self) -> str:
        """Return the name in metrics, API and conditions."""
        return "".join(part.capitalize() for part in self.name.split("_"))


WORDS: Final = {
    PlainReason.OPTION: "the SYN carries an MPTCP, TCP MD5 or TCP-AO option, with which the hosts would detect a relay",
    PlainReason.UNPARSED: "the SYN is not a plain TCP segment in an untagged IPv4 frame (fragment, IP options, length)",
    PlainReason.VLAN: "the frame carries a VLAN tag, which agents do not support",
    PlainReason.FULL: "the controller has reached its limit of sessions or set-ups",
    PlainReason.NO_AGENT: "a site has no agent that is alive and willing",
    PlainReason.NO_PATH: "no path joins agents of the two sites",
    PlainReason.DATAPATH_NOT_READY: "a datapath at one of the ends is disconnected or has not acknowledged its entries",
    PlainReason.NO_ANSWER: "an agent or a datapath did not answer within a second",
    PlainReason.AGENT_LOST: "an agent died or ended the session while it was set up",
    PlainReason.AGENT_DRAINING: "an agent is draining",
    PlainReason.AGENT_SESSIONS: "an agent has reached its session limit",
    PlainReason.AGENT_MEMORY: "an agent has reached its memory limit",
    PlainReason.AGENT_NO_STREAMS: "the agents have no stream between them",
    PlainReason.AGENT_NOT_PERMITTED: "an agent's own configuration does not cover the connection (it may not be there yet)",
    PlainReason.AGENT_TRANSPORT: "an agent does not support the requested transport",
    PlainReason.SERVER_UNREACHABLE: "the server left SYNs unanswered within the last 30 s",
    PlainReason.CLIENT_SILENT: "the client did not complete its recent handshakes with the agent",
    PlainReason.NOT_ARMED: "the ingress agent is not armed for the service (starting, or more services than its tables hold)",
    PlainReason.SHADOWED: "a service with precedence covers the connection, and leaves it plain",
    PlainReason.PERCENT: "spec.percent leaves this share plain",
    PlainReason.OBSERVED: "spec.mode is Observe",
    PlainReason.PORT_TAKEN: "an agent needs the client's port for another connection or for a listener of its own",
    PlainReason.CONTROLLER_LEAVING: "the controller is shutting down",
    PlainReason.NO_KEY: "the controller has no key for orders to an agent's site",
    PlainReason.AGENT_REFUSED: "an agent refused for a reason that this controller does not know",
    PlainReason.SERVER_ELSEWHERE: "packets of the server do not pass the datapath of the egress agent",
    PlainReason.FRAGMENTS: "the hosts send fragments of TCP segments, and no single transparent agent serves them",
    PlainReason.TABLE_FULL: "the flow table of a datapath at one of the ends has no space for the connection's entries",
    PlainReason.NOT_ENCRYPTED: "spec.require of the service includes Encrypted, and the streams between its sites are not encrypted",
    PlainReason.PORT_SHARE: "connections that entered at the same switch port have the port's share of sessions or set-ups",
    PlainReason.DECIDED: "an earlier SYN of the connection went plain for a reason that is no longer stored",
    PlainReason.SERVER_REFUSED: "the server or a firewall refused the connection, and the client receives the refusal directly",
    PlainReason.SERVER_SILENT: "the server did not answer the egress agent's SYN, so the client's SYN goes to it directly",
    PlainReason.SHARE: "services of its namespace have their share of a site's sessions (spec.services.rules of the SosSite)",
}
"""Message for users, one line per reason."""
