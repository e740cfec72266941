"""Sessions: their phases as a table of transitions, and the tables that index them.

    OBSERVED --ORDERED--> PREPARING --COMPLETE--> ACTIVE --AGENT_ENDED--> ENDING --OVER--> ENDED   (ACTIVE --OVER--> ENDED)
    OBSERVED, PREPARING --GIVE_UP--> PLAIN

PREPARING is complete when both agents are ready and all switches have answered the barriers after the redirect entries, in any order.

A session that is given up has never been redirected: its SYN goes plain. A session that has been ACTIVE never continues as plain TCP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from sos_controller.core.config import Transport
from sos_controller.core.openflow.flow_entries import Placed
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.tables.port_shares import PortShares
from sos_controller.core.types import Address, AgentId, DatapathId, FlowKey, Location, MacAddress
from sos_controller.core.wire.order import Ended

MAX_SESSIONS: Final = 65_536
MAX_PENDING = 16_384
"""Maximum number of sessions being set up; each contains a SYN frame, so this bounds the memory of these frames (25 MiB)."""


AGENTS_DECIDE: Final = Transport(streams=0, block_bytes=0, queue_bytes=0, congestion_control="Auto")
"""Transport of sessions without a service, such as adopted sessions: the agents choose all settings."""

Group = tuple[str, str]
"""A site and a namespace: sessions that are counted together."""


class Phase(Enum):
    """Phase of a session's life."""

    __hash__ = object.__hash__  # members are singletons; Enum's own method hashes the name in Python at each transition

    OBSERVED = "Observed"
    PREPARING = "Preparing"
    ACTIVE = "Active"
    ENDING = "Ending"
    ENDED = "Ended"
    PLAIN = "Plain"


class Trigger(Enum):
    """Cause of a transition."""

    __hash__ = object.__hash__

    ORDERED = auto()
    COMPLETE = auto()
    GIVE_UP = auto()
    AGENT_ENDED = auto()
    OVER = auto()


PENDING: Final = frozenset((Phase.OBSERVED, Phase.PREPARING))
FINAL: Final = frozenset((Phase.ENDED, Phase.PLAIN))

TRANSITIONS: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.OBSERVED, Trigger.ORDERED): Phase.PREPARING,
    (Phase.PREPARING, Trigger.COMPLETE): Phase.ACTIVE,
    **{(state, Trigger.GIVE_UP): Phase.PLAIN for state in PENDING},
    (Phase.ACTIVE, Trigger.AGENT_ENDED): Phase.ENDING,
    (Phase.ENDING, Trigger.AGENT_ENDED): Phase.ENDING,
    (Phase.ACTIVE, Trigger.OVER): Phase.ENDED,
    (Phase.ENDING, Trigger.OVER): Phase.ENDED,
}


_NAMELESS: Final = bytes(14)
_TRAFFIC_CLASS_AT: Final = 15
"""Offset of the traffic class in an untagged frame: after 14 bytes of Ethernet and the IP version (RFC 791, 3.1)."""
_TTL_AT: Final = 22


def adopted_uuid(number: bytes) -> bytes:
    """Return a placeholder for the UUID of an adopted session until a report contains the UUID: the cookie contains only its last 16
    bits."""
    return _NAMELESS + number


def session_uuid(seed: int, counter: int) -> bytes:
    """Return a UUID of version 8 (RFC 9562, 5.8): 60 bits of the controller's run, a counter of 62 bits, so that the last 16 bits
    distinguish 65,536 sessions."""
    high = (seed >> 12 & 0xFFFFFFFFFFFF) << 16 | 0x8000 | seed & 0xFFF
    low = 0b10 << 62 | ((seed >> 60) + counter) & 0x3FFFFFFFFFFFFFFF
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


class InvalidTransitionError(Exception):
    """A bug: the engine requested a transition that is not in the table."""


