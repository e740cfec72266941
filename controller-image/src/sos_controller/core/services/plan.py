"""Plan: derive the standing entries of switches (paths of pairs, guards, punts) from configuration and live state.

The plan is recomputed on each change and compared group by group; only differences are sent. Order matters: a punt entry is *armed* only
when its own datapath, the datapaths of the server's site and those of the nearest pair's paths have acknowledged the guards, paths and
other entries sent to them. It remains while the service has a pair and a path. Services with requirements (`Service.require`) are punted
even without a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sos_controller.core.config import LinkDeclaration, Service
from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match, Output
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    LEASE_S,
    PORT_CONTROLLER,
    PRIORITY_GUARD,
    PRIORITY_PUNT,
    TABLE_FORWARD,
    TABLE_REDIRECT,
    Kind,
    shared,
)
from sos_controller.core.services import agent_pairs as pairs
from sos_controller.core.services.agent_pairs import Pair, PairKey, PairNumbers, pair_key
from sos_controller.core.services.cache_guard import CacheGuard
from sos_controller.core.services.fragments import Fragments
from sos_controller.core.services.icmp_errors import IcmpErrors
from sos_controller.core.services.pair_selection import Candidate
from sos_controller.core.services.passive_measurement import PassiveMeasurement
from sos_controller.core.services.proactive import Proactive
from sos_controller.core.services.table_capacity import TableCapacity
from sos_controller.core.state import State
from sos_controller.core.tables.agent_sessions import Flow
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.policies import accelerated, punt_matches
from sos_controller.core.tables.service_state import ProgrammedReason
from sos_controller.core.topology import links
from sos_controller.core.topology.paths import Path
from sos_controller.core.types import Address, DatapathId, Location

MAX_CANDIDATES = 64
"""Maximum number of pairs kept per service, ingress switch and server's switch, the nearest first."""
MAX_CACHED = 16_384

Armed = tuple[str, DatapathId]


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


