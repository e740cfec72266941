"""What switches cache of a service's packets is about one port of a client and one server (docs/adr/0020, 0043), so that a new connection
never goes by a cache.

Open vSwitch forwards by what it has cached of earlier packets, with as many bits left open as its tables did not look at, and goes on
doing so for a while after the tables have changed. A cached decision about a plain connection can so cover the next one between the same
hosts: its first acknowledgement went past the agent, and the server reset it. *Exact* entries look at the addresses and the client's port
of all that belongs to no session of a service. Then only an earlier connection from the same port to the same server can be in a cache,
and a new session waits for the cache only where there may have been one. The server's port is left open: a scan of a thousand ports would
cost the switch, and everybody on it, a decision for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry, Match, TellApart
from sos_controller.core.openflow.pipeline import NOT_SYN, PRIORITY_EXACT, SETTLE_S, TABLE_REDIRECT, Kind, shared
from sos_controller.core.state import State
from sos_controller.core.tables.policies import Policy, accelerated, exact_matches
from sos_controller.core.tables.recent_flows import IDLE_S
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import DatapathId

SWEPT_S: Final = 0.5
"""After exact entries are new on a switch: what it cached before them, which may be about many connections, should be gone by then. Its
revalidators begin to look through all of it at every change of its tables, and at least this often (ovs-vswitchd.conf.db(5),
max-revalidator)."""


MAX_KEPT: Final = 8_192
"""Answers kept to the question how long a service's switches have been exact; asked and forgotten by every new session."""

_Course = tuple[str, DatapathId, tuple[tuple[DatapathId, ...], ...]]
"""A service, the switch a session of it came in by, and where its entries are."""


class Since(NamedTuple):
    """From when on a switch has had a service's exact entries. `fresh`: they are not acknowledged yet, as arming the service will tell."""

    matches: tuple[Match, ...]
    since: float
    fresh: bool = True


class CacheGuard:
    """Exact entries, and how long a new session has to wait for caches."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since: dict[tuple[str, DatapathId], Since] = {}
        self._armed: dict[tuple[str, DatapathId], float] = {}
        self._newest: dict[_Course, float | None] = {}

    def replan(self) -> None:
        """Want exact entries for all that is set up connection by connection, at both ends."""
        state = self._state
        wanted: dict[DatapathId, list[FlowEntry]] = {}
        made: dict[tuple[tuple[Match, ...], bool], list[FlowEntry]] = {}
        places = [(policy, *place) for policies in state.policies.by_site.values() for policy in policies for place in self._places(policy)]
        mixed = _mixed((dpid, matches) for _, dpid, matches in places)
        known, self._since = self._since, {}
        self._newest.clear()
        cookie = state.cookie(Kind.EXACT)
        for policy, dpid, matches in places:
            before = known.get((policy.service.id, dpid))
            kept = before is not None and before.matches == matches
            self._since[policy.service.id, dpid] = before if before is not None and kept else Since(matches, state.now)
            alike = matches, dpid in mixed
            if alike not in made:
                made[alike] = _entries(*alike, cookie)
            wanted.setdefault(dpid, []).extend(made[alike])
        state.programmer.set_group("exact", wanted, state.out)

    def compared(self, dpid: DatapathId) -> None:
        """A switch has just been given what it lacked: it may have been without exact entries until now."""
        self._newest.clear()
        for place, found in self._since.items():
            if place[1] == dpid:
                self._since[place] = found._replace(since=self._state.now)

    def armed(self, services: Collection[tuple[str, DatapathId]]) -> None:
        """These services' SYNs are handed over by these switches now. Until then their connections went plain, and nobody noted them; and
        what arming waits for is acknowledged."""
        now = self._state.now
        self._armed = {place: self._armed.get(place, now) for place in services}
        names = {service for service, _ in services}
        self._newest.clear()
        for place, found in self._since.items():
            if found.fresh and place[0] in names:
                self._since[place] = found._replace(since=now, fresh=False)

    def wait(self, session: Session) -> float:
        """Seconds until all switches of a session, whose entries they have acknowledged, forward by them and not by a cache."""
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
        """From when on all switches of a session have had its service's exact entries, None when one has none."""
        course = (session.service, session.dpid, tuple(dpids for dpids, _ in session.entries()))
        if course not in self._newest:
            if len(self._newest) >= MAX_KEPT:
                self._newest.clear()
            found = [self._since.get((session.service, dpid)) for dpid in {session.dpid, *session.datapaths()}]
            exact = [place.since for place in found if place is not None]
            self._newest[course] = max(exact) if len(exact) == len(found) else None
        return self._newest[course]

    def _places(self, policy: Policy) -> Iterable[tuple[DatapathId, tuple[Match, ...]]]:
        """Switches that get a service's exact entries: those of both its sites that are Open vSwitch for certain. Where a site rewrites,
        entries of sessions stand above all that is told apart here."""
        service, sites = policy.service, self._state.sites
        ends = ((True, sites[service.from_.site]), (False, sites[service.to.site]))
        if not accelerated(service) or self._state.is_proactive(service) or any(site.rewrite != "Transparent" for _, site in ends):
            return
        places = dict[DatapathId, tuple[Match, ...]]()
        for near, site in ends:
            matches = tuple(exact_matches(policy, near))
            for datapath in site.datapaths:
                if datapath.forwarding == "Node":
                    places[datapath.number] = places.get(datapath.number, ()) + matches
        yield from places.items()


def _of_clients(match: Match) -> bool:
    """Whether an exact entry is about what clients send, and not about what servers answer."""
    return match.tcp_flags == NOT_SYN


def _mixed(places: Iterable[tuple[DatapathId, tuple[Match, ...]]]) -> set[DatapathId]:
    """The switches at which one packet may be a client's to one service and a server's answer to another."""
    found: dict[DatapathId, set[bool]] = {}
    for dpid, matches in places:
        found.setdefault(dpid, set()).update(_of_clients(match) for match in matches)
    return {dpid for dpid, kinds in found.items() if len(kinds) > 1}


def _entries(matches: Iterable[Match], mixed: bool, cookie: int) -> list[FlowEntry]:
    """The exact entries for these matches; where it is not certain which end of a packet is the client, they look at both ports."""
    priority = shared(PRIORITY_EXACT, cookie)
    ends = [(match, TellApart("both" if mixed else "source" if _of_clients(match) else "target")) for match in matches]
    return [FlowEntry(TABLE_REDIRECT, priority, match, (action,), cookie) for match, action in ends]