class Session:
    """One flow that is being, or has been, redirected."""

    __slots__ = (
        *(
            "adopted",
            "asked",
            "attempts",
            "created_at",
            "dpid",
            "due",
            "egress",
            "egress_entries",
            "in_port",
            "isn",
            "key",
            "labels",
            "mac",
            "opened_at",
            "ingress",
        ),
        *(
            "ingress_entries",
            "number",
            "ready",
            "service",
            "site",
            "state",
            "syn",
            "uuid",
            "waiting",
            "ended_by",
            "installed_at",
            "deliver_at",
            "confirms",
            "connect_at",
            "leading",
            "requires",
            "transport",
            "is_rewritten",
        ),
    )

    def __init__(self, key: FlowKey, uuid: bytes, location: Location, now: float) -> None:
        self.key = key
        self.uuid = uuid
        self.number = int.from_bytes(uuid[-2:], "big")
        self.dpid, self.in_port = self.opened_at = location  # opened_at: stays when the client moves, for the shares of ports
        self.created_at = now
        self.state = Phase.OBSERVED
        self.service = ""
        self.site = ""
        self.requires = False  # its service requires more than plain TCP: the connection is refused if the set-up is given up
        self.ingress = self.egress = AgentId(b"")
        self.labels = 1
        self.transport = AGENTS_DECIDE  # of its service when the SYN arrived, so that both agents get the same settings
        self.is_rewritten = False  # switches rewrite its packets to the egress agent's address
        self.isn = self.syn = b""
        self.mac = MacAddress(b"")  # of the client, from its SYN
        self.attempts = 0
        self.asked = 0  # sequence number of its first Prepare; the order to the other agent has the next number
        self.due = 0.0  # time of its only valid timer
        self.ready: set[AgentId] = set()
        self.ended_by: dict[AgentId, Ended | Outcome] = {}  # an agent's Ended, else the reason why its side is assumed to be over
        self.waiting = 0  # number of entries that some datapath has not acknowledged
        self.installed_at = now  # when the last entry was acknowledged
        self.deliver_at = now  # time from which its SYN may go to the ingress agent
        self.confirms = False  # its SYN waits until the server has accepted the egress agent's connection
        self.connect_at = 0.0  # time from which the egress agent may connect: the server's answer needs the egress entries
        self.leading = 0  # number of egress entries that some datapath has not acknowledged
        self.ingress_entries: list[Placed] = []
        self.egress_entries: list[Placed] = []
        self.adopted = False

    def advance(self, trigger: Trigger) -> Phase:
        """Make a transition; raise InvalidTransitionError if the table has none."""
        following = TRANSITIONS.get((self.state, trigger))
        if following is None:
            raise InvalidTransitionError(f"{self.state.value} has no {trigger.name}")
        self.state = following
        return following

    @property
    def is_nameless(self) -> bool:
        """Return whether the session is adopted and only the last 16 bits of its UUID are known."""
        return self.uuid[:14] == _NAMELESS

    @property
    def dscp(self) -> int:
        """Return the DSCP of its SYN (RFC 2474)."""
        return self.syn[_TRAFFIC_CLASS_AT] >> 2 if self.syn else 0

    @property
    def ttl(self) -> int:
        """Return the time to live of its SYN, 0 = not known (RFC 791)."""
        return self.syn[_TTL_AT] if self.syn else 0

    @property
    def client_port(self) -> int:
        """Return the client's port."""
        return self.key[8] << 8 | self.key[9]

    @property
    def client(self) -> Address:
        """Return the address of the host that opened the connection."""
        return Address(int.from_bytes(self.key[:4], "big"))

    @property
    def server(self) -> Address:
        """Return the address of the host that accepts the connection."""
        return Address(int.from_bytes(self.key[4:8], "big"))

    def entries(self) -> list[Placed]:
        """Return all its redirect entries, ingress side first (the order of removal)."""
        return self.ingress_entries + self.egress_entries

    def datapaths(self) -> set[DatapathId]:
        """Return the datapaths that have its entries."""
        return {dpid for dpids, _ in self.entries() for dpid in dpids}