class Plan:
    """Desired entries of switches, and the pairs of agents that these entries connect."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._numbers = PairNumbers()
        self.pairs: dict[PairKey, Pair] = {}
        self.wanted: set[PairKey] = set()
        self._datagrams: set[PairKey] = set()
        self._costs: dict[tuple[str, str, str, str], int] = {}
        self._capacities: dict[tuple[str, str, str, str], int] = {}
        self._cache: dict[tuple[str, DatapathId, DatapathId], tuple[Candidate, ...]] = {}
        self._armed: set[Armed] = set()
        self._ready: set[Armed] = set()
        self._unarmed = False
        self.too_large: dict[str, str] = {}
        """Services whose entries do not fit into a datapath's table, with the message to show."""
        self._agents: dict[str, list[Agent]] = {}
        self._view = pairs.View(state.graph, {}, {})
        self._services: dict[str, Service] = {}
        self._dpids: dict[str, tuple[DatapathId, ...]] = {}
        self.proactive = Proactive(state, self.working_pair)
        self.passive_measurement = PassiveMeasurement(state)
        self.cache_guard = CacheGuard(state)
        self.icmp = IcmpErrors(state)
        self.fragments = Fragments(state)

    def configure(self) -> None:
        """Index the configuration in force."""
        config = self._state.config
        if config is None:
            return
        self.passive_measurement.configure()
        self._services = {s.id: s for s in self._state.services}
        self._dpids = {site.name: tuple(sorted(d.number for d in site.datapaths)) for site in config.sites}
        ends = [((d.a.site, d.a.uplink, d.b.site, d.b.uplink), d) for d in config.links]
        declared = {**dict(ends), **{(k[2], k[3], k[0], k[1]): link for k, link in ends}}
        self._costs = {k: link.cost for k, link in declared.items()}
        self._capacities = {k: link.capacity_mbps for k, link in declared.items()}

    def replan(self) -> None:
        """Recompute graph, pairs, paths, guards and punts."""
        state = self._state
        live = [dpid for dpid, s in state.switches.items() if s.claim is not None and state.programmer.is_synced(dpid)]
        state.graph = links.graph(live, state.topology.links(), self._cost)
        self._view = pairs.View(state.graph, {}, {})
        self._cache.clear()
        self._agents = {}
        for agent in state.agents.all():
            self._agents.setdefault(state.agent_sites.get(agent.agent_id, ""), []).append(agent)
        self._plan_pairs()
        state.programmer.set_group("guards", self._guards(), state.out)
        self.cache_guard.replan()
        self.icmp.replan()
        self.fragments.replan()
        self.proactive.replan()
        self.passive_measurement.replan()
        self.arm()

    def arm(self) -> None:
        """Install the punt entries of ready services, withdraw the punt entries of services that are no longer ready."""
        state = self._state
        punts: dict[DatapathId, list[FlowEntry]] = {}
        armed: set[Armed] = set()
        ready: set[Armed] = set()
        unarmed = False
        room = TableCapacity(state, "punts")
        cookie = state.cookie(Kind.PUNT)
        for policies in state.policies.by_site.values():
            for policy in policies:
                punted = accelerated(policy.service) and not state.is_proactive(policy.service)
                for dpid in self.datapaths_of(policy.service.from_.site) if punted else ():
                    matches = punt_matches(policy)
                    if self._may_arm(policy.service, dpid):
                        ready.add((policy.service.id, dpid))
                    else:
                        unarmed = True
                        if not policy.service.require or not state.programmer.is_synced(dpid):
                            continue
                    # Punt services with requirements even without agents, to refuse their connections with a reason.
                    if room.takes(policy.service.id, dpid, len(matches)):
                        armed.add((policy.service.id, dpid))
                        action = (Output(PORT_CONTROLLER),)
                        punts.setdefault(dpid, []).extend(
                            FlowEntry(TABLE_REDIRECT, shared(PRIORITY_PUNT, cookie), m, action, cookie, LEASE_S) for m in matches
                        )
        self._ready = armed & ready
        self._armed, self._unarmed, self.too_large = armed, unarmed, room.refused
        self.cache_guard.armed(self._ready)
        state.programmer.set_group("punts", punts, state.out)

    def is_ready(self, service_id: str, dpid: DatapathId) -> bool:
        """Return whether switches have acknowledged all entries that are needed by new flows of a service that enter at this datapath."""
        return (service_id, dpid) in self._ready

    @property
    def waits(self) -> bool:
        """Return whether an acknowledgement could arm a service."""
        return self._unarmed

    def renew(self) -> None:
        """Renew the leases of entries that punt, and check whether fragments still need redirection."""
        self.fragments.tick()
        self._state.programmer.renew("punts", self._state.out)
        self.passive_measurement.renew()

    def candidates(self, service: Service, dpid: DatapathId, server_at: DatapathId) -> tuple[Candidate, ...]:
        """Return the pairs of agents that could serve a flow entering at `dpid`, the nearest first; computed once until the next planning.
        `server_at`: the server's datapath, 0 if unknown."""
        index = (service.id, dpid, server_at)
        found = self._cache.get(index)
        if found is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            found = self._cache[index] = self._candidates(service, dpid, server_at)
        return found

    def working_pair(self, service: Service) -> Pair | None:
        """Return the pair of agents that serves a proactive service (the first agent of each site) if both agents are live and have a
        path."""
        ingress, egress = self._first_agents(service)
        if ingress is None or egress is None:
            return None
        pair = self.pairs.get(pair_key(ingress.agent_id, egress.agent_id))
        ingress_dpids, egress_dpids = self.datapaths_of(service.from_.site), self.datapaths_of(service.to.site)
        beside = ingress_dpids == (ingress.location.dpid,) and egress_dpids == (egress.location.dpid,)
        return pair if pair is not None and beside and self._works(pair) else None

    def service_of(self, flow: Flow) -> str:
        """Return the id of the service that covers a session that agents began without an order, "" if no service covers it."""
        policies = self._state.policies.by_site.get(self._state.agent_sites.get(flow.ingress, ""), ())
        return next((policy.service.id for policy in policies if policy.covers(flow)), "")

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
            if self._works(pair):
                sites = frozenset(self._state.agent_sites.get(agent, "") for agent in (pair.low, pair.high))
                between[sites] = between.get(sites, frozenset()) | pair.dpids
        return [self._status(self._services[i], between) for i in sorted(self._services)]

    def usable(self, site: str) -> list[Agent]:
        """Return agents of a site that accept new sessions."""
        return [a for a in self.agents_of(site) if a.usable]

    def capacity(self, site: str) -> int:
        """Return the sum of the session limits of a site's agents."""
        return sum(agent.beacon.session_limit for agent in self.agents_of(site))

    def agents_of(self, site: str) -> list[Agent]:
        """Return agents of a site that the configuration lists and that were live at the last planning."""
        return self._agents.get(site, []) if site else []

    # -- pairs and paths

    def _plan_pairs(self) -> None:
        state, wanted, datagrams = self._state, self._wanted_labels(), self._datagrams
        self.wanted, self._datagrams = set(wanted), self._pairs_over_quic()
        # an agent that is no longer declared finishes its sessions while it is live
        known = state.agent_sites.keys() | {agent.agent_id for agent in state.agents.all()}
        accepted = (pair for pair in state.agent_sessions.pairs if known >= set(pair))
        for ingress, egress in (*state.sessions.pairs, *accepted):  # running sessions keep their number of labels
            key = pair_key(ingress, egress)
            wanted[key] = max(wanted.get(key, 1), len(self.pairs[key].paths) if key in self.pairs else 1)
            if key in datagrams:
                self._datagrams.add(key)
        for key in [k for k in self.pairs if k not in wanted]:
            del self.pairs[key]
            state.programmer.set_group(("path", *key), {}, state.out)
        self._numbers.keep(wanted)
        for key in sorted(wanted):
            self._plan_pair(key, wanted[key])

    def _plan_pair(self, key: PairKey, labels: int) -> None:
        state, number = self._state, self._numbers.number(key)
        low, high = state.agents.get(key[0]), state.agents.get(key[1])
        pair = None
        if low is not None and high is not None and number is not None:
            before = self.pairs.get(key)
            if before is not None and not before.dpids <= state.claims.keys():
                before = None
            pair = pairs.plan(self._view, (low, high), number, labels, before)
        if pair is None or low is None or high is None:
            self.pairs.pop(key, None)
            state.programmer.set_group(("path", *key), {}, state.out)
            return
        self.pairs[key] = pair
        entries = pairs.entries(pair, low, high, state.cookie(Kind.PATH, pair.number), datagrams=key in self._datagrams)
        state.programmer.set_group(("path", *key), entries, state.out)

    def _wanted_labels(self) -> dict[PairKey, int]:
        """Return pairs of live agents that some service may use, each with the largest number of labels of any such service."""
        wanted: dict[PairKey, int] = {}
        for service in self._services.values():
            if not accelerated(service):
                continue
            for ingress in self.agents_of(service.from_.site):
                for egress in self.agents_of(service.to.site):
                    if ingress is not egress and len(wanted) < pairs.MAX_PAIRS:
                        key = pair_key(ingress.agent_id, egress.agent_id)
                        wanted[key] = max(wanted.get(key, 1), service.labels)
        return wanted

    def _pairs_over_quic(self) -> set[PairKey]:
        """Return pairs of agents between whose sites a service requests streams over QUIC."""
        found = set[PairKey]()
        for service in self._services.values():
            if accelerated(service) and service.transport.protocol == "QUIC":
                ends = ((ingress, egress) for ingress in self.agents_of(service.from_.site) for egress in self.agents_of(service.to.site))
                found.update(pair_key(ingress.agent_id, egress.agent_id) for ingress, egress in ends if ingress is not egress)
        return found

    def _cost(self, found: links.Link) -> int:
        """Return the declared cost of a link, by its uplinks' names."""
        return self._costs.get(self._ends(found), links.DEFAULT_COST)

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

    # -- candidates

    def _candidates(self, service: Service, dpid: DatapathId, server_at: DatapathId) -> tuple[Candidate, ...]:
        ingress_costs = self._view.distances(dpid)
        egress_costs = self._view.distances(server_at) if server_at in self.datapaths_of(service.to.site) else {}
        found = []
        for ingress in self.usable(service.from_.site):
            for egress in self.usable(service.to.site):
                pair = self.pairs.get(pair_key(ingress.agent_id, egress.agent_id))
                if pair is not None and ingress.location.dpid in ingress_costs and self._works(pair):
                    cost = ingress_costs[ingress.location.dpid] + pair.paths[0].cost + egress_costs.get(egress.location.dpid, 0)
                    found.append(Candidate(cost, ingress.agent_id, egress.agent_id))
        return tuple(sorted(found)[:MAX_CANDIDATES])

    def _works(self, pair: Pair) -> bool:
        state = self._state
        return pairs.has_path(state.graph, pair) and all(map(state.programmer.is_synced, pair.dpids))

    # -- arming

    def _may_arm(self, service: Service, dpid: DatapathId) -> bool:
        state = self._state
        if not state.programmer.is_synced(dpid):
            return False
        candidates = self._candidates(service, dpid, DatapathId(0))
        if not candidates or (service.id, dpid) in self._ready:
            return bool(candidates)
        ready = {dpid, *(d for d in self.datapaths_of(service.to.site) if state.programmer.is_synced(d))}
        best = self.pairs[pair_key(candidates[0].ingress, candidates[0].egress)]
        return all(map(state.programmer.is_acknowledged, ready | best.dpids))

    def _status(self, service: Service, between: Mapping[frozenset[str], frozenset[DatapathId]]) -> ServiceStatus:
        state = self._state
        if not accelerated(service):
            return ServiceStatus(service, ProgrammedReason.PROGRAMMED, (), ())
        if state.is_proactive(service):
            return self._proactive_status(service)
        sources, targets = self.datapaths_of(service.from_.site), self.datapaths_of(service.to.site)
        works = between.get(frozenset((service.from_.site, service.to.site)), frozenset())
        needed = sorted({*sources, *targets, *works})
        acked = [
            d for d in needed if state.programmer.is_acknowledged(d) and (d not in sources or (service.id, d) in self._ready)
        ]  # fmt: skip
        return ServiceStatus(service, self._reason(service, needed, acked, bool(works)), tuple(needed), tuple(acked))

    def _proactive_status(self, service: Service) -> ServiceStatus:
        state, pair = self._state, self.working_pair(service)
        sources = self.datapaths_of(service.from_.site)
        needed = sorted({*sources, *self.datapaths_of(service.to.site), *(pair.dpids if pair is not None else ())})
        armed = self.proactive.is_armed(service.id)
        acked = [d for d in needed if state.programmer.is_acknowledged(d) and (d not in sources or armed)]
        willing = all(agent is not None and agent.usable for agent in self._first_agents(service))
        reason = self._reason(service, needed, acked, pair is not None) if willing else ProgrammedReason.NO_AGENTS
        return ServiceStatus(service, reason, tuple(needed), tuple(acked))

    def _first_agents(self, service: Service) -> tuple[Agent | None, Agent | None]:
        """Return the agents that serve a proactive service, None for each that is not live."""
        ingress, egress = (self._state.sites[end.site].agents[:1] for end in (service.from_, service.to))
        known = self._state.agents
        return (known.get(ingress[0].agent_id) if ingress else None, known.get(egress[0].agent_id) if egress else None)

    def _reason(self, service: Service, needed: list[DatapathId], acked: list[DatapathId], works: bool) -> ProgrammedReason:
        if not self.usable(service.from_.site) or not self.usable(service.to.site):
            return ProgrammedReason.NO_AGENTS
        if not all(dpid in self._state.switches for dpid in needed):
            return ProgrammedReason.DATAPATH_DISCONNECTED
        if not works:
            return ProgrammedReason.NO_PATH
        if service.id in self.too_large:
            return ProgrammedReason.TOO_MANY_ENTRIES
        return ProgrammedReason.PROGRAMMED if needed == acked else ProgrammedReason.PROGRAMMING

    # -- guards

    def _guards(self) -> dict[DatapathId, list[FlowEntry]]:
        state = self._state
        peers = self._peers()
        return {
            dpid: self._guards_of(dpid, peers[site.name])
            for dpid, (site, _) in state.claims.items()
            if site.name in peers and dpid in state.switches
        }

    def _peers(self) -> dict[str, list[Address]]:
        """Return, for each site of a service, the addresses of the site's own agents and of the agents of all sites to which services
        connect it."""
        state, sites = self._state, dict[str, set[str]]()
        for service in self._services.values():
            one, other = service.from_.site, service.to.site
            sites.setdefault(one, {one}).add(other)
            sites.setdefault(other, {other}).add(one)
        declared = {s.name: {a.ip for a in s.agents} for s in state.sites.values()}
        for agent in state.agents.all():
            declared.setdefault(state.agent_sites.get(agent.agent_id, ""), set()).add(agent.beacon.address)
        return {site: sorted(a for p in ingress for a in declared.get(p, ())) for site, ingress in sites.items()}

    def _guards_of(self, dpid: DatapathId, addresses: Iterable[Address]) -> list[FlowEntry]:
        state = self._state
        ports = {end.port_no for end in state.topology.inter_switch_ports(dpid)}
        ports |= {a.location.port_no for a in state.agents.all() if a.location.dpid == dpid}
        matches = [Match(in_port=p) for p in sorted(ports)]
        for address in addresses:
            matches.append(Match(eth_type=ETH_IPV4, ipv4_src=(address, 0xFFFFFFFF)))
            matches.append(Match(eth_type=ETH_IPV4, ipv4_dst=(address, 0xFFFFFFFF)))
        cookie = state.cookie(Kind.GUARD)
        return [FlowEntry(TABLE_REDIRECT, shared(PRIORITY_GUARD, cookie), m, (Goto(TABLE_FORWARD),), cookie) for m in matches]
