"""Candidates: pairs of agents that could serve a new flow, kept by the two sites of a service for all services between them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sos_controller.core.pairs.agent_pairs import SitePair, pair_key
from sos_controller.core.pairs.pair_planner import PairPlanner
from sos_controller.core.pairs.pair_selection import Candidate
from sos_controller.core.pairs.site_agents import SiteAgents
from sos_controller.core.topology.path_cache import PathCache
from sos_controller.core.types import DatapathId

MAX_CANDIDATES = 64
"""Maximum number of pairs kept per two sites, ingress switch and server's switch, the nearest first."""
MAX_CACHED = 16_384
"""Maximum number of kept lists of pairs; beyond it, all are computed again."""


class _Working(NamedTuple):
    """Working pairs of usable agents between two sites."""

    pairs: tuple[tuple[Candidate, DatapathId, DatapathId], ...]
    """Cost between the agents, and the datapaths of both agents."""
    nearest: dict[DatapathId, Candidate]
    """Best pair by the ingress agent's datapath."""


class Candidates:
    """Working pairs between sites, and candidates by switch; computed when they are needed, and kept until they may have changed."""

    def __init__(self, paths: PathCache, agents: SiteAgents, planner: PairPlanner) -> None:
        self._paths, self._agents, self._planner = paths, agents, planner
        self._working: dict[SitePair, _Working] = {}
        self._found: dict[SitePair, dict[tuple[DatapathId, DatapathId], tuple[Candidate, ...]]] = {}
        self._count = 0

    def clear(self) -> None:
        """Forget all candidates."""
        self._working.clear()
        self._found.clear()
        self._count = 0

    def drop(self, sites: set[str], between: Collection[SitePair]) -> None:
        """Forget the candidates from and to these sites, and between these."""
        for pair in [p for p in self._working if p in between or p[0] in sites or p[1] in sites]:
            del self._working[pair]
            self._count -= len(self._found.pop(pair, {}))

    def find(self, sites: SitePair, dpid: DatapathId, server_at: DatapathId) -> tuple[Candidate, ...]:
        """Return the pairs that could serve a flow entering at `dpid`, a datapath of the clients' site, the nearest first. `server_at`: the
        server's datapath, 0 if it is unknown or not at the servers' site."""
        if self._count >= MAX_CACHED:
            self._found.clear()
            self._count = 0
        known = self._found.setdefault(sites, {})
        found = known.get((dpid, server_at))
        if found is None:
            found = known[dpid, server_at] = self._compute(sites, dpid, server_at)
            self._count += 1
        return found

    def best(self, sites: SitePair, dpid: DatapathId) -> Candidate | None:
        """Return the first pair of `find` for a server at an unknown datapath."""
        best = None
        for at, candidate in self._between(sites).nearest.items():
            cost = self._paths.distances(at).get(dpid)
            if cost is not None:
                found = Candidate(cost + candidate.cost, candidate.ingress, candidate.egress)
                if best is None or found < best:
                    best = found
        return best

    def _compute(self, sites: SitePair, dpid: DatapathId, server_at: DatapathId) -> tuple[Candidate, ...]:
        found = []
        for candidate, ingress_at, egress_at in self._between(sites).pairs:
            before = self._paths.distances(ingress_at).get(dpid)
            if before is not None:
                after = self._paths.distances(egress_at).get(server_at, 0) if server_at else 0
                found.append(Candidate(before + candidate.cost + after, candidate.ingress, candidate.egress))
        return tuple(sorted(found)[:MAX_CANDIDATES])

    def _between(self, sites: SitePair) -> _Working:
        found = self._working.get(sites)
        if found is None:
            found = self._working[sites] = self._look(sites)
        return found

    def _look(self, sites: SitePair) -> _Working:
        pairs, nearest = list[tuple[Candidate, DatapathId, DatapathId]](), dict[DatapathId, Candidate]()
        egresses = self._agents.usable(sites[1])
        for ingress in self._agents.usable(sites[0]):
            here = ingress.location.dpid
            for egress in egresses:
                pair = self._planner.pairs.get(pair_key(ingress.agent_id, egress.agent_id))
                if pair is None or not self._planner.works(pair):
                    continue
                found = Candidate(pair.paths[0].cost, ingress.agent_id, egress.agent_id)
                pairs.append((found, here, egress.location.dpid))
                nearest[here] = min(nearest.get(here, found), found)
        return _Working(tuple(pairs), nearest)
