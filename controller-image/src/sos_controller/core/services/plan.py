"""Plan: derive the standing entries of switches (paths of pairs, guards, punts) from configuration and live state.

Planning goes by pair of sites and costs what has changed (docs/adr/0069):

1. `PathCache`: the graph, costs and paths between datapaths
2. `SiteAgents`: live agents of each site
3. `Guards`
4. `PairPlanner`: pairs of agents with their paths, for all services between the agents' sites
5. `TableCapacity`: services whose entries fit into the tables, where the free space has changed (docs/adr/0071)
6. entries that depend on the configuration and on the services that fit
7. `Arming`: punt entries, for all services between two sites at once, by their `Candidates`

A change of the configuration plans everything. Order matters: a punt entry is *armed* only when its own datapath, the datapaths of the
server's site and those of the nearest pair's paths have acknowledged the guards, paths and other entries sent to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from sos_controller.core.config import LinkDeclaration, Service
from sos_controller.core.openflow.pipeline import RING_PLACES
from sos_controller.core.pairs.agent_pairs import Pair, PairKey, SitePair, pair_key
from sos_controller.core.pairs.candidates import Candidates
from sos_controller.core.pairs.pair_planner import Demand, PairPlanner, combined
from sos_controller.core.pairs.pair_selection import Candidate
from sos_controller.core.pairs.site_agents import SiteAgents
from sos_controller.core.pairs.table_capacity import TableCapacity
from sos_controller.core.services.arming import Arming
from sos_controller.core.services.cache_guard import CacheGuard
from sos_controller.core.services.fragments import Fragments
from sos_controller.core.services.guards import Guards
from sos_controller.core.services.icmp_errors import IcmpErrors
from sos_controller.core.services.passive_measurement import PassiveMeasurement
from sos_controller.core.services.proactive import Proactive
from sos_controller.core.state import State
from sos_controller.core.tables.agent_sessions import Flow
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.policies import Policies, accelerated
from sos_controller.core.tables.service_state import ProgrammedReason
from sos_controller.core.topology import links
from sos_controller.core.topology.link_graph import MAX_NEW_LINKS
from sos_controller.core.topology.path_cache import PathCache
from sos_controller.core.topology.paths import Path
from sos_controller.core.types import DatapathId, Location

ALL_LINKS: Final = 2**63
"""More new links than there can be."""


class ServiceStatus(NamedTuple):
    """Status of a service in northbound.md 1."""

    service: Service
    reason: ProgrammedReason
    needed: tuple[DatapathId, ...]
    acknowledged: tuple[DatapathId, ...]

    @property
    def state(self) -> str:
        """Return the state in the API."""
        return self.reason.state


class _Ends(NamedTuple):
    """Part of the status that all reactive services between the same two sites have in common."""

    sources: tuple[DatapathId, ...]
    needed: tuple[DatapathId, ...]
    acknowledged: tuple[DatapathId, ...]
    """Datapaths that have acknowledged their entries; a service must also be armed at its sources."""
    missing: ProgrammedReason | None
    """The reason why no service between the sites can be programmed, if there is one."""


class Plan:
    """Desired entries of switches, and the pairs of agents that these entries connect."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._paths = PathCache()
        state.graph = self._paths.graph
        self._agents = SiteAgents(state)
        self.table_capacity = TableCapacity(state)
        self._planner = PairPlanner(state, self._paths, self._agents, self.table_capacity)
        self._candidates = Candidates(self._paths, self._agents, self._planner)
        self._costs: dict[tuple[str, str, str, str], int] = {}
        self._capacities: dict[tuple[str, str, str, str], int] = {}
        self._services: dict[str, Service] = {}
        self._dpids: dict[str, tuple[DatapathId, ...]] = {}
        self._live: set[DatapathId] = set()
        """Claimed datapaths that were usable (`State.is_usable`) at the last planning."""
        self._configured = False
        self._is_planning = False
        """The last planning has begun and not ended: it ended with an exception."""
        self._accepted: Counter[str] = Counter()
        self._accepted_since: tuple[int, Policies] = (-1, state.policies)
        self.proactive = Proactive(state, self.working_pairs)
        self.passive_measurement = PassiveMeasurement(state)
        self.cache_guard = CacheGuard(state)
        self.icmp = IcmpErrors(state)
        self.fragments = Fragments(state)
        self._guards = Guards(state)
        self._arming = Arming(state, self._candidates, self._planner, self.cache_guard)

    @property
    def pairs(self) -> dict[PairKey, Pair]:
        """Return the pairs of agents with paths."""
        return self._planner.pairs

    @property
    def wanted(self) -> set[PairKey]:
        """Return the pairs that services may use."""
        return self._planner.wanted

    @property
    def is_behind(self) -> bool:
        """Return whether the last planning has left new links to the next one."""
        return self._paths.is_behind

    @property
    def is_arming(self) -> bool:
        """Return whether the last planning or arming has left switches to the next arming."""
        return self._arming.is_behind

    @property
    def waits(self) -> bool:
        """Return whether an acknowledgement could arm a service."""
        return self._arming.waits

    def configure(self) -> None:
        """Index the configuration in force. The next planning plans everything."""
        config = self._state.config
        if config is None:
            return
        self._services = {s.id: s for s in self._state.services}
        self._dpids = {site.name: tuple(sorted(d.number for d in site.datapaths)) for site in config.sites}
        ends = [((d.a.site, d.a.uplink, d.b.site, d.b.uplink), d) for d in config.links]
        declared = {**dict(ends), **{(k[2], k[3], k[0], k[1]): link for k, link in ends}}
        costs = {k: link.cost for k, link in declared.items()}
        if costs or self._costs:
            self._state.topology.touch_all()
        self._costs = costs
        self._capacities = {k: link.capacity_mbps for k, link in declared.items()}
        self._configured = True

    def replan(self) -> None:
        """Plan what has changed in the network since the last planning; after a change of the configuration, everything."""
        unlimited = self._is_planning  # after an exception, plan everything, from scratch and at once
        everything, self._is_planning = self._configured or unlimited, True
        if unlimited:
            self._paths.clear()
        if everything:
            self._configure_planning()
        self._live = self._read()
        agents = self._agents.update()
        change = self._paths.update(self._live, self._state.topology, self._cost, ALL_LINKS if unlimited else MAX_NEW_LINKS)
        self._state.graph_revision = self._paths.revision
        self._guards.replan()
        pairs = self._planner.replan(change, agents.agents)
        admitted = self.table_capacity.admit()
        self._arming.reopen(admitted)
        if everything or admitted:
            for part in (self.cache_guard, self.icmp, self.fragments, self.proactive, self.passive_measurement):
                part.configure()
        self.fragments.replan()
        self.proactive.replan()
        far = {site for site, dpid in self._agents.places() if change.concerns(dpid, self.datapaths_of(site))}
        if everything:
            self._arm(None)
        else:
            here = {self._state.claims[dpid][0].name for dpid in change.live if dpid in self._state.claims}
            self._arm(here | far | agents.sites, self._between(pairs, change.live))
        self._configured = self._is_planning = False

    def arm(self) -> None:
        """Install the punt entries of services that are ready since the last planning, and withdraw those of unread switches."""
        live = self._read()
        self._arm(set() if live == self._live else None)
        self._live = live

    def is_ready(self, service_id: str, dpid: DatapathId) -> bool:
        """Return whether switches have acknowledged all entries that are needed by new flows of a service that enter at this datapath."""
        return self._arming.is_ready(service_id, dpid)

    def renew(self) -> None:
        """Renew the leases of entries that punt, and check whether fragments still need redirection, and whether entries that did not fit
        may fit now."""
        self.fragments.tick()
        if self.table_capacity.has_changed:
            self._state.dirty.add("plan")
        self._arming.renew()
        self.passive_measurement.renew()

    def candidates(self, service: Service, dpid: DatapathId, server_at: DatapathId) -> tuple[Candidate, ...]:
        """Return the pairs of agents that could serve a flow entering at `dpid`, the nearest first; computed once for all services between
        the same sites. `server_at`: the server's datapath, 0 if unknown."""
        there = server_at if server_at in self.datapaths_of(service.to.site) else DatapathId(0)
        return self._candidates.find(_sites(service), dpid, there)

    def working_pairs(self, service: Service) -> list[Pair]:
        """Return the pairs of agents that serve a proactive service: those of live agents with a path."""
        ingresses, egresses = self._serving(service.from_.site), self._serving(service.to.site)
        keys = [pair_key(ingress.agent_id, egress.agent_id) for ingress in ingresses for egress in egresses]
        return [pair for key in keys if (pair := self.pairs.get(key)) is not None and self._planner.works(pair)]

    def service_of(self, flow: Flow) -> str:
        """Return the id of the service that covers a session that agents began without an order, "" if no service covers it."""
        policy = self._state.policies.first(self._state.agent_sites.get(flow.ingress, ""), flow)
        return "" if policy is None else policy.service.id

    def capacity_of(self, path: Path) -> float:
        """Return bytes per second of the narrowest link of a path, 0 if a link is not declared."""
        declared = [self._capacities.get(self._ends(link), 0) for link in path.links]
        return min(declared, default=0) * 125_000.0

    def datapaths_of(self, site: str) -> tuple[DatapathId, ...]:
        """Return the datapaths of a site, sorted."""
        return self._dpids.get(site, ())

    def status(self) -> list[ServiceStatus]:
        """Return the status of every service, by id."""
        between: dict[frozenset[str], frozenset[DatapathId]] = {}  # by the two sites of working pairs: the pairs' datapaths
        for pair in self.pairs.values():
            if self._planner.works(pair):
                sites = frozenset(self._state.agent_sites.get(agent, "") for agent in (pair.low, pair.high))
                between[sites] = between.get(sites, frozenset()) | pair.dpids
        ends: dict[tuple[str, str], _Ends] = {}
        return [self._status(self._services[i], between, ends) for i in sorted(self._services)]

    def accepted(self) -> Mapping[str, int]:
        """Return the number of sessions that agents began without an order, by service; counted once for each change of their reports."""
        state = self._state
        since = (state.agent_sessions.revision, state.policies)
        if self._accepted_since != since:
            self._accepted, self._accepted_since = Counter(map(self.service_of, state.agent_sessions)), since
        return self._accepted

    def usable(self, site: str) -> list[Agent]:
        """Return agents of a site that accept new sessions."""
        return [a for a in self.agents_of(site) if a.usable]

    def capacity(self, site: str) -> int:
        """Return the sum of the session limits of a site's agents."""
        return sum(agent.beacon.session_limit for agent in self.agents_of(site))

    def agents_of(self, site: str) -> list[Agent]:
        """Return agents of a site that the configuration lists and that were live at the last planning."""
        return self._agents.of(site)

    # -- changes

    def _read(self) -> set[DatapathId]:
        """Return the claimed datapaths that are usable."""
        state = self._state
        return {dpid for dpid, s in state.switches.items() if s.claim is not None and state.is_usable(dpid)}

    def _configure_planning(self) -> None:
        """Pass a configuration to all parts that plan by pairs of sites, and forget all that was derived from the last one."""
        demands: dict[SitePair, Demand] = {}
        for service in self._services.values():
            if accelerated(service):
                asked, sites = Demand(service.labels, service.transport.protocol == "QUIC"), _sites(service)
                demands[sites] = combined(asked, demands.get(sites, asked))
        self.table_capacity.configure()
        self._planner.configure(demands)
        self._guards.configure(dict.fromkeys(map(_sites, self._services.values())))
        policies = self._state.policies.by_site.values()
        self._arming.configure((policy for each in policies for policy in each), self._dpids)

    def _between(self, pairs: set[PairKey], moved: frozenset[DatapathId]) -> set[SitePair]:
        """Return the two sites, in both directions, of changed pairs of agents and of those with a path across datapaths that have
        joined or left the graph."""
        of = self._state.agent_sites
        crossing = [key for key, pair in self.pairs.items() if not moved.isdisjoint(pair.dpids)] if moved else []
        found = {(of.get(low, ""), of.get(high, "")) for low, high in (*pairs, *crossing)}
        return found | {(high, low) for low, high in found}

    def _arm(self, sites: set[str] | None, between: Collection[SitePair] = ()) -> None:
        """Arm services after changes at these sites, None = everywhere, and between these."""
        if sites is None:
            self._candidates.clear()
        else:
            self._candidates.drop(sites, between)
        self._arming.arm(sites, between)

    def _cost(self, found: links.Link) -> int:
        """Return the declared cost of a link, by its uplinks' names."""
        return self._costs.get(self._ends(found), links.DEFAULT_COST) if self._costs else links.DEFAULT_COST

    def _ends(self, found: links.Link) -> tuple[str, str, str, str]:
        return (*self._uplink(found.a), *self._uplink(found.b))

    def _uplink(self, end: Location) -> tuple[str, str]:
        switch = self._state.switches.get(end.dpid)
        if switch is None or switch.site is None or end.port_no not in switch.ports:
            return ("", "")
        return (switch.site.name, switch.ports[end.port_no].name)

    def declared_links(self) -> list[tuple[LinkDeclaration, bool]]:
        """Return links of the configuration, and whether probes pass between their uplinks in both directions."""
        config = self._state.config
        found = {ends for link in self._state.topology.links() for ends in (self._ends(link), self._ends(link)[2:] + self._ends(link)[:2])}
        return [(d, (d.a.site, d.a.uplink, d.b.site, d.b.uplink) in found) for d in config.links] if config else []

    # -- status

    def _status(
        self, service: Service, between: Mapping[frozenset[str], frozenset[DatapathId]], known: dict[tuple[str, str], _Ends]
    ) -> ServiceStatus:
        if not accelerated(service):
            return ServiceStatus(service, self._progress(service, (), ()), (), ())
        if self._state.is_proactive(service):
            return self._proactive_status(service)
        sites = (service.from_.site, service.to.site)
        ends = known.get(sites)
        if ends is None:
            ends = known[sites] = self._ends_of(service, between.get(frozenset(sites), frozenset()))
        acked, unarmed = ends.acknowledged, [d for d in ends.sources if not self.is_ready(service.id, d)]
        if unarmed:
            acked = tuple(d for d in acked if d not in unarmed)
        return ServiceStatus(service, ends.missing or self._progress(service, ends.needed, acked), ends.needed, acked)

    def _ends_of(self, service: Service, works: frozenset[DatapathId]) -> _Ends:
        sources = self.datapaths_of(service.from_.site)
        needed = tuple(sorted({*sources, *self.datapaths_of(service.to.site), *works}))
        acked = tuple(filter(self._state.programmer.is_acknowledged, needed))
        return _Ends(sources, needed, acked, self._missing(service, needed, bool(works)))

    def _proactive_status(self, service: Service) -> ServiceStatus:
        state, pairs = self._state, self.working_pairs(service)
        sources = self.datapaths_of(service.from_.site)
        needed = tuple(sorted({*sources, *self.datapaths_of(service.to.site)}.union(*(pair.dpids for pair in pairs))))
        armed = self.proactive.is_armed(service.id)
        acked = tuple(d for d in needed if state.programmer.is_acknowledged(d) and (d not in sources or armed))
        if not all(any(agent.usable for agent in self._serving(end.site)) for end in (service.from_, service.to)):
            return ServiceStatus(service, ProgrammedReason.NO_AGENTS, needed, acked)
        reason = self._missing(service, needed, bool(pairs)) or self._progress(service, needed, acked)
        return ServiceStatus(service, reason, needed, acked)

    def _serving(self, site: str) -> list[Agent]:
        """Return the live agents of a site that serve proactive services: the first of the configuration, at the site's datapath."""
        known, dpids = self._state.agents, self.datapaths_of(site)
        found = (known.get(agent.agent_id) for agent in self._state.sites[site].agents[:RING_PLACES])
        return [agent for agent in found if agent is not None and dpids == (agent.location.dpid,)]

    def _missing(self, service: Service, needed: Iterable[DatapathId], works: bool) -> ProgrammedReason | None:
        """Return the reason why no service between the sites of this one can be programmed, None if there is none."""
        if not self.usable(service.from_.site) or not self.usable(service.to.site):
            return ProgrammedReason.NO_AGENTS
        if not all(dpid in self._state.switches for dpid in needed):
            return ProgrammedReason.DATAPATH_DISCONNECTED
        if works and not self._state.inaccurate.keys() & set(needed):
            return None
        if self._state.inaccurate:
            return ProgrammedReason.ENTRIES_NOT_APPLIED
        full = self.table_capacity.between(service.from_.site, service.to.site)
        return ProgrammedReason.TABLE_FULL if full else ProgrammedReason.NO_PATH

    def _progress(self, service: Service, needed: tuple[DatapathId, ...], acked: tuple[DatapathId, ...]) -> ProgrammedReason:
        if service.id in self._state.no_room:
            return ProgrammedReason.TABLE_FULL
        return ProgrammedReason.PROGRAMMED if needed == acked else ProgrammedReason.PROGRAMMING


def _sites(service: Service) -> SitePair:
    return (service.from_.site, service.to.site)
