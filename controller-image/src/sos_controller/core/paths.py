"""Paths over the graph of datapaths, and the tree that broadcast follows. Deterministic: ties go to the lower datapath id, then port."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import networkx as nx

from sos_controller.core.model import DatapathId, Location
from sos_controller.core.topology import Link


class Path(NamedTuple):
    """A path: for every link crossed, the port it is left by and the port it is entered by."""

    source: DatapathId
    target: DatapathId
    steps: tuple[tuple[Location, Location], ...]
    cost: int

    @property
    def dpids(self) -> tuple[DatapathId, ...]:
        """The datapaths in order, both ends included."""
        return (self.source, *(into.dpid for _, into in self.steps))

    @property
    def links(self) -> frozenset[Link]:
        """The links crossed."""
        return frozenset(Link(min(step), max(step)) for step in self.steps)


def distances(g: nx.MultiGraph, source: DatapathId) -> dict[DatapathId, int]:
    """Cost from `source` to every datapath it reaches."""
    if source not in g:
        return {}
    found: dict[DatapathId, int] = nx.single_source_dijkstra_path_length(g, source)
    return found


def shortest(g: nx.MultiGraph, source: DatapathId, target: DatapathId, left: dict[DatapathId, int] | None = None) -> Path | None:
    """The cheapest path or None; one from a datapath to itself has no steps. `left` = distances(g, target), if at hand."""
    if source not in g or target not in g:
        return None
    left = distances(g, target) if left is None else left
    if source not in left:
        return None
    steps, here = [], source
    while here != target:
        steps.append(_next_step(g, here, left))
        here = steps[-1][1].dpid
    return Path(source, target, tuple(steps), left[source])


def next_hop(g: nx.MultiGraph, here: DatapathId, left: dict[DatapathId, int]) -> Location | None:
    """Port to leave `here` by towards the datapath that `left` = distances(g, target) counts to; None at the target or without a path."""
    if left.get(here, 0) == 0:
        return None
    return _next_step(g, here, left)[0]


def disjoint(
    g: nx.MultiGraph, source: DatapathId, target: DatapathId, count: int, left: dict[DatapathId, int] | None = None
) -> tuple[Path, ...]:
    """Up to `count` paths that share no link, the cheapest first; path i carries label i. `left` as for `shortest`."""
    if count == 1:
        only = shortest(g, source, target, left)
        return (only,) if only is not None and only.steps else ()
    found: list[Path] = []
    rest = g.copy()
    while len(found) < count:
        path = shortest(rest, source, target)
        if path is None or not path.steps:
            break
        found.append(path)
        rest.remove_edges_from((used.a.dpid, used.b.dpid, used) for used in path.links)
    return tuple(found)


def spanning_links(links: Iterable[Link], rank: Callable[[Link], tuple[int, ...]], joined: Iterable[Link] = ()) -> frozenset[Link]:
    """Links of a loop-free tree (a forest where the graph is not connected), lowest rank first; `joined` links connect already."""
    above: dict[DatapathId, DatapathId] = {}

    def root(dpid: DatapathId) -> DatapathId:
        while above.setdefault(dpid, dpid) != dpid:
            above[dpid] = above[above[dpid]]
            dpid = above[dpid]
        return dpid

    for found in joined:
        above[root(found.a.dpid)] = root(found.b.dpid)
    chosen = set()
    for found in sorted(links, key=lambda f: (*rank(f), f)):
        one, other = root(found.a.dpid), root(found.b.dpid)
        if one != other:
            above[one] = other
            chosen.add(found)
    return frozenset(chosen)


def _next_step(g: nx.MultiGraph, here: DatapathId, left: dict[DatapathId, int]) -> tuple[Location, Location]:
    """The step from `here` on a cheapest path whose far end is lowest. There is one: `here` can reach the target."""
    steps = []
    for _, there, found, weight in g.edges(here, keys=True, data="weight"):
        if there in left and left[there] + weight == left[here]:
            out, into = (found.a, found.b) if found.a.dpid == here else (found.b, found.a)
            steps.append((into, out))
    into, out = min(steps)
    return out, into
