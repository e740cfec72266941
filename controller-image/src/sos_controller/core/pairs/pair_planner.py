"""Planning of pairs of agents: a pair is planned again only if its agents, its demand or the paths between its datapaths have changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sos_controller.core.openflow.pipeline import Kind
from sos_controller.core.pairs import agent_pairs
from sos_controller.core.pairs.agent_pairs import Pair, PairKey, PairNumbers, SitePair, pair_key
from sos_controller.core.pairs.site_agents import SiteAgents
from sos_controller.core.pairs.table_capacity import TableCapacity
from sos_controller.core.state import State
from sos_controller.core.topology.path_cache import PathCache, PathChange
from sos_controller.core.types import AgentId


class Demand(NamedTuple):
    """Demand of all services between two sites together."""

    labels: int
    """Largest number of path labels of any service."""
    datagrams: bool
    """A service requests streams over QUIC."""


class PairPlanner:
    """Pairs of agents, their paths and the entries of these."""

    def __init__(self, state: State, paths: PathCache, agents: SiteAgents, table_capacity: TableCapacity) -> None:
        self._state, self._paths, self._agents, self._table_capacity = state, paths, agents, table_capacity
        self._numbers = PairNumbers()
        self.pairs: dict[PairKey, Pair] = {}
        self.wanted: set[PairKey] = set()
        """Pairs that services may use."""
        self._demands: dict[SitePair, Demand] = {}
        self._demanded: dict[PairKey, Demand] = {}
        self._planned: dict[PairKey, Demand] = {}
        """Pairs at the last planning."""
        self._configured = True

    def configure(self, demands: Mapping[SitePair, Demand]) -> None:
        """Set the demands of the configuration in force."""
        self._demands = dict(demands)
        self._configured = True

    def replan(self, change: PathChange, agents: frozenset[AgentId]) -> set[PairKey]:
        """Plan the pairs affected by changes of paths and agents; return the pairs that have come, gone or got other paths, and
        those whose paths exist again or no longer."""
        if agents or self._configured:
            self._demanded = self._pairs_of_services()
            self.wanted = set(self._demanded)
        wanted, state = self._wanted(), self._state
        changed = {key for key in self.pairs if key not in wanted}
        for key in sorted(changed):
            del self.pairs[key]
            state.programmer.set_group(("path", *key), {}, state.out)
        for key in self._planned.keys() - wanted.keys():
            self._table_capacity.drop_pair(key)
        if wanted.keys() != self._planned.keys():
            self._numbers.keep(wanted)
        due = set(self._due(wanted, change, agents)).union(self._table_capacity.due_pairs())
        self._planned, self._configured = wanted, False
        while due:  # a pair that does not fit any more leaves space to others
            for key in sorted(due):
                crossed = key in self.pairs and self._is_affected(key, wanted[key], change)
                if self._plan(key, wanted[key]) or crossed:
                    changed.add(key)
            due = set(self._table_capacity.due_pairs())
        return changed

    def works(self, pair: Pair) -> bool:
        """Return whether a pair's path of label 0 exists now and all its switches are usable."""
        return agent_pairs.has_path(self._paths.graph, pair) and all(map(self._state.is_usable, pair.dpids))

    def _pairs_of_services(self) -> dict[PairKey, Demand]:
        """Return the pairs of live agents that some service may use, with the demand of all these services."""
        found: dict[PairKey, Demand] = {}
        for (clients, servers), demand in self._demands.items():
            for ingress in self._agents.of(clients):
                for egress in self._agents.of(servers):
                    if ingress is not egress and len(found) < agent_pairs.MAX_PAIRS:
                        key = pair_key(ingress.agent_id, egress.agent_id)
                        other = found.get(key)
                        found[key] = demand if other is None else combined(demand, other)
        return found

    def _wanted(self) -> dict[PairKey, Demand]:
        """Add the pairs of running sessions: these keep their number of labels, and QUIC."""
        state, wanted = self._state, dict(self._demanded)
        # an agent that is no longer declared finishes its sessions while it is live
        known = state.agent_sites.keys() | {agent.agent_id for agent in state.agents.all()}
        accepted = (pair for pair in state.agent_sessions.pairs if known >= set(pair))
        for ingress, egress in (*state.sessions.pairs, *accepted):
            key = pair_key(ingress, egress)
            before, pair = self._planned.get(key), self.pairs.get(key)
            kept = Demand(len(pair.paths) if pair is not None else 1, before is not None and before.datagrams)
            wanted[key] = combined(kept, wanted.get(key, kept))
        return wanted

    def _due(self, wanted: Mapping[PairKey, Demand], change: PathChange, agents: frozenset[AgentId]) -> Iterable[PairKey]:
        if self._configured:
            return wanted
        overfull = self._table_capacity.overfull()
        crossing = [key for key, pair in self.pairs.items() if not pair.dpids.isdisjoint(overfull)] if overfull else []
        return crossing + [
            key
            for key, demand in wanted.items()
            if key[0] in agents or key[1] in agents or self._planned.get(key) != demand or self._is_affected(key, demand, change)
        ]

    def _is_affected(self, key: PairKey, demand: Demand, change: PathChange) -> bool:
        """Return whether a pair's paths may have changed. A pair without a path is tried again each time, a pair whose entries did not fit
        after a change of the graph or of the space."""
        pair = self.pairs.get(key)
        if pair is None:
            return change.graph or not self._table_capacity.is_full(key)
        if demand.labels > 1 and change.graph:
            return True
        return change.affects(pair.paths[0])

    def _plan(self, key: PairKey, demand: Demand) -> bool:
        """Plan one pair; return whether it has changed."""
        state, number, before = self._state, self._numbers.number(key), self.pairs.get(key)
        low, high = state.agents.get(key[0]), state.agents.get(key[1])
        pair = None
        if low is not None and high is not None and number is not None:
            kept = before if before is not None and before.dpids <= state.claims.keys() else None
            pair = agent_pairs.plan(self._paths, (low, high), number, demand.labels, kept)
        if pair is None or low is None or high is None:
            return self._drop(key)
        entries = agent_pairs.entries(pair, low, high, state.cookie(Kind.PATH, pair.number), datagrams=demand.datagrams)
        if not self._table_capacity.takes_pair(key, entries):
            if pair is before:  # earlier paths, which exist no longer: the pair has no path, whatever the space
                return self._drop(key)
            self.pairs.pop(key, None)
            return before is not None
        self.pairs[key] = pair
        state.programmer.set_group(("path", *key), entries, state.out)
        return pair != before

    def _drop(self, key: PairKey) -> bool:
        """Remove a pair without a path; return whether it existed."""
        self._table_capacity.drop_pair(key)
        self._state.programmer.set_group(("path", *key), {}, self._state.out)
        return self.pairs.pop(key, None) is not None


def combined(one: Demand, other: Demand) -> Demand:
    """Return the demand of both."""
    return Demand(max(one.labels, other.labels), one.datagrams or other.datagrams)
