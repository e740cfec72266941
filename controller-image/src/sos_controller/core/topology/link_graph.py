"""Graph of the connected datapaths, kept incrementally: an update costs what has changed, not what exists.

`LinkGraph.update` takes over links and datapaths that have come or gone. `Distances` repairs its costs with the returned changes instead of
computing them again (Ramalingam and Reps, "An Incremental Algorithm for a Generalization of the Shortest-Path Problem", 1996): first the
datapaths that have lost all cheapest paths, in the order of their former costs, then all that have become cheaper.

An update takes over at most MAX_NEW_LINKS new links, and leaves the others, and the datapaths that have joined with them, to the next
updates, so that no update stops the controller for long when the switches of a large mesh connect. Links that are gone are never left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final, NamedTuple

import networkx as nx

from sos_controller.core.topology.links import Link, Topology
from sos_controller.core.types import DatapathId

MAX_NEW_LINKS: Final = 750
"""Maximum number of new links in an update: with 40 targets, an update takes some 50 ms."""

Hops = dict[DatapathId, dict[DatapathId, int]]
"""Cost of the cheapest link between neighbours, in both directions."""
Touched = dict[DatapathId, "set[DatapathId] | None"]
"""Datapaths, by target; None = all."""


class Crossing(NamedTuple):
    """Two neighbours, and a cost between them before and after an update; 0 = none."""

    one: DatapathId
    other: DatapathId
    was: int
    now: int


class Arc(NamedTuple):
    """Two neighbours, and a cost between them."""

    one: DatapathId
    other: DatapathId
    cost: int


class GraphChange(NamedTuple):
    """Difference that an update of the graph has made."""

    links: tuple[Crossing, ...]
    """Costs of single links."""
    hops: tuple[Crossing, ...]
    """Costs of the cheapest links between neighbours."""
    live: frozenset[DatapathId]
    """Datapaths that have joined or left."""

    @property
    def is_empty(self) -> bool:
        """Return whether the graph is the same."""
        return not self.links and not self.live


class LinkGraph:
    """Datapaths and the links between them, each with its cost."""

    def __init__(self) -> None:
        self.graph: nx.MultiGraph = nx.MultiGraph()
        """The Link is an edge's key, its cost the weight. The object stays the same."""
        self.hops: Hops = {}
        self._parallel: dict[tuple[DatapathId, DatapathId], dict[Link, int]] = {}
        """Links between two datapaths, the lower one first, with their costs."""
        self.revision = 0
        """Number of updates that have changed the graph."""
        self.is_behind = False
        """The last update has left something to the next one."""

    def clear(self) -> None:
        """Remove all datapaths."""
        self.graph.clear()
        self.hops.clear()
        self._parallel.clear()
        self.revision += 1

    def update(
        self, live: Iterable[DatapathId], topology: Topology, cost: Callable[[Link], int], limit: int = MAX_NEW_LINKS
    ) -> GraphChange:
        """Take over the links of these datapaths that have changed since the last update, at most `limit` new ones."""
        joined, left = set(live), set(self.hops)
        joined, left = joined - left, left - joined
        changed = topology.take_changed()
        room = limit - self._postpone(changed, topology, limit)
        for dpid in left:
            changed.update(edge[2] for edge in self.graph.edges(dpid, keys=True))
        waiting = joined
        joined = set()
        for dpid in sorted(waiting):
            if room <= 0:
                break
            joined.add(dpid)
            self.graph.add_node(dpid)
            self.hops[dpid] = {}
            new = [found for found in topology.links_of(dpid) if self._joins(found)]
            changed.update(new)
            room -= len(new)
        self.is_behind = len(joined) < len(waiting) or topology.has_changed
        links, before = list[Crossing](), dict[tuple[DatapathId, DatapathId], int]()
        for found in changed:
            ends = (found.a.dpid, found.b.dpid)
            if ends[0] == ends[1] or ends[0] not in self.hops or ends[1] not in self.hops:
                continue
            before.setdefault(ends, self.hops[ends[0]].get(ends[1], 0))
            there = found in topology and left.isdisjoint(ends)
            made = self._set(found, cost(found) if there else 0)
            if made.was != made.now:
                links.append(made)
        hops = [Crossing(*ends, was, self.hops[ends[0]].get(ends[1], 0)) for ends, was in before.items()]
        for dpid in left:
            self.graph.remove_node(dpid)
            del self.hops[dpid]
        self.revision += bool(changed or left or joined)
        return GraphChange(tuple(links), tuple(hop for hop in hops if hop.was != hop.now), frozenset(joined | left))

    def _joins(self, found: Link) -> bool:
        """Return whether a link is between datapaths of the graph."""
        return found.a.dpid in self.hops and found.b.dpid in self.hops

    def _has(self, found: Link) -> bool:
        return found in self._parallel.get((found.a.dpid, found.b.dpid), ())

    def _postpone(self, changed: set[Link], topology: Topology, limit: int) -> int:
        """Leave all but `limit` of the new links among the changed ones to the next update; return the number of the others."""
        if len(changed) <= limit:
            return 0
        new = [found for found in changed if found in topology and self._joins(found) and not self._has(found)]
        for found in sorted(new)[limit:]:
            changed.discard(found)
            topology.postpone(found)
        return min(len(new), limit)

    def _set(self, found: Link, cost: int) -> Crossing:
        """Set the cost of a link, 0 = remove it."""
        one, other = found.a.dpid, found.b.dpid
        was = self._parallel.get((one, other), {}).get(found, 0)
        if was == cost:
            return Crossing(one, other, was, cost)
        parallel = self._parallel.setdefault((one, other), {})
        if cost:
            parallel[found] = cost
            self.graph.add_edge(one, other, key=found, weight=cost)
        else:
            del parallel[found]
            self.graph.remove_edge(one, other, key=found)
        if parallel:
            self.hops[one][other] = self.hops[other][one] = min(parallel.values())
        else:
            del self._parallel[one, other], self.hops[one][other], self.hops[other][one]
        return Crossing(one, other, was, cost)


