"""Members of the rings of all datapaths (`agent_ring`): agents that join, change and leave, and the entries and groups of each ring.

A datapath gets a ring when it has standing entries and several agents, and keeps the ring while it has standing entries. Entries of an
earlier run of the controller are kept for SETTLE_S, until this run has heard all agents.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.groups import ApplyFailovers, FailoverGroup
from sos_controller.core.openflow.pipeline import RING_PLACES, Kind
from sos_controller.core.services import agent_ring
from sos_controller.core.services.agent_ring import Member
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import AgentId, DatapathId, PortNo

SETTLE_S: Final = 6.0
"""Time after which this run has heard all agents of a datapath that it has just read: they send a beacon each second."""


class _Held(NamedTuple):
    """Entries of an earlier run, and the time at which they were read."""

    since: float
    entries: tuple[FlowEntry, ...]


class _Ring:
    """Ring of one datapath. `is_ready`: the switch has its entries, so services may use them."""

    __slots__ = ("entries", "groups", "is_ready", "members", "places")

    def __init__(self, places: dict[PortNo, int]) -> None:
        self.members: dict[AgentId, Member] = {}
        self.groups: dict[int, FailoverGroup] = {}  # as sent since the datapath was read
        self.entries: tuple[FlowEntry, ...] = ()
        self.places = places
        self.is_ready = bool(places)


class AgentRings:
    """Rings by datapath."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rings: dict[DatapathId, _Ring] = {}
        self._held: dict[DatapathId, _Held] = {}
        self._read: set[DatapathId] = set()

    def is_ready(self, dpid: DatapathId) -> bool:
        """Return whether services at a datapath are spread over its agents."""
        ring = self._rings.get(dpid)
        return dpid in self._held if ring is None else ring.is_ready

    def members(self, dpid: DatapathId) -> dict[AgentId, Member]:
        """Return the agents of a ring."""
        ring = self._rings.get(dpid)
        return {} if ring is None else ring.members

    def adopt(self, dpid: DatapathId, earlier: list[FlowEntry]) -> list[FlowEntry]:
        """Take over the entries of an earlier run on a datapath that has just been read; return all other entries."""
        own = tuple(entry for entry in earlier if pipeline.cookie_kind(entry.cookie) == Kind.RING)
        self._read.add(dpid)
        ring = self._rings.get(dpid)
        if ring is not None:
            ring.groups = {}  # the switch may have lost them
        elif own:
            self._held[dpid] = _Held(self._state.now, own)
            self._state.programmer.set_group(("ring", dpid), {dpid: own}, self._state.out)
        return [entry for entry in earlier if pipeline.cookie_kind(entry.cookie) != Kind.RING]

    @property
    def pending(self) -> list[DatapathId]:
        """Return the datapaths whose rings change with time or acknowledgements."""
        joining = [dpid for dpid, ring in self._rings.items() if not (ring.is_ready and all(m.joined for m in ring.members.values()))]
        return [*joining, *self._held]

    def update(self, dpids: Iterable[DatapathId]) -> bool:
        """Follow the agents of datapaths that have standing entries. Return whether entries of services depend on a change."""
        agents: dict[DatapathId, list[Agent]] = {}
        for agent in self._state.agents.all():
            agents.setdefault(agent.location.dpid, []).append(agent)
        changes = [self._update(dpid, agents.get(dpid, [])) for dpid in dpids]
        return any(changes)

    def drop(self, dpids: Collection[DatapathId]) -> None:
        """Remove the rings of all other datapaths, which no entry uses any more."""
        state = self._state
        for dpid in [d for d in (*self._rings, *self._held) if d not in dpids]:
            self._rings.pop(dpid, None)
            self._held.pop(dpid, None)
            state.programmer.set_group(("ring", dpid), {}, state.out)
            plain = pipeline.ring_plain_group_id(state.controller_id)
            places = range(RING_PLACES)
            numbers = (pipeline.ring_group_id(state.controller_id, start, place) for start in places for place in places)
            state.out.append(ApplyFailovers(dpid, plain, deletes=(*numbers, plain)))

    # -- one ring

    def _update(self, dpid: DatapathId, agents: list[Agent]) -> bool:
        state = self._state
        claim, held = state.claims.get(dpid), self._held.get(dpid)
        if claim is None or dpid not in self._read or (held is not None and state.now - held.since < SETTLE_S):
            return False
        declared = [agent.agent_id for agent in claim[0].agents][:RING_PLACES]
        live = {agent.agent_id: agent for agent in agents if self._serves(agent, declared)}
        ring = self._rings.get(dpid)
        if ring is None:
            if not live or (held is None and len({*declared, *live}) < 2):
                return False
            ring = self._rings[dpid] = _Ring(agent_ring.places_of(held.entries) if held is not None else {})
            self._held.pop(dpid, None)
        before = (ring.is_ready, {agent_id: member.port_no for agent_id, member in ring.members.items()})
        self._follow(ring, declared, live, state.programmer.is_acknowledged(dpid))
        self._emit(dpid, ring, declared)
        return before != (ring.is_ready, {agent_id: member.port_no for agent_id, member in ring.members.items()})

    def _serves(self, agent: Agent, declared: list[AgentId]) -> bool:
        """Return whether an agent at a datapath can be a member: one of the first declared agents, or one that is no longer declared and
        finishes its sessions."""
        return agent.agent_id in declared or agent.agent_id not in self._state.agent_sites

    def _follow(self, ring: _Ring, declared: list[AgentId], live: dict[AgentId, Agent], acknowledged: bool) -> None:
        """Update the members. All members of a new ring join at once, since no entry uses it yet; later ones join when the switch has
        acknowledged their entries. A declared agent that is lost stays: groups skip its port while the port is down."""
        begins = not ring.entries
        ring.is_ready = ring.is_ready or (not begins and acknowledged)
        for agent_id in [i for i in ring.members if i not in live and i not in declared]:
            del ring.members[agent_id]
        for agent_id, member in ring.members.items():
            ring.members[agent_id] = member._replace(joined=member.joined or acknowledged, takes=False)
        for agent_id, agent in live.items():
            here, known = agent.location.port_no, ring.members.get(agent_id)
            place = known.place if known is not None else self._place(ring, agent_id, here, declared)
            if place is not None:
                first = begins and (not ring.places or here in ring.places)
                joined = known.joined if known is not None and known.port_no == here else first
                beacon = agent.beacon
                ring.members[agent_id] = Member(place, here, beacon.mac, beacon.address, joined, agent.usable)

    def _place(self, ring: _Ring, agent_id: AgentId, port_no: PortNo, declared: list[AgentId]) -> int | None:
        taken = {member.place for member in ring.members.values()}
        before = ring.places.get(port_no)
        return before if before is not None and before not in taken else agent_ring.place_for(agent_id, declared, taken)

    def _emit(self, dpid: DatapathId, ring: _Ring, declared: list[AgentId]) -> None:
        """Send groups first, since entries name them; then the entries; then delete groups without entries."""
        state = self._state
        if dpid not in state.switches:
            return
        number = state.controller_id
        wanted = {group.group_id: group for group in agent_ring.groups(ring.members, number)}
        changed = tuple(group for group_id, group in wanted.items() if ring.groups.get(group_id) != group)
        plain = pipeline.ring_plain_group_id(number)
        if changed:
            state.out.append(ApplyFailovers(dpid, plain, changed))
        entries = tuple(agent_ring.tables(ring.members, declared, number, state.cookie(Kind.RING)))
        if entries != ring.entries:
            ring.entries = entries
            state.programmer.set_group(("ring", dpid), {dpid: entries}, state.out)
        gone = tuple(group_id for group_id in ring.groups if group_id not in wanted)
        if gone:
            state.out.append(ApplyFailovers(dpid, plain, deletes=gone))
        ring.groups = wanted
