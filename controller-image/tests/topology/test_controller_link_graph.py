"""Graph and costs after any history of changes equal those computed from scratch."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_controller.core.topology import links as topology
from sos_controller.core.topology import paths
from sos_controller.core.topology.link_graph import Distances, LinkGraph
from sos_controller.core.topology.links import Link, Topology
from sos_controller.core.topology.path_cache import PathCache
from sos_controller.core.types import DatapathId, Location, PortNo

DPIDS = [DatapathId(number) for number in range(1, 6)]
ENDS = [Location(dpid, PortNo(port)) for dpid in DPIDS for port in (1, 2, 3)]
changes = st.lists(
    st.tuples(
        st.sampled_from(["link", "link", "link", "down", "gone", "lost", "live", "cost", "update"]),
        st.sampled_from(ENDS),
        st.sampled_from(ENDS),
        st.integers(1, 4),
    ),
    max_size=60,
)


class History:
    """Network that changes."""

    def __init__(self) -> None:
        self.seen, self.live, self.names = Topology(), set(DPIDS), dict[Location, int]()

    def cost(self, found: Link) -> int:
        return self.names.get(found.a, 1) + self.names.get(found.b, 1)

    def change(self, what: str, one: Location, other: Location, number: int) -> None:
        if what == "link":
            self.seen.observe(one, other, 0.0)
            self.seen.observe(other, one, 0.0)
        elif what in ("down", "gone"):
            self.seen.port_down(one, gone=what == "gone")
        elif what == "lost":
            self.seen.datapath_down(one.dpid)
        elif what == "live":
            self.live ^= {one.dpid}
        elif what == "cost":
            self.names[one] = number
            self.seen.touch(one)


def edges(graph: nx.MultiGraph) -> list[tuple[Link, int]]:
    return sorted((found, cost) for *_, found, cost in graph.edges(keys=True, data="weight"))


@settings(deadline=None)
@given(changes)
def test_graph_and_costs_equal_those_from_scratch(history: list) -> None:
    world, graph = History(), LinkGraph()
    left = Distances(graph.hops)
    for what, one, other, number in history:
        world.change(what, one, other, number)
        if what == "update":
            left.update(graph.update(world.live, world.seen, world.cost))
            scratch = topology.graph(world.live, world.seen.links(), world.cost)
            assert sorted(graph.graph) == sorted(scratch)
            assert edges(graph.graph) == edges(scratch)
            for dpid in DPIDS:
                assert left.to(dpid) == paths.distances(scratch, dpid)


@settings(deadline=None)
@given(changes, st.integers(1, 4))
def test_limited_updates_leave_new_links_only_and_end_with_the_same_graph(history: list, limit: int) -> None:
    world, graph = History(), LinkGraph()
    left = Distances(graph.hops)
    for what, one, other, number in history:
        world.change(what, one, other, number)
        if what != "update":
            continue
        before = {found for found, _ in edges(graph.graph)}
        left.update(graph.update(world.live, world.seen, world.cost, limit))
        known = [(found, cost) for found, cost in edges(topology.graph(world.live, world.seen.links(), world.cost))]
        assert set(edges(graph.graph)) <= set(known), "no link that is gone, and no earlier cost"
        assert {found for found, _ in edges(graph.graph)} >= before & {found for found, _ in known}
        assert graph.is_behind or edges(graph.graph) == known
    for _ in range(100):
        left.update(graph.update(world.live, world.seen, world.cost, limit))
        if not graph.is_behind:
            break
    scratch = topology.graph(world.live, world.seen.links(), world.cost)
    assert not graph.is_behind and sorted(graph.graph) == sorted(scratch) and edges(graph.graph) == edges(scratch)
    for dpid in DPIDS:
        assert left.to(dpid) == paths.distances(scratch, dpid)


@settings(deadline=None)
@given(changes, st.integers(1, 3))
def test_cached_paths_equal_those_from_scratch(history: list, count: int) -> None:
    world, cache = History(), PathCache()
    for what, one, other, number in history:
        world.change(what, one, other, number)
        if what == "update":
            cache.update(world.live, world.seen, world.cost)
            scratch = topology.graph(world.live, world.seen.links(), world.cost)
            for source in DPIDS:
                for target in DPIDS:
                    assert cache.disjoint(source, target, count) == paths.disjoint(scratch, source, target, count)


def test_unrelated_link_keeps_cached_paths_and_touches_no_target() -> None:
    world, cache = History(), PathCache()
    for number, (one, other) in enumerate(((1, 2), (2, 3), (4, 5))):
        world.change("link", Location(one, number), Location(other, number), 0)
    cache.update(world.live, world.seen, world.cost)
    kept = cache.disjoint(DatapathId(1), DatapathId(3), 1)
    cache.disjoint(DatapathId(4), DatapathId(5), 1)
    world.change("down", Location(DatapathId(4), PortNo(2)), ENDS[0], 0)
    change = cache.update(world.live, world.seen, world.cost)
    assert change.touched == {DatapathId(5): {DatapathId(4)}} and cache.disjoint(DatapathId(1), DatapathId(3), 1) is kept
    assert cache.disjoint(DatapathId(4), DatapathId(5), 1) == ()


def test_returning_link_gives_a_distant_switch_its_lowest_port_again() -> None:
    """Two paths of equal cost from 1 to 4. The link that returns last changes the costs of switch 2, and the next hops of switch 1."""
    world, cache = History(), PathCache()
    for one, other in ((11, 21), (12, 31), (22, 41), (32, 42)):
        world.change("link", port(one), port(other), 0)
    cache.update(world.live, world.seen, world.cost)
    before = cache.disjoint(DatapathId(1), DatapathId(4), 1)
    for what in ("down", "link"):
        for one, other in ((32, 42), (22, 41)):
            world.change(what, port(one), port(other), 0)
            cache.update(world.live, world.seen, world.cost)
            cache.disjoint(DatapathId(1), DatapathId(4), 1)
    assert cache.disjoint(DatapathId(1), DatapathId(4), 1) == before


def port(number: int) -> Location:
    """Port 2 of switch 1 is 12."""
    return Location(DatapathId(number // 10), PortNo(number % 10))
