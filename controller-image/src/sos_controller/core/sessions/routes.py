"""Routes: the pair of agents, paths and datapaths of one new flow, chosen in one call.

`services.plan` has the entries that exist before a flow; a route is the choice among them for one flow, and changes nothing on switches.
The caller gets a complete `Route`, or the outcome that makes the connection plain.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sos_controller.core.config import ONE_PATH_MODES, Service
from sos_controller.core.openflow.pipeline import MAX_LABELS
from sos_controller.core.pairs import pair_selection
from sos_controller.core.pairs.agent_pairs import Pair, pair_key
from sos_controller.core.pairs.pair_selection import Candidate, Loaded
from sos_controller.core.pairs.path_choice import Choice, PathAssignments, pick
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.services.plan import Plan
from sos_controller.core.sessions import redirect
from sos_controller.core.sessions.redirect import Leg
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import DatapathId, FlowKey
from sos_controller.core.wire.packets import Syn

MAX_EGRESS_DATAPATHS: Final = 64
"""Maximum number of datapaths of the egress site that get the egress entry while the server's location is unknown; in a larger site,
connections stay plain meanwhile."""
UNKNOWN: Final = DatapathId(0)
"""Placeholder for the datapath of a server whose location is unknown."""


class Route(NamedTuple):
    """Choice for one flow of a service."""

    service: Service
    ingress: Leg
    egress: Leg
    labels: int
    """Mask of the path labels that the session may use."""
    egress_dpids: tuple[DatapathId, ...]
    """Datapaths that get the egress entry: the server's datapath if known, else every datapath of its site."""
    confirms: bool
    """The SYN waits until the server has accepted the egress agent's connection."""
    in_order: bool
    """Only the egress agent's own bridge gets egress entries, so an order that is sent to the agent after them, over the same OpenFlow
    connection, arrives when they are installed. Set only with `confirms`."""


def leg_of(state: State, agent: Agent, ingress: bool, client_port: int) -> Leg:
    """Return an agent's side of a flow."""
    return Leg(agent, ingress, state.rewritten_port(agent.agent_id, ingress, client_port), state.learns(agent.location.dpid))


class Routes:
    """Choice of routes. The only memory is the number of sessions assigned to each path."""

    def __init__(self, state: State, plan: Plan) -> None:
        self._state, self._plan = state, plan
        self._assignments = PathAssignments()

    def choose(self, service: Service, dpid: DatapathId, syn: Syn) -> Route | Outcome:
        """Choose the route of a new flow that enters at `dpid`. The choice counts as an assignment of its path."""
        state, plan = self._state, self._plan
        host = state.hosts.by_address(syn.server)
        server_at = UNKNOWN if host is None else host.location.dpid
        candidates = plan.fragments.keep(plan.candidates(service, dpid, server_at), syn.client, syn.server)
        chosen = self._pick(candidates)
        if chosen is None:
            return Outcome.NO_AGENTS
        egress_dpids = plan.datapaths_of(service.to.site)
        if host is not None and server_at in egress_dpids:
            egress_dpids = (server_at,)
        if not 1 <= len(egress_dpids) <= MAX_EGRESS_DATAPATHS or not all(map(state.is_usable, egress_dpids)):
            return Outcome.EGRESS_DATAPATH
        if not state.is_usable(dpid) or (service.require and not plan.is_ready(service.id, dpid)):
            return Outcome.INGRESS_DATAPATH
        if not state.programmer.takes_session((dpid, *egress_dpids)):
            return Outcome.TABLE_FULL
        legs = self._legs(chosen, syn)
        if legs is None:
            return Outcome.PORT_TAKEN
        ingress, egress = legs
        confirms = service.accept == "Confirmed" or (service.accept == "Learned" and not state.accepting_servers.holds(syn.key, state.now))
        in_order = confirms and self._is_in_order(egress, egress_dpids)
        return Route(service, ingress, egress, self._labels(service, chosen), egress_dpids, confirms, in_order)

    def _pick(self, candidates: tuple[Candidate, ...]) -> Candidate | None:
        """Pick the least loaded of the nearest pairs that accept sessions (as `pair_selection.choose`, without checking farther pairs)."""
        agents, loaded = self._state.agents, list[Loaded]()
        for candidate in candidates:
            if loaded and candidate.cost > loaded[0].candidate.cost:
                break
            ingress, egress = agents.get(candidate.ingress), agents.get(candidate.egress)
            if ingress is not None and egress is not None and ingress.usable and egress.usable:
                if len(candidates) == 1:
                    return candidate
                loaded.append(Loaded(candidate, ingress.load + egress.load, ingress.busy + egress.busy))
        return pair_selection.least_loaded(loaded)

    def _legs(self, chosen: Candidate, syn: Syn) -> tuple[Leg, Leg] | None:
        """Return the two sides of a flow. None if an agent could not distinguish the flow from an existing session."""
        state = self._state
        ingress, egress = state.agents.get(chosen.ingress), state.agents.get(chosen.egress)
        if ingress is None or egress is None:
            return None
        one, other = leg_of(state, ingress, True, syn.client_port), leg_of(state, egress, False, syn.client_port)
        return None if self._is_taken(syn.key, one) or self._is_taken(syn.key, other) else (one, other)

    def _is_taken(self, key: FlowKey, leg: Leg) -> bool:
        """Return whether another session at the agent already uses the host address and port of a rewritten flow: their entries would have
        the same match."""
        wants = self._state.programmer.wants
        return bool(leg.port) and any(wants(dpid, entry) for dpids, entry in redirect.entries(key, leg, (), 0) for dpid in dpids)

    def _is_in_order(self, egress: Leg, dpids: tuple[DatapathId, ...]) -> bool:
        """Return whether only the egress agent's own bridge gets the egress entries."""
        here = egress.agent.location.dpid
        switch = self._state.switches.get(here)
        return switch is not None and switch.claim is not None and switch.claim.forwarding == "Node" and dpids == (here,)

    def _labels(self, service: Service, chosen: Candidate) -> int:
        """Return all labels of a service, or the single label assigned to the session."""
        key = pair_key(chosen.ingress, chosen.egress)
        pair = self._plan.pairs.get(key)
        if pair is None:
            return 1
        mask = pair.label_mask & ((1 << service.labels) - 1)
        return 1 << self._assign(service, pair, mask) if service.paths.mode in ONE_PATH_MODES else mask

    def _assign(self, service: Service, pair: Pair, mask: int) -> int:
        """Assign one of the labels in a mask to a session."""
        key, choices, heard = (pair.low, pair.high), list[Choice](), dict[int, float]()
        for label in (label for label in range(MAX_LABELS) if mask >> label & 1):
            measure = self._state.path_stats.path(*key, label)
            heard[label] = measure.heard_at if measure is not None else 0.0
            given = self._assignments.given(key, label, heard[label])
            choices.append(Choice(label, measure, self._plan.capacity_of(pair.paths[label]), given))
        label = pick(service.paths.mode, choices, self._assignments.turn(service.id, key))
        self._assignments.give(key, label, heard[label])
        return label