class Distances:
    """Costs from everywhere to each target that has been asked for."""

    def __init__(self, hops: Hops) -> None:
        self._hops = hops
        self._left: dict[DatapathId, dict[DatapathId, int]] = {}

    def to(self, target: DatapathId) -> dict[DatapathId, int]:
        """Return the cost from each datapath that reaches `target`; computed once."""
        found = self._left.get(target)
        if found is None and target not in self._hops:
            return {}
        if found is None:
            found = self._left[target] = {}
            _lower(found, self._hops, {target: 0})
        return found

    def clear(self) -> None:
        """Forget all costs."""
        self._left.clear()

    def update(self, change: GraphChange) -> Touched:
        """Repair all costs after an update of the graph. Return the datapaths whose cost or next hops to a target may have changed, by
        target; all of them for a target that has joined or left."""
        touched: Touched = dict.fromkeys(change.live)
        ends = [[Arc(c.one, c.other, cost) for c in change.links if (cost := cost_of(c))] for cost_of in (_was, _now)]
        hops = [[Arc(c.one, c.other, cost) for c in change.hops if (cost := cost_of(c))] for cost_of in (_was, _now)]
        for target, left in list(self._left.items()):
            if target in change.live:
                del self._left[target]
                continue
            found = _farther(left, ends[0])
            found |= _repair(left, self._hops, hops[0], hops[1])
            found |= _farther(left, ends[1])
            if found:
                touched[target] = found
        return touched


def _was(crossing: Crossing) -> int:
    return crossing.was


def _now(crossing: Crossing) -> int:
    return crossing.now


def _farther(left: dict[DatapathId, int], arcs: list[Arc]) -> set[DatapathId]:
    """Return the farther ends of links that are on cheapest paths."""
    found = set[DatapathId]()
    for one, other, cost in arcs:
        here, there = left.get(one), left.get(other)
        if here is None or there is None:
            continue
        if here - there == cost:
            found.add(one)
        elif there - here == cost:
            found.add(other)
    return found


def _repair(left: dict[DatapathId, int], hops: Hops, gone: list[Arc], come: list[Arc]) -> set[DatapathId]:
    """Repair the costs to one target; return the datapaths whose cost or next hops have changed. A changed hop is in both lists."""
    suspects = sorted((left[dpid], dpid) for dpid in _farther(left, gone))
    cut = _cut_off(left, hops, suspects)
    better = dict[DatapathId, int]()
    for dpid in cut:
        del left[dpid]
    for dpid in cut:
        costs = [left[near] + cost for near, cost in hops.get(dpid, {}).items() if near in left]
        if costs:
            better[dpid] = min(costs)
    for one, other, cost in come:
        here, there = left.get(one), left.get(other)
        if here is not None and (there is None or here + cost < there):
            _improve(better, other, here + cost)
        elif there is not None and (here is None or there + cost < here):
            _improve(better, one, there + cost)
    return _lower(left, hops, better) | cut


def _improve(better: dict[DatapathId, int], dpid: DatapathId, cost: int) -> None:
    known = better.get(dpid)
    if known is None or cost < known:
        better[dpid] = cost


def _cut_off(left: dict[DatapathId, int], hops: Hops, suspects: list[tuple[int, DatapathId]]) -> set[DatapathId]:
    """Return the datapaths whose cost has become too low: all neighbours on their cheapest paths are gone or cut off themselves."""
    cut = set[DatapathId]()
    while suspects:
        cost, dpid = heappop(suspects)
        near = hops.get(dpid, {})
        if dpid in cut or any(other in left and other not in cut and left[other] + hop <= cost for other, hop in near.items()):
            continue
        cut.add(dpid)
        for other, hop in near.items():
            if left.get(other) == cost + hop:
                heappush(suspects, (cost + hop, other))
    return cut


def _lower(left: dict[DatapathId, int], hops: Hops, better: dict[DatapathId, int]) -> set[DatapathId]:
    """Lower costs by Dijkstra's algorithm from these datapaths and costs, which are lower than their former costs; return the datapaths
    whose cost has become lower, and their neighbours that get a further next hop of equal cost."""
    left.update(better)  # costs are lowered when they enter the queue, so that an entry of a mesh's link seldom enters it
    queue = sorted((cost, dpid) for dpid, cost in better.items())
    settled, touched = set[DatapathId](), set[DatapathId]()
    while queue:
        cost, dpid = heappop(queue)
        if left[dpid] < cost or dpid in settled:
            continue
        settled.add(dpid)
        for other, hop in hops[dpid].items():
            there = left.get(other)
            if there is None or cost + hop < there:
                left[other] = cost + hop
                heappush(queue, (cost + hop, other))
            elif cost + hop == there:
                touched.add(other)
    return touched | settled
