"""Proactive services: standing entries, a constant number per service and switch, without packet-ins and state per flow (docs/adr/0012).

The switch of each site's agents sends all packets of a service to its agents: client to server at the ingress site, server to client at
the egress site. The agents' kernels forward packets of other connections as plain traffic. An entry points to a group that the switch
itself diverts to plain forwarding when the agent's port goes down, so entries need no lease and work while the controller is down. At a
switch with several agents, entries continue in the tables of `agent_ring` instead.

    EGRESS --egress side and paths acknowledged--> UNARMED --acknowledged, UNARMED_S later--> ARMED

UNARMED entries mark SYNs; the ingress agent forwards marked SYNs as plain traffic and remembers them: a SYN in flight when the entries were
installed must not be accelerated when it is retransmitted. Entries of a removed service are *leaving*: unarmed, and kept until no session
needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from sos_controller.core.commands import ApplyGroup
from sos_controller.core.config import Service
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import Action, EntryKey, FlowEntry, LearnSource, Match, Resubmit, SetEthSrc, ToGroup
from sos_controller.core.openflow.pipeline import (
    BARE_SYN,
    PRIORITY_SERVICE,
    PRIORITY_SERVICE_SYN,
    PRIORITY_UNARMED,
    REJECT_PORT,
    TABLE_FROM_CLIENT,
    TABLE_FROM_SERVER,
    TABLE_REDIRECT,
    UNARMED_MAC,
    Kind,
)
from sos_controller.core.pairs.agent_pairs import Pair
from sos_controller.core.services import agent_ring
from sos_controller.core.services.agent_rings import AgentRings
from sos_controller.core.state import State
from sos_controller.core.tables.agent_sessions import Flow
from sos_controller.core.tables.policies import Policy, error_matches, fragment_matches, punt_matches, redirect_matches
from sos_controller.core.types import DatapathId, MacAddress, PortNo

UNARMED_S = 4.0
"""Duration of UNARMED. A SYN sent before the installation of the entries is retransmitted within this time, except a SYN that has already
been retransmitted twice (RFC 6298: after 1, 2, 4 s)."""
LEAVE_S = 15.0
"""Minimum lifetime of a removed service's entries: all agents have sent beacons by then, even after a restart of the controller."""
REPORT_MARGIN_S = 6.0
"""Minimum time from the withdrawal of a service's entries to an agent's report that certainly names all sessions begun before the
withdrawal (one report every 5 s)."""

GROUP = "services"


class Stage(IntEnum):
    """Stage of a service's installation."""

    EGRESS = 1
    UNARMED = 2
    ARMED = 3


class Footprint(NamedTuple):
    """Datapaths and matches of a service. The service's entries change only if these change."""

    ingress_dpid: DatapathId
    egress_dpid: DatapathId
    ingress: tuple[Match, ...]
    egress: tuple[Match, ...]


class Standing:
    """A service whose entries are installed or being installed."""

    __slots__ = ("footprint", "service", "since", "stage")

    def __init__(self, service: Service, footprint: Footprint) -> None:
        self.service, self.footprint = service, footprint
        self.stage = Stage.EGRESS
        self.since: float | None = None  # when the entries of this stage were acknowledged


class Leaving(NamedTuple):
    """An entry kept for sessions that need it."""

    dpid: DatapathId
    entry: FlowEntry
    since: float


