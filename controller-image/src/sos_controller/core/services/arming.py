"""Arming: punt entries of services, decided once for all services between the same two sites.

A switch of the clients' site is *open* for a pair of sites if it has been read and a pair of agents has a path. Once the switches of this
path, of the servers' site and itself have acknowledged the entries sent to them, all services between the sites are armed at the switch,
until it is no longer open. Services with requirements (`Service.require`) are punted even without a pair, to refuse their connections with
a reason. Services whose entries do not fit into a table (`State.no_room`) are not punted. The punt entries of a
switch are recomputed only if its state has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry, Output
from sos_controller.core.openflow.pipeline import LEASE_S, PORT_CONTROLLER, PRIORITY_PUNT, TABLE_REDIRECT, Kind, shared
from sos_controller.core.pairs.agent_pairs import SitePair, pair_key
from sos_controller.core.pairs.candidates import Candidates
from sos_controller.core.pairs.pair_planner import PairPlanner
from sos_controller.core.services.cache_guard import CacheGuard
from sos_controller.core.state import State
from sos_controller.core.tables.policies import Policy, accelerated, punt_matches
from sos_controller.core.types import DatapathId

Armed = tuple[str, DatapathId]
"""A service's id and a switch."""


MAX_OPENED: Final = 50
"""Maximum number of switches that get further punt entries at once; the others follow in the next replans. With 50 services of each site,
50 switches take some 25 ms. Punt entries that have to go do not wait."""


class Gate(IntEnum):
    """State of a switch for the services between two sites."""

    UNREAD = 0
    CLOSED = 1
    WAITING = 2
    """Open, but not all entries have been acknowledged since the switch was closed or the configuration changed."""
    OPEN = 3


class _Punted(NamedTuple):
    """A reactive service, with its punt entries on each switch."""

    service_id: str
    sites: SitePair
    require: bool
    entries: tuple[FlowEntry, ...]


