"""Test links, paths and trees on every connected graph of two to six nodes."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_compile.model import network
from sos_controller.core.openflow.flow_entries import ForgetPort, Output
from sos_controller.core.openflow.pipeline import TUNNEL_PORTS
from sos_controller.core.pairs import agent_pairs
from sos_controller.core.tables.agents import Agent
from sos_controller.core.topology import links as topology
from sos_controller.core.topology import paths
from sos_controller.core.topology.links import Link, Topology, link
from sos_controller.core.types import Location
from sos_controller.core.wire.beacon import Beacon

ATLAS = [g for g in nx.graph_atlas_g() if 2 <= len(g) <= 6 and nx.is_connected(g)]


def links_of(g: nx.Graph) -> list[Link]:
    ports = dict.fromkeys(g, 0)
    found = []
    for a, b in sorted(g.edges):
        ports[a] += 1
        ports[b] += 1
        found.append(link(Location(a + 1, ports[a]), Location(b + 1, ports[b])))
    return found


def build(g: nx.Graph) -> nx.MultiGraph:
    return topology.graph([n + 1 for n in g], links_of(g))


def test_atlas_has_all_142_graphs() -> None:
    assert len(ATLAS) == 142


@pytest.mark.parametrize("size", range(2, 7))
def test_paths_are_shortest_loop_free_and_over_live_links(size: int) -> None:
    for g in (g for g in ATLAS if len(g) == size):
        built, live = build(g), set(links_of(g))
        for a, b in itertools.permutations(g, 2):
            path = paths.shortest(built, a + 1, b + 1)
            assert path is not None and path.dpids[0] == a + 1 and path.dpids[-1] == b + 1
            assert len(set(path.dpids)) == len(path.dpids) and path.links <= live
            assert len(path.steps) == nx.shortest_path_length(g, a, b) and path.cost == 10 * len(path.steps)
            for (out, into), dpid in zip(path.steps, path.dpids, strict=False):
                assert out.dpid == dpid and link(out, into) in live


@pytest.mark.parametrize("size", range(2, 7))
def test_disjoint_paths_share_no_link_and_reach_the_maximum_number(size: int) -> None:
    for g in (g for g in ATLAS if len(g) == size):
        built = build(g)
        for a, b in itertools.combinations(g, 2):
            found = paths.disjoint(built, a + 1, b + 1, 3)
            assert len(found) == min(3, nx.edge_connectivity(g, a, b))
            assert sum(len(p.links) for p in found) == len(frozenset().union(*(p.links for p in found)))
            assert [p.cost for p in found] == sorted(p.cost for p in found)
            assert paths.disjoint(built, a + 1, b + 1, 1) == (paths.shortest(built, a + 1, b + 1),)
            for path in found:
                assert path.dpids[0] == a + 1 and path.dpids[-1] == b + 1 and len(set(path.dpids)) == len(path.dpids)
                assert all(out.dpid == dpid for (out, _), dpid in zip(path.steps, path.dpids, strict=False))


@settings(deadline=None)
@given(st.sampled_from([g for g in ATLAS if len(g) <= 5]), st.randoms(use_true_random=False), st.integers(2, 3))
def test_disjoint_paths_have_the_least_total_cost(g: nx.Graph, random, count: int) -> None:
    """Compare with all sets of equally many simple paths that share no link."""
    costs = {found: random.randint(1, 20) for found in links_of(g)}
    built = topology.graph([n + 1 for n in g], costs, costs.__getitem__)
    found = paths.disjoint(built, 1, 2, count)
    simple = [frozenset(link for *_, link in p) for p in nx.all_simple_edge_paths(built, 1, 2)]
    choices = (c for c in itertools.combinations(simple, len(found)) if len(frozenset().union(*c)) == sum(map(len, c)))
    least = min(sum(costs[link] for path in choice for link in path) for choice in choices)
    assert sum(p.cost for p in found) == least == sum(costs[link] for p in found for link in p.links)


def test_shortest_path_does_not_prevent_two_disjoint_paths() -> None:
    """Without the links of the shortest path 1-3-4-2, the graph is not connected."""
    g = nx.Graph([(0, 2), (2, 3), (3, 1), (2, 4), (4, 1), (0, 5), (5, 3)])
    found = paths.disjoint(build(g), 1, 2, 2)
    assert [p.dpids for p in found] == [(1, 3, 5, 2), (1, 6, 4, 2)]


PATHS = [paths.Path(1, 2, (), cost) for cost in range(6)]


@given(st.lists(st.sampled_from(PATHS), min_size=1, unique=True).map(sorted), st.lists(st.sampled_from(PATHS)), st.integers(1, 8))
def test_labels_keep_their_paths_if_possible(found: list, before: list, labels: int) -> None:
    found = found[:labels]
    given = agent_pairs.assign(tuple(found), labels, tuple(before))
    assert len(given) == labels and given[0] == found[0] and set(given) == set(found), "label 0 has the cheapest path, all paths are used"
    assert agent_pairs.assign(tuple(found), labels, given) == given, "unchanged paths keep their labels"
    for label, path in enumerate(before[:labels]):
        if label and path in found[1:] and path not in before[:label]:
            assert given[label] == path


def agent(number: int, dpid: int) -> Agent:
    beacon = Beacon(
        key_id=1, site_id=number, flags=0, agent_id=bytes([number]) * 16, boot_id=1, sequence=1, time_ms=0, sessions=0, session_limit=1,
        bytes_per_second=0, cpu_permille=0, streams=8, order_port=9876, first_stream_port=10000, stream_ports=8, address=number,
        mac=bytes(5) + bytes([number]), capacity_bps=0, name="", service_types=("tcp-parallel",),
    )  # fmt: skip
    return Agent(beacon, Location(dpid, 34001), 0.0)


def test_tunnel_ports_match_the_compiler() -> None:
    told = range(network.TUNNEL_OFPORT + 1, network.TUNNEL_OFPORT + network.MAX_NODE_NUMBER + 1)
    assert told == TUNNEL_PORTS


@pytest.mark.parametrize(("into", "leave", "tunnels"), [(35001, 35007, True), (33001, 35007, False), (35001, 33002, False), (1, 2, False)])
def test_path_entries_clear_in_port_only_between_two_tunnels(into: int, leave: int, tunnels: bool) -> None:
    """Nodes otherwise drop packets between two tunnels (spec/node-config.md clause 7)."""
    path = paths.Path(1, 3, ((Location(1, 1), Location(2, into)), (Location(2, leave), Location(3, 1))), 20)
    made = agent_pairs.entries(agent_pairs.Pair(bytes([1]) * 16, bytes([2]) * 16, 7, (path,)), agent(1, 1), agent(2, 3), 0x50)
    between = sorted((entry.actions for entry in made[2]), key=str)
    outputs = [Output(port) for port in sorted((into, leave))]
    assert between == [(ForgetPort(), output) if tunnels else (output,) for output in outputs]
    assert not [entry for dpid in (1, 3) for entry in made[dpid] if ForgetPort() in entry.actions]


def test_next_hops_lead_to_the_target_on_shortest_paths() -> None:
    for g in ATLAS:
        built = build(g)
        ends = {end: other for found in links_of(g) for end, other in (found, found[::-1])}
        for target in g:
            left = paths.distances(built, target + 1)
            for start in g:
                here, hops = start + 1, 0
                while (out := paths.next_hop(built, here, left)) is not None:
                    here, hops = ends[out].dpid, hops + 1
                assert here == target + 1 and hops == nx.shortest_path_length(g, start, target)


def test_trees_span_all_switches_without_loops() -> None:
    for g in ATLAS:
        tree = paths.spanning_links(links_of(g), lambda _: ())
        spanned = nx.Graph([(f.a.dpid, f.b.dpid) for f in tree])
        assert nx.is_tree(spanned) and len(spanned) == len(g)
        fixed = links_of(g)[:1]
        rest = paths.spanning_links(links_of(g)[1:], lambda _: (), fixed)
        assert nx.is_forest(nx.Graph([(f.a.dpid, f.b.dpid) for f in [*rest, *fixed]]))
        assert len(rest) == len(g) - 2


@settings(deadline=None)
@given(st.sampled_from(ATLAS), st.randoms())
def test_paths_and_trees_do_not_depend_on_the_input_order(g: nx.Graph, random) -> None:
    found = links_of(g)
    nodes = [n + 1 for n in g]
    one = topology.graph(nodes, found)
    random.shuffle(found)
    random.shuffle(nodes)
    other = topology.graph(nodes, found)
    for a, b in itertools.combinations(sorted(nodes), 2):
        assert paths.disjoint(one, a, b, 3) == paths.disjoint(other, a, b, 3)
    assert paths.spanning_links(found, lambda _: ()) == paths.spanning_links(sorted(found), lambda _: ())


def test_path_choice_considers_costs_and_parallel_links() -> None:
    cheap, dear = Link(Location(1, 5), Location(2, 5)), Link(Location(1, 1), Location(2, 1))
    built = topology.graph([1, 2], [cheap, dear], lambda f: 1 if f == cheap else 10)
    assert paths.shortest(built, 1, 2).links == {cheap}
    assert [p.links for p in paths.disjoint(built, 1, 2, 5)] == [{cheap}, {dear}]
    assert paths.shortest(built, 1, 9) is None and paths.disjoint(built, 1, 1, 2) == ()


# -- links by probes

ENDS = [Location(d, p) for d in (1, 2, 3) for p in (1, 2)]
steps = st.lists(
    st.tuples(
        st.sampled_from(["probe", "down", "up", "gone", "lost", "unclaimed", "wait"]),
        st.sampled_from(ENDS),
        st.sampled_from(ENDS),
        st.floats(0, 3),
        st.sets(st.sampled_from([1, 2, 3])),
    ),
    max_size=40,
)


@given(steps)
def test_links_need_recent_probes_in_both_directions(history: list) -> None:
    """Compare with a reference model.

    For each port, the model stores the neighbour, the neighbour's reachability, and the start of the timeout.
    """
    seen, now, down = Topology(), 0.0, set[Location]()
    known = dict[Location, tuple[Location, bool, float | None]]()
    for what, one, other, gap, present in history:
        now += gap
        if what == "probe" and one != other:
            known[other] = (one, True, now)
            seen.observe(one, other, now)
        elif what == "down":
            down.add(one)
            known = {r: (h[0], False, None) if h[1] and one in (r, h[0]) else h for r, h in known.items()}
            seen.port_down(one, gone=False)
        elif what == "gone":
            known = {r: h for r, h in known.items() if one not in (r, h[0])}
            seen.port_down(one, gone=True)
        elif what == "up":
            down.discard(one)
        elif what == "lost":
            known = {r: (h[0], False, None) if h[1] and one.dpid in (r.dpid, h[0].dpid) else h for r, h in known.items()}
            seen.datapath_down(one.dpid)
        elif what == "unclaimed":
            known = {r: h for r, h in known.items() if {r.dpid, h[0].dpid} <= present}
            seen.keep(present)
        else:
            for r, (origin, heard, at) in list(known.items()):
                there = {r.dpid, origin.dpid} <= present
                if not heard:
                    known[r] = (origin, False, (now if at is None else at) if there and not {r, origin} <= down else None)
                elif now - at > 4 and not there:
                    known[r] = (origin, False, None)
                if known[r][2] is not None and now - known[r][2] > 4:
                    del known[r]
            seen.expire(now, 4, present, down.__contains__)
        both = {link(r, h[0]): (h[1], known[h[0]][1]) for r, h in known.items() if known.get(h[0], (None,))[0] == r}
        assert set(seen.links()) == {found for found, heard in both.items() if all(heard)}
        assert set(seen.unheard()) == {found for found, heard in both.items() if not all(heard)}
        assert all(seen.is_inter_switch(r) == (r in known) for r in ENDS)
        assert {e for d in (1, 2, 3) for e in seen.inter_switch_ports(d)} == set(known)
