"""Links between datapaths, learned from probes and expired when probes stop.

A link exists only if probes in both directions have arrived within the expiry, so that an attacker cannot create a link by replaying or
relaying a single probe. A port that has received one of our probes from another port is *inter-switch* immediately, because it is safer to
assume a switch there. The port stays inter-switch while the switch at either end is unreachable (it may still forward), while both ends are
down, and for one link expiry after that. While probes are missing in one or both directions, the link of such a port is *unheard*: no path
uses it, but it may still forward packets and close a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import networkx as nx

from sos_controller.core.types import DatapathId, Location

MAX_HEARD = 65_536
"""Maximum number of ports with recorded probes, and of ports with unheard links."""
DEFAULT_COST = 10


class Link(NamedTuple):
    """An undirected link; `a` is the lower end."""

    a: Location
    b: Location


class _Heard(NamedTuple):
    origin: Location
    at: float


class _Unheard(NamedTuple):
    origin: Location
    since: float | None
    """Time since which probes could arrive again; None while they cannot arrive."""


def link(one: Location, other: Location) -> Link:
    """Return the link between two ports, ends in order."""
    return Link(one, other) if one < other else Link(other, one)


class Topology:
    """Received probes: receiver, origin and time."""

    def __init__(self) -> None:
        self._heard: dict[Location, _Heard] = {}
        self._unheard: dict[Location, _Unheard] = {}
        """Origins of probes received at a port before it went down, or before one of the two switches became unreachable."""
        self._links: frozenset[Link] = frozenset()

    def observe(self, origin: Location, receiver: Location, now: float) -> bool:
        """Record a probe sent from `origin` that arrived at `receiver`; return True if links or inter-switch ports changed."""
        if origin == receiver:
            return False
        before = self._heard.get(receiver)
        if before is None and len(self._heard) >= MAX_HEARD:
            return False
        self._heard[receiver] = _Heard(origin, now)
        self._unheard.pop(receiver, None)
        if before is not None and before.origin == origin:
            return False
        return self._settle()

    def port_down(self, location: Location, gone: bool) -> bool:
        """Handle a port that is down: its link ends immediately. When the port is up again, it is assumed to lead to the same port, unless
        it was removed (`gone`)."""
        if gone:
            return self._forget(lambda receiver, origin: location in (receiver, origin))
        return self._lose([r for r, h in self._heard.items() if location in (r, h.origin)])

    def datapath_down(self, dpid: DatapathId) -> bool:
        """Handle a lost connection to a datapath, which can then neither send nor receive probes."""
        return self._lose([r for r, h in self._heard.items() if dpid in (r.dpid, h.origin.dpid)])

    def keep(self, dpids: Collection[DatapathId]) -> bool:
        """Forget all probes except those that one of these datapaths has sent to another."""
        return self._forget(lambda receiver, origin: receiver.dpid not in dpids or origin.dpid not in dpids)

    def expire(self, now: float, max_age: float, present: Collection[DatapathId], is_down: Callable[[Location], bool]) -> bool:
        """Forget each link whose probes have been missing for more than `max_age` seconds during which they could have arrived.

        Probes cannot arrive while one of the link's datapaths is not `present`, or while both ends are down. If only one end is down, the
        time still counts: both ends of one cable come up together, so the end that is up no longer leads to the other.
        """
        gone = set()
        for receiver, (origin, before) in self._unheard.items():
            could = receiver.dpid in present and origin.dpid in present and not (is_down(receiver) and is_down(origin))
            since = (now if before is None else before) if could else None
            self._unheard[receiver] = _Unheard(origin, since)
            if since is not None and now - since > max_age:
                gone.add(receiver)
        old = [(r, h.origin) for r, h in self._heard.items() if now - h.at > max_age]
        gone.update(r for r, origin in old if r.dpid in present and origin.dpid in present)
        lost = self._lose([r for r, _ in old if r not in gone])
        return self._forget(lambda receiver, _: receiver in gone) or lost

    def is_inter_switch(self, location: Location) -> bool:
        """Return whether probes of another switch have arrived on this port."""
        return location in self._heard or location in self._unheard

    def inter_switch_ports(self, dpid: DatapathId) -> list[Location]:
        """Return all inter-switch ports of a datapath, sorted."""
        return sorted(r for r in (*self._heard, *self._unheard) if r.dpid == dpid)

    def links(self) -> list[Link]:
        """Return all links, sorted."""
        return sorted(self._links)

    def unheard(self) -> list[Link]:
        """Return all links with a direction in which no probes arrive, sorted."""
        origins = {r: h.origin for r, h in self._heard.items()} | {r: u.origin for r, u in self._unheard.items()}
        return sorted({link(r, u.origin) for r, u in self._unheard.items() if origins.get(u.origin) == r})

    def heard_at(self, found: Link) -> float:
        """Return the older of the two times at which the last probe in each direction of a link arrived."""
        ends = [self._heard[end].at for end in found if end in self._heard]
        return min(ends) if ends else 0.0

    def _forget(self, is_gone: Callable[[Location, Location], bool]) -> bool:
        """Forget links for which `is_gone` is true, by receiver and origin."""
        heard = [r for r, h in self._heard.items() if is_gone(r, h.origin)]
        unheard = [r for r, u in self._unheard.items() if is_gone(r, u.origin)]
        for receiver in heard:
            del self._heard[receiver]
        for receiver in unheard:
            del self._unheard[receiver]
        return self._settle() if heard or unheard else False

    def _lose(self, receivers: list[Location]) -> bool:
        for receiver in receivers:
            origin = self._heard.pop(receiver).origin
            if len(self._unheard) < MAX_HEARD:
                self._unheard[receiver] = _Unheard(origin, None)
        return self._settle() if receivers else False

    def _settle(self) -> bool:
        found = set()
        for receiver, heard in self._heard.items():
            back = self._heard.get(heard.origin)
            if back is not None and back.origin == receiver:
                found.add(link(receiver, heard.origin))
        self._links = frozenset(found)
        return True


def graph(dpids: Iterable[DatapathId], links: Iterable[Link], cost: Callable[[Link], int] = lambda _: DEFAULT_COST) -> nx.MultiGraph:
    """Return the graph of datapaths, with the Link as an edge's key and its cost as the weight. The order of the input does not matter."""
    built: nx.MultiGraph = nx.MultiGraph()
    built.add_nodes_from(sorted(set(dpids)))
    for found in sorted(set(links)):
        if found.a.dpid in built and found.b.dpid in built and found.a.dpid != found.b.dpid:
            built.add_edge(found.a.dpid, found.b.dpid, key=found, weight=cost(found))
    return built
