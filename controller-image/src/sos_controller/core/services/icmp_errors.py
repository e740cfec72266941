"""ICMP errors about a session's segments reach the agent that sent these segments with a host's address (docs/adr/0052).

A router behind a site reports a segment that it cannot forward to the segment's source address: a host's address, although an agent sent
it. The switches of a service's sites copy such errors to the controller and forward them as before, so hosts receive all errors, with or
without a controller. The controller finds the session by the quoted segment and passes the error to the session's agent, whose kernel
checks it like any host's kernel: the quoted sequence number must be in flight (RFC 5927).

Proactive services need no controller for this: their entries redirect errors to the agent, whose kernel forwards errors about segments that
are not its own.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Action, FlowEntry, Goto, Match, Output
from sos_controller.core.openflow.pipeline import (
    PORT_CONTROLLER,
    PRIORITY_ICMP,
    TABLE_FORWARD,
    TABLE_REDIRECT,
    Kind,
    shared,
)
from sos_controller.core.state import State
from sos_controller.core.tables.policies import error_matches
from sos_controller.core.tables.sessions import FINAL, Session
from sos_controller.core.types import DatapathId, FlowKey, Location, Prefix, flow_key
from sos_controller.core.wire.packets import IcmpError, parse_icmp_error, readdress_icmp_error

MAX_PER_SECOND: Final = 1_000
"""Maximum number of errors processed per second. A router reports each error once per session and round trip; errors beyond this number are
probably forged, and are forwarded as plain traffic, which costs a session at most a retransmission."""


class IcmpErrors:
    """Copies of ICMP errors, and their delivery to the agents of sessions."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._second, self._taken = 0, 0

    def configure(self) -> None:
        """Request copies of errors at both sites of all reactive services."""
        state = self._state
        wanted: dict[DatapathId, dict[Match, FlowEntry]] = {}
        known: dict[tuple[Prefix, ...], dict[Match, FlowEntry]] = {}  # many services share their prefixes
        for policy in (p for policies in state.policies.by_site.values() for p in policies):
            service = policy.service
            if not state.has_entries(service) or state.is_proactive(service):
                continue
            for site, prefixes in ((service.from_.site, policy.servers), (service.to.site, policy.clients)):
                if prefixes not in known:
                    known[prefixes] = {match: self._entry(match) for match in error_matches(prefixes)}
                for datapath in state.sites[site].datapaths:
                    wanted.setdefault(datapath.number, {}).update(known[prefixes])
        state.programmer.set_group("icmp", {dpid: entries.values() for dpid, entries in wanted.items()}, state.out)

    def copied(self, location: Location, data: bytes) -> None:
        """Handle an error copied by a switch."""
        state = self._state
        if int(state.now) != self._second:
            self._second, self._taken = int(state.now), 0
        self._taken += 1
        error = parse_icmp_error(data) if self._taken <= MAX_PER_SECOND else None
        if error is None:
            state.count("icmp_errors", "ignored")
            return
        for ingress in (True, False):
            session = state.sessions.by_key(_key(error, ingress))
            if session is not None and self._is_at(session, ingress, location) and self._deliver(session, ingress, data):
                state.count("icmp_errors", "delivered")
                return
        state.count("icmp_errors", "plain")

    def _entry(self, match: Match) -> FlowEntry:
        cookie = self._state.cookie(Kind.ICMP)
        actions: tuple[Action, ...] = (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD))
        return FlowEntry(TABLE_REDIRECT, shared(PRIORITY_ICMP, cookie), match, actions, cookie)

    def _is_at(self, session: Session, ingress: bool, location: Location) -> bool:
        """Return whether an error arrived at the site of the session's agent."""
        agent = self._state.agents.get(session.ingress if ingress else session.egress)
        claims = self._state.claims
        here, there = claims.get(location.dpid), claims.get(agent.location.dpid) if agent is not None else None
        return here is not None and there is not None and here[0].name == there[0].name

    def _deliver(self, session: Session, ingress: bool, data: bytes) -> bool:
        """Pass an error to an agent. If the agent's site rewrites, readdress the error to the agent's own address and port."""
        agent_id = session.ingress if ingress else session.egress
        agent = self._state.agents.get(agent_id)
        if agent is None or session.state in FINAL:
            return False
        port = self._state.rewritten_port(agent_id, ingress, session.client_port)
        frame = readdress_icmp_error(data, agent.beacon.address, port) if port else data
        where = agent.location
        self._state.out.append(PacketOut(where.dpid, PORT_CONTROLLER, (Output(where.port_no),), agent.beacon.mac + frame[6:]))
        return True


def _key(error: IcmpError, ingress: bool) -> FlowKey:
    """Return the flow of a quoted segment: an ingress agent sends from the server's address, an egress agent from the client's."""
    if ingress:
        return flow_key(error.destination, error.source, error.destination_port, error.source_port)
    return flow_key(error.source, error.destination, error.source_port, error.destination_port)