class Proactive:
    """Owner of the entries of all proactive services."""

    def __init__(self, state: State, working_pairs: Callable[[Service], list[Pair]]) -> None:
        self._state, self._working_pairs = state, working_pairs
        self._rings = AgentRings(state)
        self._redirecting: set[DatapathId] = set()  # datapaths with entries
        self._standing: dict[str, Standing] = {}
        self._leaving: list[Leaving] = []
        self._ways: dict[DatapathId, tuple[PortNo, MacAddress]] = {}
        self._sent: dict[DatapathId, tuple[tuple[PortNo, MacAddress], bool]] = {}  # True: the reject group was sent, too
        self._waiting: dict[tuple[str, str], list[Policy]] = {}  # services without a pair, by their sites
        self._rejecting: dict[DatapathId, bool] = {}  # datapaths with entries; True: some of them need the reject group
        self._configured = False

    def is_armed(self, service_id: str) -> bool:
        """Return whether new connections of a service are accelerated by standing entries."""
        found = self._standing.get(service_id)
        return found is not None and found.stage is Stage.ARMED

    def configure(self) -> None:
        """Release removed and changed services; new services wait for a pair of agents."""
        state = self._state
        wanted = {p.service.id: p for policies in state.policies.by_site.values() for p in policies if self._is_wanted(p.service)}
        footprints = {service_id: self._footprint(policy) for service_id, policy in wanted.items()}
        for service_id, standing in list(self._standing.items()):
            if footprints.get(service_id) != standing.footprint:
                self._leave(self._standing.pop(service_id))
            else:
                standing.service = wanted[service_id].service
        self._waiting = {}
        for service_id, policy in wanted.items():
            if service_id not in self._standing:
                self._waiting.setdefault((policy.service.from_.site, policy.service.to.site), []).append(policy)
        self._leaving = [found for found in self._leaving if found.dpid in state.claims]
        self._configured = True

    def replan(self) -> None:
        """Begin services that have got a pair of agents; follow the agents of all others."""
        begun = [sites for sites, waiting in self._waiting.items() if self._working_pairs(waiting[0].service)]
        for sites in begun:
            for policy in self._waiting.pop(sites):
                self._standing[policy.service.id] = Standing(policy.service, self._footprint(policy))
        if begun or self._configured or self._rings.update(self._redirecting):
            self._configured = False
            self._emit()
        else:
            self._make_groups()

    def tick(self) -> None:
        """Advance services as acknowledgements and time allow."""
        leaving = [found for found in self._leaving if self._is_needed(found)]
        changed = len(leaving) < len(self._leaving)
        self._leaving = leaving
        pending = self._rings.pending
        if pending and self._rings.update(pending):
            changed = True
        for standing in self._standing.values():
            if standing.stage is not Stage.ARMED and self._advance(standing):
                changed = True
        if changed:
            self._emit()

    def adopt(self, dpid: DatapathId, earlier: Iterable[FlowEntry]) -> list[FlowEntry]:
        """Take over the entries of earlier runs on a datapath that has just been read; return all other entries."""
        rest = []
        for entry in self._rings.adopt(dpid, list(earlier)):
            if pipeline.cookie_kind(entry.cookie) == Kind.SERVICE:
                self._leaving.append(Leaving(dpid, entry, self._state.now))
            else:
                rest.append(entry)
        self._sent.pop(dpid, None)
        self._emit()
        return rest

    def _is_wanted(self, service: Service) -> bool:
        return self._state.is_proactive(service) and self._state.has_entries(service)

    # -- stages

    def _advance(self, standing: Standing) -> bool:
        state, footprint = self._state, standing.footprint
        if standing.stage is Stage.EGRESS:
            pairs = self._working_pairs(standing.service)
            dpids = {footprint.egress_dpid}.union(*(pair.dpids for pair in pairs))
            if not pairs or not all(map(state.programmer.is_acknowledged, dpids)):
                return False
            standing.stage = Stage.ARMED if self._is_armed_already(footprint) else Stage.UNARMED
            return True
        if standing.since is None:
            if state.programmer.is_acknowledged(footprint.ingress_dpid):
                standing.since = state.now
            return False
        if state.now - standing.since < UNARMED_S:
            return False
        standing.stage = Stage.ARMED
        return True

    def _is_armed_already(self, footprint: Footprint) -> bool:
        """Return whether an earlier run of the controller left all ingress entries armed."""
        at = [found.entry for found in self._leaving if found.dpid == footprint.ingress_dpid]
        there = {entry.match for entry in at if not any(isinstance(action, SetEthSrc) for action in entry.actions)}
        return there.issuperset(footprint.ingress)

    def _leave(self, standing: Standing) -> None:
        now, footprint = self._state.now, standing.footprint
        if standing.stage is not Stage.EGRESS:
            entries = self._entries(standing, ingress=True, armed=False)
            self._leaving.extend(Leaving(footprint.ingress_dpid, entry, now) for entry in entries)
        entries = self._entries(standing, ingress=False, armed=True)
        self._leaving.extend(Leaving(footprint.egress_dpid, entry, now) for entry in entries)

    def _is_needed(self, found: Leaving) -> bool:
        """Return whether a session may still depend on an entry: an agent at its datapath has not reported recently enough, or a reported
        session matches the entry."""
        state = self._state
        if state.now - found.since < LEAVE_S:
            return True
        for agent in state.agents.all():
            if agent.location.dpid == found.dpid:
                at = state.agent_sessions.reported_at(agent.agent_id)
                if at is None or at < found.since + REPORT_MARGIN_S:
                    return True
        return any(_carries(found.entry.match, flow) for flow in state.agent_sessions)

    # -- entries

    def _footprint(self, policy: Policy) -> Footprint:
        sites, service = self._state.sites, policy.service
        ingress, egress = (sites[end.site].datapaths[0].number for end in (service.from_, service.to))
        ends = ((True, policy.servers), (False, policy.clients))
        led = [(*redirect_matches(policy, side), *fragment_matches(policy, side), *error_matches(prefixes)) for side, prefixes in ends]
        first = tuple(punt_matches(policy)) if service.require else ()
        return Footprint(ingress, egress, (*first, *led[0]), led[1])

    def _entries(self, standing: Standing, ingress: bool, armed: bool) -> list[FlowEntry]:
        """Return the entries of a service at one of its sites."""
        cookie = self._state.cookie(Kind.SERVICE, pipeline.service_number(standing.service.id))
        footprint, made = standing.footprint, list[FlowEntry]()
        spread = self._rings.is_ready(footprint.ingress_dpid if ingress else footprint.egress_dpid)
        for match in footprint.ingress if ingress else footprint.egress:
            is_syn = match.tcp_flags == BARE_SYN  # first packet of a service with requirements: never bypasses the agent
            base = PRIORITY_SERVICE_SYN if is_syn else PRIORITY_SERVICE if armed else PRIORITY_UNARMED
            target: Action = self._group(match)
            if spread and not is_syn:
                target = Resubmit(TABLE_FROM_CLIENT if ingress else TABLE_FROM_SERVER)
            actions: tuple[Action, ...] = (LearnSource(), target) if armed else (LearnSource(), SetEthSrc(UNARMED_MAC), target)
            made.append(FlowEntry(TABLE_REDIRECT, pipeline.shared(base, cookie), match, actions, cookie))
        return made

    def _group(self, match: Match) -> ToGroup:
        number = self._state.controller_id
        return ToGroup(pipeline.reject_group_id(number) if match.tcp_flags == BARE_SYN else pipeline.group_id(number))

    def _emit(self) -> None:
        """Follow the agents of datapaths that have got entries, and emit all entries."""
        self._emit_entries()
        if self._rings.update(self._redirecting):
            self._emit_entries()

    def _emit_entries(self) -> None:
        """Emit groups first, since entries name them; then the entries; then unreferenced groups."""
        state = self._state
        entries: dict[DatapathId, dict[EntryKey, FlowEntry]] = {}
        for standing in self._standing.values():
            footprint = standing.footprint
            if standing.stage is not Stage.EGRESS:
                ingress = self._entries(standing, ingress=True, armed=standing.stage is Stage.ARMED)
                entries.setdefault(footprint.ingress_dpid, {}).update((entry.key, entry) for entry in ingress)
            egress = self._entries(standing, ingress=False, armed=True)
            entries.setdefault(footprint.egress_dpid, {}).update((entry.key, entry) for entry in egress)
        self._leaving = [found for found in self._leaving if found.entry.key not in entries.get(found.dpid, {})]
        for found in self._leaving:
            entries.setdefault(found.dpid, {})[found.entry.key] = found.entry
        self._rejecting = {dpid: any(e.match.tcp_flags == BARE_SYN for e in those.values()) for dpid, those in entries.items()}
        self._make_groups()
        self._redirecting = set(entries)
        for dpid, those in entries.items():
            those.update((entry.key, entry) for entry in self._onward(dpid, list(those.values())))
        state.programmer.set_group(GROUP, {dpid: list(those.values()) for dpid, those in entries.items()}, state.out)
        self._rings.drop(entries)
        for dpid in [d for d in self._sent if d not in entries]:
            _, rejecting = self._sent.pop(dpid)
            state.out.append(ApplyGroup(dpid, pipeline.group_id(state.controller_id)))
            if rejecting:
                state.out.append(ApplyGroup(dpid, pipeline.reject_group_id(state.controller_id), otherwise=REJECT_PORT))

    def _onward(self, dpid: DatapathId, entries: list[FlowEntry]) -> list[FlowEntry]:
        """Return the entries for packets that an agent of the datapath has forwarded, from the entries for packets from hosts."""
        members, cookie, found = self._rings.members(dpid), self._state.cookie(Kind.SERVICE), list[FlowEntry]()
        for table in (TABLE_FROM_CLIENT, TABLE_FROM_SERVER) if members else ():
            led = (entry for entry in entries if Resubmit(table) in entry.actions and entry.match.in_port is None)
            matches = dict.fromkeys(entry.match for entry in led)
            found += agent_ring.onward(members, matches, table == TABLE_FROM_CLIENT, cookie)
        return found

    def _make_groups(self) -> None:
        state = self._state
        for dpid, needed in self._rejecting.items():
            self._find_way(dpid)
            way, sent = self._ways.get(dpid), self._sent.get(dpid)
            rejecting = needed or (sent is not None and sent[1])
            if way is None or dpid not in state.switches or sent == (way, rejecting):
                continue
            self._sent[dpid] = (way, rejecting)
            state.out.append(ApplyGroup(dpid, pipeline.group_id(state.controller_id), *way))
            if rejecting:
                state.out.append(ApplyGroup(dpid, pipeline.reject_group_id(state.controller_id), *way, otherwise=REJECT_PORT))

    def _find_way(self, dpid: DatapathId) -> None:
        """Locate the agent of a datapath. The agent's port stays known when the agent is lost: the switch itself detects the agent's
        absence by the state of the port."""
        state = self._state
        claim = state.claims.get(dpid)
        agents = claim[0].agents if claim is not None else []
        agent = state.agents.get(agents[0].agent_id) if agents else None
        if agent is not None and agent.location.dpid == dpid:
            self._ways[dpid] = (agent.location.port_no, agent.beacon.mac)


def _carries(match: Match, flow: Flow) -> bool:
    """Return whether an entry matches packets of a flow, in either direction."""
    return _matches(match, (flow.client, flow.server), (flow.client_port, flow.server_port)) or _matches(
        match, (flow.server, flow.client), (flow.server_port, flow.client_port)
    )


def _matches(match: Match, addresses: tuple[int, int], ports: tuple[int, int]) -> bool:
    fields = (match.ipv4_src, match.ipv4_dst, match.tcp_src, match.tcp_dst)
    return all(field is None or value & field[1] == field[0] for field, value in zip(fields, (*addresses, *ports), strict=True))
