"""Links between datapaths, learned from probes and forgotten when probes stop.

A link counts when both directions have been heard within the expiry: one recorded or relayed probe is not enough. A port on
which any probe of ours from another port has been heard is *inter-switch* at once, because there it is safer to assume a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import networkx as nx

from sos_controller.core.model import DatapathId, Location

MAX_HEARD = 65_536
"""Ports on which probes are remembered."""
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
        self._links: frozenset[Link] = frozenset()

    def observe(self, origin: Location, receiver: Location, now: float) -> bool:
        """Note a probe sent from `origin` that arrived at `receiver`; True when links or inter-switch ports changed."""
        if origin == receiver:
            return False
        before = self._heard.get(receiver)
        if before is None and len(self._heard) >= MAX_HEARD:
            return False
        self._heard[receiver] = _Heard(origin, now)
        if before is not None and before.origin == origin:
            return False
        return self._settle()

    def port_down(self, location: Location) -> bool:
        """A port is gone: so is its link, at once."""
        gone = [r for r, h in self._heard.items() if location in (r, h.origin)]
        return self._forget(gone)

    def datapath_down(self, dpid: DatapathId) -> bool:
        """A datapath is gone, with everything heard there or from there."""
        return self._forget([r for r, h in self._heard.items() if dpid in (r.dpid, h.origin.dpid)])

    def expire(self, now: float, max_age: float) -> bool:
        """Forget what has not been heard for longer than `max_age` seconds."""
        return self._forget([r for r, h in self._heard.items() if now - h.at > max_age])

    def is_inter_switch(self, location: Location) -> bool:
        """Whether another switch has been heard on this port."""
        return location in self._heard

    def inter_switch_ports(self, dpid: DatapathId) -> list[Location]:
        """All such ports of a datapath, sorted."""
        return sorted(r for r in self._heard if r.dpid == dpid)

    def links(self) -> list[Link]:
        """All links, sorted."""
        return sorted(self._links)

    def heard_at(self, found: Link) -> float:
        """When the older of a link's two directions was last heard."""
        ends = [self._heard[end].at for end in found if end in self._heard]
        return min(ends) if ends else 0.0

    def _forget(self, receivers: list[Location]) -> bool:
        for receiver in receivers:
            del self._heard[receiver]
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
