"""Links between datapaths, learned from probes and forgotten when probes stop.

A link counts when both directions have been heard within the expiry: one recorded or relayed probe is not enough. A port on
which any probe of ours from another port has been heard is *inter-switch* at once, because there it is safer to assume a switch.
It stays one while the switch at either end cannot be heard: that one may well forward on, only its connection to us is broken.
Such a link is *unheard*: no path goes by it, but it may close a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import networkx as nx

from sos_controller.core.model import DatapathId, Location

MAX_HEARD = 65_536
"""Ports on which probes are remembered, and as many behind which somebody cannot be heard."""
DEFAULT_COST = 10


class Link(NamedTuple):
    """An undirected link; `a` is the lower end."""

    a: Location
    b: Location


class _Heard(NamedTuple):
    origin: Location
    at: float


def link(one: Location, other: Location) -> Link:
    """The link between two ports, ends in order."""
    return Link(one, other) if one < other else Link(other, one)


class Topology:
    """Who heard whom, and when."""

    def __init__(self) -> None:
        self._heard: dict[Location, _Heard] = {}
        self._unheard: dict[Location, Location] = {}
        """Who was heard at a port before one of the two switches could not be heard any more."""
        self._links: frozenset[Link] = frozenset()

    def observe(self, origin: Location, receiver: Location, now: float) -> bool:
        """Note a probe sent from `origin` that arrived at `receiver`; True when links or inter-switch ports changed."""
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

    def port_down(self, location: Location, present: Collection[DatapathId]) -> bool:
        """A port is gone: so is its link, at once. Behind a port that led to a switch which is not `present` that one may be again."""
        return self._forget(lambda receiver, origin: location in (receiver, origin) and receiver.dpid in present and origin.dpid in present)

    def datapath_down(self, dpid: DatapathId) -> bool:
        """A datapath's connection is gone: nothing can be heard there or from there."""
        return self._lose([r for r, h in self._heard.items() if dpid in (r.dpid, h.origin.dpid)])

    def keep(self, dpids: Collection[DatapathId]) -> bool:
        """Forget all but these datapaths, with everything heard there or from there."""
        return self._forget(lambda receiver, origin: receiver.dpid not in dpids or origin.dpid not in dpids)

    def expire(self, now: float, max_age: float, present: Collection[DatapathId]) -> bool:
        """Forget what has not been heard for longer than `max_age` seconds although both its ends are `present`, that is can be heard.

        Those that can be heard again have as long to send probes.
        """
        back = [r for r, origin in self._unheard.items() if r.dpid in present and origin.dpid in present]
        for receiver in back:
            self._heard[receiver] = _Heard(self._unheard.pop(receiver), now)
        old = [r for r, h in self._heard.items() if now - h.at > max_age]
        gone = [r for r in old if r.dpid in present and self._heard[r].origin.dpid in present]
        for receiver in gone:
            del self._heard[receiver]
        lost = self._lose([r for r in old if r in self._heard])
        return lost or (self._settle() if gone or back else False)

    def is_inter_switch(self, location: Location) -> bool:
        """Whether another switch has been heard on this port."""
        return location in self._heard or location in self._unheard

    def inter_switch_ports(self, dpid: DatapathId) -> list[Location]:
        """All such ports of a datapath, sorted."""
        return sorted(r for r in (*self._heard, *self._unheard) if r.dpid == dpid)

    def links(self) -> list[Link]:
        """All links, sorted."""
        return sorted(self._links)

    def unheard(self) -> list[Link]:
        """All links of which some direction cannot be heard, sorted."""
        origins = {receiver: heard.origin for receiver, heard in self._heard.items()} | self._unheard
        return sorted({link(r, origin) for r, origin in self._unheard.items() if origins.get(origin) == r})

    def unheard_ends(self, dpid: DatapathId) -> list[Location]:
        """Both ends of what cannot be heard at a datapath or from it, sorted."""
        return sorted({end for pair in self._unheard.items() if dpid in (pair[0].dpid, pair[1].dpid) for end in pair})

    def heard_at(self, found: Link) -> float:
        """When the older of a link's two directions was last heard."""
        ends = [self._heard[end].at for end in found if end in self._heard]
        return min(ends) if ends else 0.0

    def _forget(self, is_gone: Callable[[Location, Location], bool]) -> bool:
        """Forget whom `is_gone` says so of, by receiver and origin."""
        heard = [r for r, h in self._heard.items() if is_gone(r, h.origin)]
        unheard = [r for r, origin in self._unheard.items() if is_gone(r, origin)]
        for receiver in heard:
            del self._heard[receiver]
        for receiver in unheard:
            del self._unheard[receiver]
        return self._settle() if heard or unheard else False

    def _lose(self, receivers: list[Location]) -> bool:
        for receiver in receivers:
            origin = self._heard.pop(receiver).origin
            if len(self._unheard) < MAX_HEARD:
                self._unheard[receiver] = origin
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
    """The graph of datapaths; each edge is keyed by its Link and weighs its cost. The same whatever the order of the input."""
    built: nx.MultiGraph = nx.MultiGraph()
    built.add_nodes_from(sorted(set(dpids)))
    for found in sorted(set(links)):
        if found.a.dpid in built and found.b.dpid in built and found.a.dpid != found.b.dpid:
            built.add_edge(found.a.dpid, found.b.dpid, key=found, weight=cost(found))
    return built
