"""Cache guard: megaflows of a service's packets cover one client port and one server only (docs/adr/0020), so that a new connection is
never forwarded by a decision cached for another connection.

Open vSwitch forwards by megaflows of earlier packets, which wildcard all bits that its tables did not read, and keeps them for a while
after the tables have changed. A cached decision about a plain connection may thus cover the next connection between the same hosts: without
exact entries, the first acknowledgement of a session bypassed the agent, and the server reset the connection. *Exact* entries read the
addresses and the client's port of all packets of a service that belong to no session. Then only a connection from the same port to the same
server can be cached, and a new session waits for the cache only if there may have been such a connection. The server's port stays
wildcarded: otherwise a scan of a thousand ports would cost the switch, and all its users, an upcall for each port.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry, Match, TellApart
from sos_controller.core.openflow.pipeline import NOT_SYN, PRIORITY_EXACT, SETTLE_S, TABLE_REDIRECT, Kind, shared
from sos_controller.core.state import State
from sos_controller.core.tables.policies import Policy, exact_matches
from sos_controller.core.tables.recent_flows import IDLE_S
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import DatapathId

SWEPT_S: Final = 0.5
"""Time after the installation of exact entries after which older megaflows, which may cover many connections, should be gone. Revalidators
check all megaflows at every change of the tables, and at least this often (ovs-vswitchd.conf.db(5), max-revalidator)."""


MAX_KEPT: Final = 8_192
"""Maximum number of cached results of `_all_since`, needed for every new session; beyond it the cache is cleared."""

_Course = tuple[str, DatapathId, tuple[tuple[DatapathId, ...], ...]]
"""A service, the ingress switch of a session, and the datapaths of its entries."""


class Since(NamedTuple):
    """Time from which a switch has had a service's exact entries. `fresh`: not acknowledged yet; arming the service implies the
    acknowledgement."""

    matches: tuple[Match, ...]
    since: float
    fresh: bool = True


class CacheGuard:
    """Exact entries, and the delay of a new session until no cached megaflow covers it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since: dict[tuple[str, DatapathId], Since] = {}
        self._armed: dict[tuple[str, DatapathId], float] = {}
        self._newest: dict[_Course, float | None] = {}
        self._fresh: dict[str, set[DatapathId]] = {}
        """Places of `_since` that are not known to be acknowledged, by service."""

    def configure(self) -> None:
        """Request exact entries at both ends of all reactive services."""
        state = self._state
        wanted: dict[DatapathId, list[FlowEntry]] = {}
        made: dict[tuple[tuple[Match, ...], bool], list[FlowEntry]] = {}
        places = [(policy, *place) for policies in state.policies.by_site.values() for policy in policies for place in self._places(policy)]
        mixed = _mixed((dpid, matches) for _, dpid, matches in places)
        known, self._since, self._fresh = self._since, {}, {}
        self._newest.clear()
        cookie = state.cookie(Kind.EXACT)
        for policy, dpid, matches in places:
            before = known.get((policy.service.id, dpid))
            kept = before is not None and before.matches == matches
            found = self._since[policy.service.id, dpid] = before if before is not None and kept else Since(matches, state.now)
            if found.fresh:
                self._fresh.setdefault(policy.service.id, set()).add(dpid)
            alike = matches, dpid in mixed
            if alike not in made:
                made[alike] = _entries(*alike, cookie)
            wanted.setdefault(dpid, []).extend(made[alike])
        state.programmer.set_group("exact", wanted, state.out)

    def compared(self, dpid: DatapathId) -> None:
        """Record that missing entries were just sent to a switch, which may have had no exact entries until now."""
        self._newest.clear()
        for place, found in self._since.items():
            if place[1] == dpid:
                self._since[place] = found._replace(since=self._state.now)

    def armed(self, added: Iterable[tuple[str, DatapathId]], removed: Iterable[tuple[str, DatapathId]]) -> None:
        """Record that switches now punt these services' SYNs, or no longer do. Earlier connections went plain without being recorded."""
        for place in removed:
            self._armed.pop(place, None)
        for place in added:
            self._armed[place] = self._state.now
        self._newest.clear()

    def acknowledged(self, services: Iterable[str]) -> None:
        """Record that all exact entries of these services, which are armed at some switch, have been acknowledged."""
        for service in services:
            for dpid in self._fresh.pop(service, ()):
                self._since[service, dpid] = self._since[service, dpid]._replace(since=self._state.now, fresh=False)
        self._newest.clear()

    def wait(self, session: Session) -> float:
        """Return the seconds until all switches of a session forward by its acknowledged entries and no longer by cached megaflows."""
        now, settled = self._state.now, session.installed_at + SETTLE_S
        newest = self._all_since(session)
        if newest is None:
            return max(0.0, settled - now)
        until = newest + SWEPT_S
        noted_from = max(newest, self._armed.get((session.service, session.dpid), 0.0))
        if now < noted_from + IDLE_S or self._state.recent_flows.holds(session.key, now):
            until = max(until, settled)
        return max(0.0, until - now)

    def _all_since(self, session: Session) -> float | None:
        """Return the time from which all switches of a session have had its service's exact entries, None if a switch has no such
        entries."""
        course = (session.service, session.dpid, tuple(dpids for dpids, _ in session.entries()))
        if course not in self._newest:
            if len(self._newest) >= MAX_KEPT:
                self._newest.clear()
            found = [self._since.get((session.service, dpid)) for dpid in {session.dpid, *session.datapaths()}]
            exact = [place.since for place in found if place is not None]
            self._newest[course] = max(exact) if len(exact) == len(found) else None
        return self._newest[course]

    def _places(self, policy: Policy) -> Iterable[tuple[DatapathId, tuple[Match, ...]]]:
        """Yield the switches that get a service's exact entries: all switches of its two sites that are certainly Open vSwitch. A service
        with a site that rewrites gets none: there, sessions' entries have higher priority than all exact entries."""
        service, sites = policy.service, self._state.sites
        ends = ((True, sites[service.from_.site]), (False, sites[service.to.site]))
        if (
            not self._state.has_entries(service)
            or self._state.is_proactive(service)
            or any(site.rewrite != "Transparent" for _, site in ends)
        ):
            return
        places = dict[DatapathId, tuple[Match, ...]]()
        for ingress, site in ends:
            matches = tuple(exact_matches(policy, ingress))
            for datapath in site.datapaths:
                if datapath.forwarding == "Node":
                    places[datapath.number] = places.get(datapath.number, ()) + matches
        yield from places.items()


def _of_clients(match: Match) -> bool:
    """Return whether an exact entry matches packets of clients, not of servers."""
    return match.tcp_flags == NOT_SYN


def _mixed(places: Iterable[tuple[DatapathId, tuple[Match, ...]]]) -> set[DatapathId]:
    """Return the switches at which a packet may be from a client of one service and from a server of another."""
    found: dict[DatapathId, set[bool]] = {}
    for dpid, matches in places:
        found.setdefault(dpid, set()).update(_of_clients(match) for match in matches)
    return {dpid for dpid, kinds in found.items() if len(kinds) > 1}


def _entries(matches: Iterable[Match], mixed: bool, cookie: int) -> list[FlowEntry]:
    """Return the exact entries for these matches. They read the client's port, or both ports if either end of a packet may be the client
    (`mixed`)."""
    priority = shared(PRIORITY_EXACT, cookie)
    ends = [(match, TellApart("both" if mixed else "source" if _of_clients(match) else "target")) for match in matches]
    return [FlowEntry(TABLE_REDIRECT, priority, match, (action,), cookie) for match, action in ends]