class Arming:
    """Punt entries of all reactive services."""

    def __init__(self, state: State, candidates: Candidates, planner: PairPlanner, cache_guard: CacheGuard) -> None:
        self._state, self._candidates, self._planner, self._cache_guard = state, candidates, planner, cache_guard
        self._dpids: dict[str, tuple[DatapathId, ...]] = {}
        self._by_site: dict[str, list[_Punted]] = {}
        self._pairs: dict[SitePair, None] = {}
        self._gates: dict[tuple[SitePair, DatapathId], Gate] = {}
        self._ready: dict[DatapathId, set[str]] = {}
        """Services that are armed and have agents, by switch."""
        self._unarmed: set[tuple[SitePair, DatapathId]] = set()
        self._reopened: set[tuple[SitePair, DatapathId]] = set()
        self._late: set[DatapathId] = set()
        """Switches whose punt entries the last `arm` has left to the next one."""
        self._configured = True

    @property
    def is_behind(self) -> bool:
        """Return whether the last `arm` has left switches to the next one."""
        return bool(self._late)

    @property
    def waits(self) -> bool:
        """Return whether an acknowledgement could arm a service."""
        return bool(self._unarmed)

    def is_ready(self, service_id: str, dpid: DatapathId) -> bool:
        """Return whether a service is armed at a switch and has agents."""
        return service_id in self._ready.get(dpid, ())

    def configure(self, policies: Iterable[Policy], dpids: dict[str, tuple[DatapathId, ...]]) -> None:
        """Set the accelerated reactive services, in their order, and the switches of each site. Services that are armed stay armed."""
        cookie = self._state.cookie(Kind.PUNT)
        self._dpids, self._by_site, self._pairs = dpids, {}, {}
        for policy in policies:
            service = policy.service
            if not accelerated(service) or self._state.is_proactive(service):
                continue
            sites, priority, action = (service.from_.site, service.to.site), shared(PRIORITY_PUNT, cookie), (Output(PORT_CONTROLLER),)
            entries = (FlowEntry(TABLE_REDIRECT, priority, match, action, cookie, LEASE_S) for match in punt_matches(policy))
            self._by_site.setdefault(sites[0], []).append(_Punted(service.id, sites, bool(service.require), tuple(entries)))
            self._pairs[sites] = None
        self._gates = {}
        self._reopened = set()
        self._configured = True

    def reopen(self, pairs: Iterable[SitePair]) -> None:
        """Replace the punt entries between these sites at the next `arm`: services there have got space in the tables, or lost it. Those
        that have got it wait for acknowledgements; services that are armed stay armed."""
        self._reopened.update((pair, dpid) for pair in pairs if pair in self._pairs for dpid in self._dpids.get(pair[0], ()))

    def arm(self, sites: set[str] | None, between: Collection[SitePair] = ()) -> None:
        """Install the punt entries of services that are ready, withdraw those of services that are no longer ready. `sites`: those from or
        to which candidates may have changed, None = all. `between`: pairs of sites between which they may have changed."""
        pairs = [pair for pair in self._pairs if pair in between or _concerns(pair, sites)]
        due = {(pair, dpid) for pair in pairs for dpid in self._dpids.get(pair[0], ())}
        if self._configured:
            self._unarmed = set()
        reopened, self._reopened = self._reopened, set()
        for place in reopened:
            self._gates.pop(place, None)
        changed, closed = set(self._late), {dpid for _, dpid in reopened}
        for place in due | reopened | self._unarmed:
            gate, before = self._gate(*place), self._gates.get(place, Gate.UNREAD)
            if gate is not self._gates.get(place):
                self._gates[place] = gate
                (changed if gate > before else closed).add(place[1])
            (self._unarmed.discard if gate is Gate.OPEN else self._unarmed.add)(place)
        now = closed.union(sorted(changed - closed)[:MAX_OPENED])
        self._late = set() if self._configured else changed - now
        self._punt(now)

    def renew(self) -> None:
        """Renew the leases of the punt entries."""
        for dpid in sorted(self._ready):
            self._state.programmer.renew(("punts", dpid), self._state.out)

    def _gate(self, sites: SitePair, dpid: DatapathId) -> Gate:
        programmer = self._state.programmer
        if not programmer.is_synced(dpid):
            return Gate.UNREAD
        best = self._candidates.best(sites, dpid) if self._state.is_usable(dpid) else None
        if best is None:
            return Gate.CLOSED
        if self._gates.get((sites, dpid)) is Gate.OPEN:
            return Gate.OPEN
        pair = self._planner.pairs[pair_key(best.ingress, best.egress)]
        far = (d for d in self._dpids.get(sites[1], ()) if programmer.is_synced(d))
        return Gate.OPEN if all(map(programmer.is_acknowledged, {dpid, *far, *pair.dpids})) else Gate.WAITING

    def _punt(self, changed: set[DatapathId]) -> None:
        """Replace the punt entries of these switches; after a change of the configuration, of all switches."""
        before = dict(self._ready)
        if self._configured:
            self._ready = {}
            changed = {dpid for site in self._by_site for dpid in self._dpids.get(site, ())}
            for dpid in sorted(before.keys() - changed):
                self._state.programmer.set_group(("punts", dpid), {}, self._state.out)
        for site, punted in self._by_site.items():
            for dpid in self._dpids.get(site, ()):
                if dpid in changed:
                    self._ready[dpid] = self._punt_at(dpid, punted, before.get(dpid, set()))
        self._tell(before, changed if not self._configured else before.keys() | changed)
        self._configured = False

    def _punt_at(self, dpid: DatapathId, services: list[_Punted], before: set[str]) -> set[str]:
        """Replace the punt entries of a switch; return the services that are ready there."""
        state, found, entries = self._state, set[str](), list[FlowEntry]()
        for service in services:
            if service.service_id in state.no_room:
                continue
            gate = self._gates.get((service.sites, dpid), Gate.UNREAD)
            ready = gate is Gate.OPEN or (gate is Gate.WAITING and service.service_id in before)
            if not ready and (not service.require or gate is Gate.UNREAD):
                continue
            entries.extend(service.entries)
            if ready:
                found.add(service.service_id)
        state.programmer.set_group(("punts", dpid), {dpid: entries}, state.out)
        return found

    def _tell(self, before: dict[DatapathId, set[str]], changed: Iterable[DatapathId]) -> None:
        """Report services that have become ready, or are no longer ready, to the cache guard."""
        now, added, removed = self._ready, list[Armed](), list[Armed]()
        for dpid in changed:
            ready, known = now.get(dpid, set()), before.get(dpid, set())
            added.extend((service_id, dpid) for service_id in ready - known)
            removed.extend((service_id, dpid) for service_id in known - ready)
        if added or removed:
            self._cache_guard.armed(added, removed)
        if added or self._configured:
            armed = now.values() if self._configured else ([service_id] for service_id, _ in added)
            self._cache_guard.acknowledged(service_id for each in armed for service_id in each)


def _concerns(pair: SitePair, sites: set[str] | None) -> bool:
    return sites is None or pair[0] in sites or pair[1] in sites
