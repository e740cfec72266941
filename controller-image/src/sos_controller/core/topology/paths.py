"""Paths over the graph of datapaths, and the spanning tree for broadcasts. Deterministic: ties go to the lower datapath id, then port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import networkx as nx

from sos_controller.core.topology.links import Link
from sos_controller.core.types import DatapathId, Location


class Path(NamedTuple):
    """A path: for every link crossed, its egress and ingress port."""

    source: DatapathId
    target: DatapathId
    steps: tuple[tuple[Location, Location], ...]
    cost: int

    @property
    def dpids(self) -> tuple[DatapathId, ...]:
        """Return the datapaths in order, both ends included."""
        return (self.source, *(into.dpid for _, into in self.steps))

    @property
    def links(self) -> frozenset[Link]:
        """Return the links crossed."""
        return frozenset(Link(min(step), max(step)) for step in self.steps)


def distances(g: nx.MultiGraph, source: DatapathId) -> dict[DatapathId, int]:
    """Return the cost from `source` to every datapath it reaches."""
    if source not in g:
        return {}
    found: dict[DatapathId, int] = nx.single_source_dijkstra_path_length(g, source)
    return found


def shortest(g: nx.MultiGraph, source: DatapathId, target: DatapathId, left: dict[DatapathId, int] | None = None) -> Path | None:
    """Return the cheapest path or None; a path from a datapath to itself has no steps. `left` = distances(g, target), if known."""
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
    """Return the egress port of `here` towards the target of `left` = distances(g, target); None at the target or without a path."""
    if left.get(here, 0) == 0:
        return None
    return _next_step(g, here, left)[0]


def disjoint(
    g: nx.MultiGraph, source: DatapathId, target: DatapathId, count: int, left: dict[DatapathId, int] | None = None
) -> tuple[Path, ...]:
    """Return up to `count` paths that share no link: as many as exist, with the lowest total cost, the cheapest first. `left` as for
    `shortest`.

    A repeated shortest-path search finds fewer paths if the shortest path crosses the others (Suurballe 1974), so this is a minimum-cost
    flow: one unit per path, and an extra arc, more expensive than all links together, for missing paths.
    """
    only = shortest(g, source, target, left)
    if only is None or not only.steps:
        return ()
    most = 1 if count == 1 else min(count, g.degree(source), g.degree(target))
    return (only,) if most == 1 else tuple(_split(_flow(g, source, target, most), source, target))


def _flow(g: nx.MultiGraph, source: DatapathId, target: DatapathId, units: int) -> nx.MultiDiGraph:
    """Return the links that `units` paths of least cost use, each in its direction of use."""
    arcs: nx.MultiDiGraph = nx.MultiDiGraph()
    arcs.add_nodes_from(sorted(g), demand=0)
    arcs.nodes[source]["demand"], arcs.nodes[target]["demand"] = -units, units
    edges = sorted(g.edges(keys=True, data="weight"), key=lambda edge: edge[2])
    # Cost decides first; at equal cost, links with lower ends are preferred, so that the result is unique.
    scale = len(edges) ** 2 + 1
    dearest = scale * (1 + sum(weight for *_, weight in edges))
    for rank, (one, other, found, weight) in enumerate(edges):
        arcs.add_edge(one, other, key=found, weight=weight * scale + rank, capacity=1)
        arcs.add_edge(other, one, key=found, weight=weight * scale + rank, capacity=1)
    arcs.add_edge(source, target, key=None, weight=dearest, capacity=units)
    _, flows = nx.network_simplex(arcs)
    used: nx.MultiDiGraph = nx.MultiDiGraph()
    for one, other, found, weight in edges:
        for tail, head in ((one, other), (other, one)):
            if flows[tail][head][found]:
                used.add_edge(tail, head, key=found, weight=weight)
    return used


def _split(used: nx.MultiDiGraph, source: DatapathId, target: DatapathId) -> Iterator[Path]:
    """Return the paths of a flow, the cheapest first. A minimum-cost flow has no cycles, so each path is simple."""
    while True:
        path = shortest(used, source, target, distances(used.reverse(copy=False), target))
        if path is None:
            return
        yield path
        for out, into in path.steps:
            used.remove_edge(out.dpid, into.dpid, Link(min(out, into), max(out, into)))


def spanning_links(links: Iterable[Link], rank: Callable[[Link], tuple[int, ...]], joined: Iterable[Link] = ()) -> frozenset[Link]:
    """Return the links of a loop-free tree (a forest if the graph is not connected), lowest rank first; `joined` links already connect
    their ends."""
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
    """Return the step from `here` on a cheapest path, to the lowest port among equals. Such a step exists, since `here` can reach the
    target."""
    steps, cost = [], left[here]
    for there in g.neighbors(here):
        rest = left.get(there, cost)
        if rest < cost:  # few neighbours of a mesh are nearer
            for found, edge in g.get_edge_data(here, there).items():
                if rest + edge["weight"] == cost:
                    out, into = (found.a, found.b) if found.a.dpid == here else (found.b, found.a)
                    steps.append((into, out))
    into, out = min(steps)
    return out, into
