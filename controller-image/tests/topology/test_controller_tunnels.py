"""Declared tunnels: the same links as from probes, without probes; they follow the ports at both ends."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_world import FIRST_TUNNEL, TICK_S, ScaleWorld, scale_document
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn, PortChanged, Tick
from sos_controller.core.topology.links import Link, Topology, link
from sos_controller.core.topology.tunnels import Tunnels, tunnel_number
from sos_controller.core.types import DatapathId, Location, Port, PortNo

DPIDS = [DatapathId(number) for number in range(1, 5)]
NAMES = ["sosvx1", "sosvx2", "sosvx3", "sosvx4", "wan0"]
ports = st.builds(
    lambda number, name, up, watched, live: Port(PortNo(number), name, bytes(6), up, watched, live),
    st.integers(1, 3),
    st.sampled_from(NAMES),
    *(st.sampled_from([True, True, True, False]) for _ in range(3)),
)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("connect"), st.sampled_from(DPIDS), st.lists(ports, max_size=3, unique_by=(lambda p: p.port_no, lambda p: p.name))
        ),
        st.tuples(st.just("disconnect"), st.sampled_from(DPIDS), st.none()),
        st.tuples(st.sampled_from(["port", "port", "gone"]), st.sampled_from(DPIDS), ports),
        st.tuples(st.just("number"), st.sampled_from(DPIDS), st.integers(0, 4)),
        st.tuples(st.just("silent"), st.sampled_from(DPIDS), st.none()),
    ),
    max_size=40,
)


class Model:
    """Everything as it is now, without a history."""

    def __init__(self) -> None:
        self.numbers = {dpid: int(dpid) for dpid in DPIDS}
        self.ports: dict[DatapathId, dict[PortNo, Port]] = {}
        self.silent: set[DatapathId] = set()

    def to(self, dpid: DatapathId, number: int) -> Port | None:
        return next((port for port in self.ports.get(dpid, {}).values() if tunnel_number(port.name) == number), None)

    def links(self) -> set[Link]:
        found = set()
        for one, other in combinations(self.numbers.keys() & self.ports.keys(), 2):
            ends = (self.to(one, self.numbers[other]), self.to(other, self.numbers[one]))
            if all(p is not None and p.up and p.watched and p.live for p in ends) and self.silent.isdisjoint((one, other)):
                found.add(link(Location(one, ends[0].port_no), Location(other, ends[1].port_no)))
        return found

    def is_tunnel(self, dpid: DatapathId, port: Port) -> bool | None:
        """None: the far end is not connected, and the answer is the last one before."""
        far = next((d for d, number in self.numbers.items() if number == tunnel_number(port.name) and d != dpid), None)
        theirs = self.to(far, self.numbers[dpid]) if far is not None and dpid in self.numbers else None
        if far is not None and dpid in self.numbers and far not in self.ports:
            return None
        return far is not None and dpid in self.numbers and port.watched and (theirs is None or theirs.watched)


@settings(deadline=None)
@given(steps)
def test_tunnels_follow_the_ports_at_both_ends(history: list) -> None:
    topology, model = Topology(), Model()
    tunnels = Tunnels(topology)
    tunnels.configure(model.numbers)
    for what, dpid, value in history:
        there = model.ports.get(dpid)
        before = set(topology.links())
        if what == "connect":
            model.silent.discard(dpid)
            model.ports[dpid] = {port.port_no: port for port in value}
            tunnels.disconnect(dpid)
            changed = tunnels.connect(dpid, value)
        elif what == "disconnect":
            model.ports.pop(dpid, None)
            model.silent.discard(dpid)
            changed = tunnels.disconnect(dpid)
        elif what in ("port", "gone") and there is not None:
            if any(p.name == value.name and p.port_no != value.port_no for p in there.values()):
                continue  # a name belongs to one port
            there.pop(value.port_no, None)
            if what == "port":
                there[value.port_no] = value
            changed = tunnels.port_changed(dpid, value, what == "gone")
        elif what == "number" and value not in model.numbers.values():
            model.numbers = {**model.numbers, dpid: value} if value else {d: n for d, n in model.numbers.items() if d != dpid}
            changed = tunnels.configure(dict(model.numbers))
            topology.keep(model.numbers.keys())
        elif what == "silent" and there is not None:
            model.silent ^= {dpid}
            changed = tunnels.silence(set(model.silent))
        else:
            continue
        assert set(topology.links()) == model.links()
        assert changed or before == model.links()
        for at, known in model.ports.items():
            for port in known.values():
                if topology.is_tunnel(Location(at, port.port_no)):
                    assert topology.is_inter_switch(Location(at, port.port_no))
                assert model.is_tunnel(at, port) in (None, topology.is_tunnel(Location(at, port.port_no))), (at, port)


def is_probe(command: object) -> bool:
    return isinstance(command, PacketOut) and command.data[12:14] == b"\x88\xcc"


def started(declared: bool, unwatched: int = 0, seconds: float = 6.0) -> ScaleWorld:
    world = ScaleWorld(scale_document(3, 2, 1, 6, declared=declared), slowness=0.0)
    world.unwatched.update(world.dpids[: unwatched or (0 if declared else len(world.dpids))])
    world.connect()
    world.run(seconds)
    return world


def graph(world: ScaleWorld) -> tuple[list[Link], list]:
    state = world.engine.state
    return state.topology.links(), sorted((found, cost) for *_, found, cost in state.graph.edges(keys=True, data="weight"))


@pytest.mark.parametrize("unwatched", [0, 1, 3, 5])
def test_declared_and_discovered_graphs_are_the_same(unwatched: int) -> None:
    """Also while some nodes have an earlier sos-node, which does not watch tunnels, and after changes."""
    one, other = started(True, unwatched), started(False)
    assert graph(one) == graph(other) and len(graph(one)[0]) == 15 and one.is_programmed()
    for change in ("cut_link", "lose_switch"):
        restore = [getattr(world, change)(1) for world in (one, other)]
        for world in (one, other):
            world.run(5.0)
        assert graph(one) == graph(other) and len(graph(one)[0]) < 15
        for world, back in zip((one, other), restore, strict=True):
            back()
            world.run(5.0)
        assert graph(one) == graph(other) and len(graph(one)[0]) == 15 and one.is_programmed()


@pytest.mark.parametrize(("unwatched", "probed"), [(0, set()), (1, {0}), (6, set(range(6)))])
def test_probes_are_sent_only_between_nodes_of_which_one_does_not_watch(unwatched: int, probed: set[int]) -> None:
    world = started(True, unwatched)
    sent = set[Location]()
    for _ in range(80):
        world.run(TICK_S)
        commands = world.engine.handle(Tick(0), world.engine.state.now + TICK_S)
        sent |= {Location(c.dpid, c.actions[0].port_no) for c in commands if is_probe(c)}
    tunnels = {end for end in sent if end.port_no >= FIRST_TUNNEL}
    ends = {(world.dpids.index(end.dpid), end.port_no - FIRST_TUNNEL) for end in tunnels}
    assert ends == {(a, b) for a in range(6) for b in range(6) if a != b and (a in probed or b in probed)}
    assert sent > tunnels, "all other ports are probed"


def test_probes_at_tunnels_are_ignored_and_counted() -> None:
    probed, world = started(False), started(True)
    state = probed.engine.state
    here, elsewhere = Location(world.dpids[0], PortNo(FIRST_TUNNEL + 1)), Location(world.dpids[0], PortNo(FIRST_TUNNEL + 2))
    state.now, state.out = world.now, []
    probed.engine.probing._send(state.switches[elsewhere.dpid])
    frame = next(c.data for c in state.out if is_probe(c) and c.actions[0].port_no == elsewhere.port_no)
    before = world.engine.state.topology.links()
    world.engine.handle(PacketIn(*here, 0, frame), world.now)
    assert world.engine.state.topology.links() == before
    assert world.engine.state.counters["probes", "tunnel"] == 1 and not world.engine.state.counters["probes", "foreign"]


@pytest.mark.parametrize("end", [0, 1])
def test_lost_liveness_at_one_end_moves_paths_at_once(end: int) -> None:
    """BFD reports a broken underlay although both ports are up."""
    world = started(True)
    ends = [Location(world.sites[0], PortNo(FIRST_TUNNEL + 2)), Location(world.sites[1], PortNo(FIRST_TUNNEL))]
    broken, state = link(*ends), world.engine.state
    assert broken in state.topology
    port = state.switches[ends[end].dpid].ports[ends[end].port_no]
    world.hear(PortChanged(ends[end].dpid, Port(port.port_no, port.name, port.mac, True, True, False), False))
    world.settle()
    assert broken not in state.topology and broken in state.topology.unheard()
    crossing = [pair for pair in world.engine.plan.pairs.values() if broken in {used for path in pair.paths for used in path.links}]
    assert not crossing and world.is_programmed()
    world.hear(PortChanged(ends[end].dpid, port, False))
    world.settle()
    assert broken in state.topology


def test_far_end_that_is_not_there_is_no_link_and_gets_no_probe() -> None:
    world = ScaleWorld(scale_document(3, 2, 1, 6, declared=True), slowness=0.0)
    world.connect(world.dpids[:4])
    world.run(4.0)
    state, away = world.engine.state, {PortNo(FIRST_TUNNEL + 4), PortNo(FIRST_TUNNEL + 5)}
    assert len(state.topology) == 6
    assert all(state.topology.is_inter_switch(Location(dpid, port_no)) for dpid in world.dpids[:4] for port_no in away)
    state.out = []
    for dpid in world.dpids[:4]:
        world.engine.probing._send(state.switches[dpid])
    assert {c.actions[0].port_no for c in state.out if is_probe(c)} == {1, 2}
    world.connect(world.dpids[4:])
    world.run(4.0)
    assert len(state.topology) == 15


def test_links_of_a_silent_datapath_carry_no_path_until_it_is_heard() -> None:
    world = started(True)
    state, silent = world.engine.state, world.dpids[1]
    world.mute.add(silent)
    world.run(6.0)
    assert len(state.topology) == 10 and silent in state.switches
    assert all(silent in (found.a.dpid, found.b.dpid) for found in state.topology.unheard())
    world.mute.discard(silent)
    world.run(3.0)
    assert len(state.topology) == 15


def test_plan_after_limited_replans_equals_that_of_switches_that_connect_one_after_the_other() -> None:
    """48 switches have 1,128 tunnels, more than a replan takes over."""
    worlds = [ScaleWorld(scale_document(6, 8, 1, 30, declared=True), slowness=0.0) for _ in range(2)]
    worlds[0].connect()
    behind = False
    for _ in range(60):
        worlds[0].run(0.05)
        behind |= worlds[0].engine.plan.is_behind
    for dpid in worlds[1].dpids:
        worlds[1].connect([dpid])
        worlds[1].run(0.1)
        assert not worlds[1].engine.plan.is_behind
    for world in worlds:
        world.run(6.0)
        assert world.is_programmed() and len(world.engine.state.graph.edges) == 1_128
    assert behind
    one, other = (world.engine.state.programmer for world in worlds)
    assert all(one.entries(dpid) == other.entries(dpid) for dpid in worlds[0].dpids)


def test_without_the_declaration_watched_tunnels_are_probed() -> None:
    """A configuration of an earlier compiler has no tunnel numbers."""
    world = ScaleWorld(scale_document(3, 2, 1, 6), slowness=0.0)
    world.connect()
    world.run(6.0)
    assert len(world.engine.state.topology) == 15 and not world.engine.state.topology.is_tunnel(
        Location(world.dpids[0], PortNo(FIRST_TUNNEL + 1))
    )
