"""Paths between datapaths, kept until a change of the graph may affect them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import networkx as nx

from sos_controller.core.topology import paths
from sos_controller.core.topology.link_graph import MAX_NEW_LINKS, Distances, LinkGraph, Touched
from sos_controller.core.topology.links import Link, Topology
from sos_controller.core.topology.paths import Path
from sos_controller.core.types import DatapathId

_NONE: frozenset[DatapathId] = frozenset()


class PathChange(NamedTuple):
    """Effect of an update of the graph."""

    touched: Touched
    """Datapaths from which costs or cheapest paths may have changed, by target."""
    graph: bool
    """The graph has changed, and with it perhaps any set of disjoint paths."""
    live: frozenset[DatapathId] = frozenset()
    """Datapaths that have joined or left the graph."""

    def affects(self, path: Path) -> bool:
        """Return whether a path may no longer be the cheapest."""
        found = self.touched.get(path.target, _NONE)
        return found is None or not found.isdisjoint(path.dpids)

    def concerns(self, target: DatapathId, dpids: Iterable[DatapathId]) -> bool:
        """Return whether the cost from any of these datapaths to `target` may have changed."""
        found = self.touched.get(target, _NONE)
        return found is None or not found.isdisjoint(dpids)


class PathCache:
    """The graph, and the costs and paths that have been asked for."""

    def __init__(self) -> None:
        self._links = LinkGraph()
        self._left = Distances(self._links.hops)
        self._shortest: dict[DatapathId, dict[DatapathId, tuple[Path, ...]]] = {}
        """Single paths, by target and source."""
        self._disjoint: dict[tuple[DatapathId, DatapathId, int], tuple[Path, ...]] = {}

    @property
    def graph(self) -> nx.MultiGraph:
        """Return the graph; the object stays the same."""
        return self._links.graph

    @property
    def revision(self) -> int:
        """Return a number that changes with the graph."""
        return self._links.revision

    @property
    def is_behind(self) -> bool:
        """Return whether the last update has left something to the next one."""
        return self._links.is_behind

    def clear(self) -> None:
        """Forget the graph and all paths."""
        self._links.clear()
        self._left.clear()
        self._shortest.clear()
        self._disjoint.clear()

    def update(self, live: Iterable[DatapathId], topology: Topology, cost: Callable[[Link], int], limit: int = MAX_NEW_LINKS) -> PathChange:
        """Take over the changes of the network, at most `limit` new links; forget the paths that they may affect."""
        change = self._links.update(live, topology, cost, limit)
        if change.is_empty:
            return PathChange({}, False)
        found = PathChange(self._left.update(change), True, change.live)
        for target in found.touched:
            kept = self._shortest.get(target, {})
            for source in [s for s, known in kept.items() if found.affects(known[0] if known else Path(s, target, (), 0))]:
                del kept[source]
        self._disjoint.clear()
        return found

    def distances(self, target: DatapathId) -> dict[DatapathId, int]:
        """Return the cost from everywhere to `target`."""
        return self._left.to(target)

    def disjoint(self, source: DatapathId, target: DatapathId, count: int) -> tuple[Path, ...]:
        """Return up to `count` paths that share no link; computed once for all pairs of agents at the same datapaths."""
        if count == 1:
            known = self._shortest.setdefault(target, {})
            found = known.get(source)
            if found is None:
                found = known[source] = self._compute(source, target, count)
            return found
        found = self._disjoint.get((source, target, count))
        if found is None:
            found = self._disjoint[source, target, count] = self._compute(source, target, count)
        return found

    def _compute(self, source: DatapathId, target: DatapathId, count: int) -> tuple[Path, ...]:
        return paths.disjoint(self.graph, source, target, count, self.distances(target))
