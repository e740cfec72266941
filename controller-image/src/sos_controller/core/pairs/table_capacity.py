"""Table capacity: admit services whose entries fit into the tables of all their datapaths, before any of them is sent.

A switch refuses entries beyond its table's size, and a service with a part of its entries would be accelerated in part. So a service whose
entries do not fit gets none, and its status shows the numbers; other services are unaffected. Services are admitted in their order, and
again when the free space of one of their datapaths has changed (`budget.Space`). A datapath that has space for all its services together
is *roomy* and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from sos_controller.core.config import Datapath, Service, Site
from sos_controller.core.flow_tables.budget import MAX_ENTRIES, SESSIONS_DIVISOR, Limits, Rank, Room, Space
from sos_controller.core.openflow.flow_entries import EntryKey, FlowEntry, Match
from sos_controller.core.openflow.pipeline import (
    PRIORITY_EXACT,
    PRIORITY_FRAGMENT,
    PRIORITY_MEASURE,
    PRIORITY_OBSERVE,
    PRIORITY_PUNT,
    PRIORITY_SERVICE,
    PRIORITY_SERVICE_SYN,
    TABLE_REDIRECT,
    TCP_ACK,
    TCP_FIN,
    TCP_SYN,
)
from sos_controller.core.pairs.agent_pairs import PairKey, SitePair
from sos_controller.core.state import State
from sos_controller.core.tables.policies import (
    Policy,
    accelerated,
    answer_matches,
    compared,
    error_matches,
    exact_matches,
    fragment_matches,
    punt_matches,
    redirect_matches,
)
from sos_controller.core.types import DatapathId

UNREADABLE: Final = (
    f"datapath {{}}: has more than {MAX_ENTRIES} entries of this controller and gets no more: check the switch, delete the entries, and let"
    " it reconnect"
)
"""Message about a switch whose entries cannot be compared."""

Side = tuple[str, bool, bool]
"""A service, whether its clients' site is meant, and whether the datapath is one of our Open vSwitch bridges."""


class _Refused(NamedTuple):
    """A pair of agents whose path entries do not fit on a datapath, and the datapath's space when they did not."""

    dpid: DatapathId
    space: Space
    message: str


