"""Outcomes of punted SYNs, and reasons for the ends of set-ups and sessions: one closed set, with the reason for plain TCP behind each.

The texts are labels of the SYN counter and reasons in audit records and notices. An agent may refuse a session with a number that this
controller does not know, so refusals of agents are a type of their own (`AgentRefusal`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from sos_controller.core.plain.reason import PlainReason


class Outcome(StrEnum):
    """Outcome of a SYN, of a set-up or of a session; its value is the text in metrics and audit records."""

    BEGUN = "begun"
    HELD = "held"
    FORWARDED = "forwarded"

    DECIDED = "decided"
    """An earlier SYN of the connection went plain."""
    NO_SERVICE = "no-service"
    OPTION = "option"
    UNPARSED = "unparsed"
    FULL = "full"
    SHARE = "share"
    PORT_SHARE = "port-share"
    FRAGMENTS = "fragments"
    CLIENT_SILENT = "client-silent"
    SERVER_UNREACHABLE = "server-unreachable"
    SERVER_ELSEWHERE = "server-elsewhere"
    NO_AGENTS = "no-agents"
    EGRESS_DATAPATH = "far-datapath"
    INGRESS_DATAPATH = "near-datapath"
    TABLE_FULL = "table-full"
    PORT_TAKEN = "port-taken"
    NO_KEY = "no-key"
    LEAVING = "leaving"

    TIMEOUT = "timeout"
    DATAPATH_FAILED = "datapath-failed"
    AGENT_LOST = "agent-lost"
    AGENT_ENDED = "agent-ended"

    ENDED = "ended"
    """Both agents have reported the end."""
    PORT_REUSED = "port-reused"
    NOT_REPORTED = "not-reported"
    AGENT_UNKNOWN = "agent-unknown"
    """The agent of an adopted session has never announced itself."""
    DATAPATH_UNCLAIMED = "datapath-unclaimed"
    MOVED_AWAY = "moved-away"
    NOT_FOLLOWED = "not-followed"
    """MOVED_AWAY: a host is where no entry of the controller matches its packets. NOT_FOLLOWED: a host's new switch refused its entries, or
    was disconnected."""

    @property
    def text(self) -> str:
        """Return the text in metrics and audit records."""
        return self.value

    @property
    def reason(self) -> PlainReason | None:
        """Return the reason for plain TCP; None if the outcome concerns no covered connection, or leaves none plain."""
        return _REASONS.get(self)


class AgentRefusal(NamedTuple):
    """Refusal of a session by an agent, with the number in its Refused (spec/order.md 4)."""

    number: int

    @property
    def text(self) -> str:
        """Return the text in metrics and audit records."""
        return f"refused-{self.number}"

    @property
    def reason(self) -> PlainReason:
        """Return the reason for plain TCP."""
        return _REFUSED.get(self.number, PlainReason.AGENT_REFUSED)


_REASONS: Final = {
    Outcome.OPTION: PlainReason.OPTION,
    Outcome.UNPARSED: PlainReason.UNPARSED,
    Outcome.FULL: PlainReason.FULL,
    Outcome.SHARE: PlainReason.SHARE,
    Outcome.PORT_SHARE: PlainReason.PORT_SHARE,
    Outcome.FRAGMENTS: PlainReason.FRAGMENTS,
    Outcome.CLIENT_SILENT: PlainReason.CLIENT_SILENT,
    Outcome.SERVER_UNREACHABLE: PlainReason.SERVER_UNREACHABLE,
    Outcome.SERVER_ELSEWHERE: PlainReason.SERVER_ELSEWHERE,
    Outcome.NO_AGENTS: PlainReason.NO_AGENT,
    Outcome.EGRESS_DATAPATH: PlainReason.DATAPATH_NOT_READY,
    Outcome.INGRESS_DATAPATH: PlainReason.DATAPATH_NOT_READY,
    Outcome.TABLE_FULL: PlainReason.TABLE_FULL,
    Outcome.PORT_TAKEN: PlainReason.PORT_TAKEN,
    Outcome.NO_KEY: PlainReason.NO_KEY,
    Outcome.LEAVING: PlainReason.CONTROLLER_LEAVING,
    Outcome.TIMEOUT: PlainReason.NO_ANSWER,
    Outcome.DATAPATH_FAILED: PlainReason.DATAPATH_NOT_READY,
    Outcome.AGENT_LOST: PlainReason.AGENT_LOST,
    Outcome.AGENT_ENDED: PlainReason.AGENT_LOST,
}

_REFUSED: Final = {
    1: PlainReason.AGENT_DRAINING,
    2: PlainReason.AGENT_SESSIONS,
    3: PlainReason.AGENT_MEMORY,
    4: PlainReason.AGENT_NO_STREAMS,
    5: PlainReason.AGENT_NOT_PERMITTED,
    6: PlainReason.AGENT_TRANSPORT,
    7: PlainReason.SERVER_UNREACHABLE,
    8: PlainReason.PORT_TAKEN,
    9: PlainReason.SERVER_REFUSED,
    10: PlainReason.SERVER_REFUSED,
    11: PlainReason.SERVER_SILENT,
}