class Sessions:
    """Sessions by flow, by UUID and by agent."""

    def __init__(self, limit: int = MAX_SESSIONS, pending_limit: int = MAX_PENDING) -> None:
        self._limit, self._pending_limit = limit, pending_limit
        self._by_key: dict[FlowKey, Session] = {}
        self._by_uuid: dict[bytes, Session] = {}
        self._nameless: dict[bytes, dict[FlowKey, Session]] = {}  # by number; several sessions may share a number
        self._by_agent: dict[AgentId, dict[FlowKey, Session]] = {}
        self._by_host: dict[bytes, dict[FlowKey, Session]] = {}  # by the four bytes of an address
        self.pairs: Counter[tuple[AgentId, AgentId]] = Counter()
        self.by_service: Counter[str] = Counter()
        self.by_group: Counter[Group] = Counter()
        self._groups: Mapping[str, tuple[Group, ...]] = {}
        self.ports, self.pending_ports = PortShares(), PortShares()

    def group(self, groups: Mapping[str, tuple[Group, ...]]) -> None:
        """Count sessions by the groups of their services from now on, including existing sessions."""
        self._groups, self.by_group = groups, Counter()
        for service, members in groups.items():
            for each in members:
                self.by_group[each] += self.by_service[service]

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_key.values()))

    @property
    def pending(self) -> int:
        """Return the number of sessions being set up."""
        return self.pending_ports.total

    def begin(self, session: Session) -> None:
        """Count a session as being set up."""
        self.pending_ports.take(session.opened_at)

    def settle(self, session: Session) -> None:
        """Count a session as set up or given up."""
        self.pending_ports.free(session.opened_at)

    def allows(self, port: Location) -> bool:
        """Return whether the SYNs of a port may have one more session and set-up (docs/adr/0087)."""
        return self.ports.allows(port, self._limit) and self.pending_ports.allows(port, self._pending_limit)

    @property
    def full(self) -> bool:
        """Return whether the table is full: new flows stay plain."""
        return len(self._by_key) >= self._limit or self.pending >= self._pending_limit

    def by_key(self, key: FlowKey) -> Session | None:
        """Return the session of a flow."""
        return self._by_key.get(key)

    def by_uuid(self, uuid: bytes) -> Session | None:
        """Return the session with a UUID."""
        return self._by_uuid.get(uuid)

    def nameless(self, number: bytes) -> list[Session]:
        """Return adopted sessions whose UUIDs are unknown except for these last two bytes."""
        return list(self._nameless.get(number, {}).values())

    def of(self, agent: AgentId) -> list[Session]:
        """Return all sessions of an agent."""
        return list(self._by_agent.get(agent, {}).values())

    def of_host(self, address: Address) -> list[Session]:
        """Return all sessions of a host, as client or as server."""
        return list(self._by_host.get(address.to_bytes(4, "big"), {}).values())

    def has_host(self, address: Address) -> bool:
        """Return whether a host has sessions."""
        return address.to_bytes(4, "big") in self._by_host

    def add(self, session: Session) -> None:
        """Add a session whose agents are chosen."""
        self._by_key[session.key] = session
        self.ports.take(session.opened_at)
        for host in (session.key[:4], session.key[4:8]):
            self._by_host.setdefault(host, {})[session.key] = session
        if session.is_nameless:
            self._nameless.setdefault(session.uuid[14:], {})[session.key] = session
        else:
            self._by_uuid[session.uuid] = session
        self._link(session)

    def _link(self, session: Session) -> None:
        self.pairs[session.ingress, session.egress] += 1
        self.by_service[session.service] += 1
        for group in self._groups.get(session.service, ()):
            self.by_group[group] += 1
        for agent in {session.ingress, session.egress} - {b""}:
            self._by_agent.setdefault(agent, {})[session.key] = session

    def remove(self, session: Session) -> None:
        """Remove a session."""
        if self._by_key.get(session.key) is session:
            del self._by_key[session.key]
            self.ports.free(session.opened_at)
            for host in {session.key[:4], session.key[4:8]}:
                theirs = self._by_host[host]
                del theirs[session.key]
                if not theirs:
                    del self._by_host[host]
            self._unlink(session)
        self._forget_name(session)

    def rename(self, session: Session, uuid: bytes) -> None:
        """Set a nameless session's UUID, which has become known."""
        self._forget_name(session)
        session.uuid = uuid
        self._by_uuid[uuid] = session

    def _forget_name(self, session: Session) -> None:
        if self._by_uuid.get(session.uuid) is session:
            del self._by_uuid[session.uuid]
        others = self._nameless.get(session.uuid[14:], {})
        if session.is_nameless and others.get(session.key) is session:
            del others[session.key]
            if not others:
                del self._nameless[session.uuid[14:]]

    def reassign(self, session: Session, ingress: AgentId, egress: AgentId) -> None:
        """Set an adopted session's agents, which have become known."""
        self._unlink(session)
        session.ingress, session.egress = ingress, egress
        self._link(session)

    def _unlink(self, session: Session) -> None:
        pair = (session.ingress, session.egress)
        self.pairs[pair] -= 1
        self.by_service[session.service] -= 1
        for group in self._groups.get(session.service, ()):
            self.by_group[group] -= 1
        if not self.pairs[pair]:
            del self.pairs[pair]
        if not self.by_service[session.service]:
            del self.by_service[session.service]
        for agent in (session.ingress, session.egress):
            theirs = self._by_agent.get(agent, {})
            if theirs.get(session.key) is session:
                del theirs[session.key]
                if not theirs:
                    del self._by_agent[agent]