class TableCapacity:
    """Services and pairs of agents whose entries do not fit."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pairs: dict[PairKey, _Refused] = {}
        self._path_spaces: dict[DatapathId, Space] = {}
        """Space of bounded datapaths when the pairs were last planned."""
        self._spaces: dict[DatapathId, Space] = {}
        """Space of bounded datapaths, except roomy ones, when services were last admitted."""
        self._roomy: dict[DatapathId, tuple[Space, bool]] = {}
        """For each bounded datapath: the space at the last calculation, and True if all services fit."""
        self._keys: dict[Side, frozenset[EntryKey]] = {}
        self._policies: dict[SitePair, list[tuple[int, Policy]]] = {}
        """Services with their place in the order, by their sites."""
        self._peers: dict[str, dict[SitePair, str]] = {}
        """Pairs of sites with services, by each of their sites, with the other site."""
        self._needed: dict[DatapathId, int] = {}
        """Number of entries of all services together, by datapath; entries that services share count several times."""
        self._crowded: dict[DatapathId, Space] = {}
        """Datapaths on which all services together may need more entries than a datapath can have in this version."""

    def configure(self) -> None:
        """Index the services of the configuration in force; the next `admit` admits all of them again."""
        state = self._state
        self._pairs, self._path_spaces, self._spaces, self._roomy = {}, {}, {}, {}
        self._keys, self._policies, self._peers = {}, {}, {}
        state.no_room = {}
        policies = (policy for policies in state.policies.by_site.values() for policy in policies)
        for number, policy in enumerate(policies):
            sites = (policy.service.from_.site, policy.service.to.site)
            self._policies.setdefault(sites, []).append((number, policy))
            self._peers.setdefault(sites[0], {})[sites] = sites[1]
            self._peers.setdefault(sites[1], {})[sites] = sites[0]
        self._needed, most = self._count(), MAX_ENTRIES - MAX_ENTRIES // SESSIONS_DIVISOR
        self._crowded = {dpid: Space(Limits(total=MAX_ENTRIES), 0, 0) for dpid, count in self._needed.items() if count > most}

    @property
    def has_changed(self) -> bool:
        """Return whether something did not fit, and the free space of a datapath has changed since then."""
        waits = self._state.no_room or self._pairs
        return bool(waits) and (bool(self.due_pairs()) or self._service_spaces() != self._spaces)

    # -- paths

    def overfull(self) -> list[DatapathId]:
        """Return the datapaths that no longer hold the entries of paths and of higher ranks, among those whose space has changed since the
        last call."""
        programmer, before = self._state.programmer, self._path_spaces
        self._path_spaces = programmer.spaces()
        changed = (dpid for dpid, space in self._path_spaces.items() if before.get(dpid) != space)
        return [dpid for dpid in changed if programmer.is_overfull(dpid, Rank.PATH)]

    def due_pairs(self) -> list[PairKey]:
        """Return the pairs that did not fit on a datapath whose space has changed since then."""
        spaces = self._state.programmer.spaces() if self._pairs else {}
        return [key for key, refused in self._pairs.items() if spaces.get(refused.dpid) != refused.space]

    def is_full(self, key: PairKey) -> bool:
        """Return whether the entries of a pair did not fit when it was last planned."""
        return key in self._pairs

    def takes_pair(self, key: PairKey, entries: Mapping[DatapathId, Iterable[FlowEntry]]) -> bool:
        """Return whether the path entries of a pair fit beside those of other pairs; note the pair if they do not."""
        programmer = self._state.programmer
        short = programmer.shortfall(("path", *key), entries)
        self._pairs.pop(key, None)
        if short is not None:
            dpid, numbers = short
            programmer.set_group(("path", *key), {}, self._state.out)  # its own entries are not part of the space that it waits for
            self._pairs[key] = _Refused(dpid, programmer.spaces()[dpid], numbers.message(self._state.name_of(dpid), "paths"))
        return short is None

    def drop_pair(self, key: PairKey) -> None:
        """Forget a pair that has no entries for another reason."""
        self._pairs.pop(key, None)

    # -- status

    def between(self, one: str, other: str) -> str:
        """Return the message about a full table because of which two sites have no path, else ""."""
        state = self._state
        for key, refused in self._pairs.items():
            if {state.agent_sites.get(agent, "") for agent in key} == {one, other}:
                return refused.message
        dpids = [dpid for dpid in sorted(state.unreadable) if dpid in state.claims and state.claims[dpid][0].name in (one, other)]
        return UNREADABLE.format(state.name_of(dpids[0])) if dpids else ""

    def message(self, service: Service) -> str:
        """Return the message of a service with the reason `TableFull`."""
        return self._state.no_room.get(service.id) or self.between(service.from_.site, service.to.site)

    # -- services

    def admit(self) -> set[SitePair]:
        """Set `State.no_room` by the current space of the datapaths. Return the sites of services that got or lost their space."""
        state, before = self._state, self._spaces
        self._spaces = self._service_spaces()
        changed = [dpid for dpid in self._spaces.keys() | before.keys() if before.get(dpid) != self._spaces.get(dpid)]
        concerned = self._concerned({state.claims[dpid][0].name for dpid in changed})
        rooms = {dpid: self._room(dpid) for dpid in self._spaces} if concerned else {}
        found = set[SitePair]()
        for policy in concerned:
            service = policy.service
            was = state.no_room.pop(service.id, None)
            self._admit(policy, rooms)
            if (was is None) is not (service.id not in state.no_room):
                found.add((service.from_.site, service.to.site))
        return found

    def _service_spaces(self) -> dict[DatapathId, Space]:
        claims, spaces = self._state.claims, self._state.programmer.spaces()
        bounded = {dpid: space.for_services for dpid, space in spaces.items() if dpid in claims}
        return {**self._crowded, **{dpid: space for dpid, space in bounded.items() if not self._is_roomy(dpid, space)}}

    def _is_roomy(self, dpid: DatapathId, space: Space) -> bool:
        found = self._roomy.get(dpid)
        if found is None or found[0] != space:
            room = self._room(dpid)
            left = [room.left(table, Rank.SERVICE) for table in (TABLE_REDIRECT, None)]
            found = self._roomy[dpid] = (space, all(free is None or free >= self._needed.get(dpid, 0) for free in left))
        return found[1]

    def _concerned(self, sites: set[str]) -> list[Policy]:
        """Return the services from and to these sites, in their order, and the services that share space with them on further bounded
        datapaths."""
        bounded = {self._state.claims[dpid][0].name for dpid in self._spaces} if sites else set[str]()
        pairs, left, seen = set[SitePair](), list(sites), set(sites)
        while left:
            for pair, other in self._peers.get(left.pop(), {}).items():
                pairs.add(pair)
                if other in bounded and other not in seen:
                    seen.add(other)
                    left.append(other)
        return [policy for _, policy in sorted((found for pair in pairs for found in self._policies[pair]), key=lambda found: found[0])]

    def _room(self, dpid: DatapathId) -> Room:
        room = self._state.programmer.room_for_services(dpid)
        return Room(self._crowded[dpid].limits, 0) if room is None else room

    def _admit(self, policy: Policy, rooms: dict[DatapathId, Room]) -> None:
        """Take a service's entries on all bounded datapaths, or note that they do not fit on one of them."""
        wanted = [
            (datapath.number, room, self._needs(policy, ingress, node))
            for datapath, ingress, node in self._places(policy)
            if (room := rooms.get(datapath.number)) is not None
        ]
        for dpid, room, keys in wanted:
            short = room.shortfall(keys, Rank.SERVICE)
            if short is not None:
                said = short.message(self._state.name_of(dpid), "services")
                self._state.no_room[policy.service.id] = f"{said}: fewer or wider prefixes and port ranges need fewer"
                return
        for _, room, keys in wanted:
            room.take(keys)

    def _count(self) -> dict[DatapathId, int]:
        """Return the number of entries of all services together, by datapath."""
        state = self._state
        counts: dict[tuple[str, bool], int] = {}
        for policy in (p for policies in state.policies.by_site.values() for p in policies):
            for site, ingress in self._sites(policy):
                for node in {datapath.forwarding == "Node" for datapath in site.datapaths}:
                    count = sum(1 for _ in self._matches(policy, ingress, node))
                    counts[site.name, node] = counts.get((site.name, node), 0) + count
        return {dpid: counts.get((site.name, d.forwarding == "Node"), 0) for dpid, (site, d) in state.claims.items()}

    def _places(self, policy: Policy) -> Iterator[tuple[Datapath, bool, bool]]:
        """Yield the datapaths of a service's sites; whether the site is that of the clients; whether the bridge is ours."""
        for site, ingress in self._sites(policy):
            for datapath in site.datapaths:
                yield datapath, ingress, datapath.forwarding == "Node"

    def _sites(self, policy: Policy) -> tuple[tuple[Site, bool], tuple[Site, bool]]:
        sites, service = self._state.sites, policy.service
        return (sites[service.from_.site], True), (sites[service.to.site], False)

    def _needs(self, policy: Policy, ingress: bool, node: bool) -> frozenset[EntryKey]:
        """Return the identities of a service's entries on each datapath of a site."""
        side = policy.service.id, ingress, node
        found = self._keys.get(side)
        if found is None:
            found = self._keys[side] = frozenset((TABLE_REDIRECT, *key) for key in self._matches(policy, ingress, node))
        return found

    def _matches(self, policy: Policy, ingress: bool, node: bool) -> Iterator[tuple[int, Match]]:
        """Yield priorities and matches of a service's entries. The priorities only separate entries of different kinds."""
        if compared(policy.service) and ingress:
            first = punt_matches(policy) if policy.service.mode == "Observe" else []
            yield from ((PRIORITY_OBSERVE, match) for match in first)
            flags = ((TCP_SYN | TCP_ACK, TCP_SYN | TCP_ACK), (TCP_FIN, TCP_FIN))
            yield from ((PRIORITY_MEASURE, match) for match in answer_matches(policy, flags))
        if not accelerated(policy.service):
            return
        proactive = self._state.is_proactive(policy.service)
        if ingress and not proactive:
            yield from ((PRIORITY_PUNT, match) for match in punt_matches(policy))
        if ingress and proactive and policy.service.require:
            yield from ((PRIORITY_SERVICE_SYN, match) for match in punt_matches(policy))
        yield from ((PRIORITY_FRAGMENT, match) for match in error_matches(policy.servers if ingress else policy.clients))
        if node:
            yield from ((PRIORITY_FRAGMENT, match) for match in fragment_matches(policy, ingress))
            redirected = redirect_matches(policy, ingress) if proactive else exact_matches(policy, ingress)
            yield from ((PRIORITY_SERVICE if proactive else PRIORITY_EXACT, match) for match in redirected)
