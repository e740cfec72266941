"""Test external switches without a controller connection: they keep forwarding, stay reachable and close no loop."""

from __future__ import annotations

import pytest
from controller_fake import C1, E1, E2
from controller_lab import MACS, SWITCHES, document, document_hash
from controller_views import AT_CLIENT
from controller_world import World, encode, fake_port
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs
from sos_controller.core.commands import Apply
from sos_controller.core.events import ConfigChanged, DatapathUp, PortChanged
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL, PRIORITY_BLOCKED, PRIORITY_FLOOD
from sos_controller.core.types import DatapathId, Location, PortNo, parse_mac
from sos_controller.files.config import parse


@pytest.fixture
def external() -> World:
    made = World(document(forwarding="Controller"))
    made.converge()
    return made


def flooded(world: World) -> list[Location]:
    """Return the output ports of a client's broadcast."""
    broadcast = b"\xff" * 6 + parse_mac(MACS["client"]) + b"\x08\x06" + bytes(28)
    return sorted(where for where, _ in world.network.walk(AT_CLIENT, broadcast) if where.port_no != PORT_CONTROLLER)


@pytest.mark.parametrize("lost", SWITCHES)
def test_disconnected_switch_keeps_flooding_and_closes_no_loop(external: World, lost: str) -> None:
    before = flooded(external)
    external.disconnect(lost)
    external.tick(0.1)
    assert flooded(external) == before
    external.tick(10)
    assert flooded(external) == before
    external.connect([lost])
    for _ in range(40):
        assert flooded(external) == before, "reconnecting interrupts no traffic"
        external.tick(0.1)
    assert len(external.engine.state.topology.links()) == 4


@pytest.mark.parametrize("silent", SWITCHES)
def test_silent_switch_keeps_flooding_and_closes_no_loop(external: World, silent: str) -> None:
    before = flooded(external)
    external.wedged.add(DatapathId(SWITCHES[silent]))
    external.tick(10)
    assert len(external.engine.state.topology.links()) == 2
    assert flooded(external) == before
    external.disconnect(silent)
    external.wedged.clear()
    external.connect([silent])
    external.tick(5)
    assert len(external.engine.state.topology.links()) == 4
    assert flooded(external) == before


@pytest.mark.parametrize("lost", ["core1", "core2"])
def test_traffic_moves_to_the_other_core_when_ports_to_a_lost_switch_fail(external: World, lost: str) -> None:
    external.disconnect(lost)
    external.cut("edge1", lost)
    external.cut("edge2", lost)
    external.tick(0.1)
    assert [where for where in flooded(external) if where.dpid == E2], "the other core carries the broadcast"
    external.cut("edge1", lost, up=True)
    external.cut("edge2", lost, up=True)
    external.tick(5)
    once(external)
    external.connect([lost])
    external.tick(5)
    assert len(external.engine.state.topology.links()) == 4


def once(world: World) -> None:
    """Assert that a broadcast leaves each port at most once and does not loop."""
    reached = [where for where in flooded(world) if where.port_no != PORT_NORMAL]
    assert len(reached) == len(set(reached))


@pytest.mark.parametrize("silence", [1, 10])
def test_flapping_port_to_a_silent_switch_does_not_become_an_edge_port(external: World, silence: int) -> None:
    external.wedged.add(C1)
    external.tick(silence)
    external.cut("edge1", "core1")
    external.tick(1)
    external.cut("edge1", "core1", up=True)
    for _ in range(10):
        external.tick(1)
        once(external)


@pytest.mark.parametrize("lost", ["core1", "core2"])
def test_switch_that_disconnects_after_its_neighbours_ports_closes_no_loop(external: World, lost: str) -> None:
    for edge in ("edge1", "edge2"):
        for dpid, port in external.network.cut(SWITCHES[edge], SWITCHES[lost], False):
            if dpid != SWITCHES[lost]:
                external.do(PortChanged(dpid, fake_port(port, up=False), False))
    external.tick(1)
    external.disconnect(lost)
    for edge in ("edge1", "edge2"):
        external.cut(edge, lost, up=True)
    external.tick(5)
    once(external)


def test_port_that_was_down_at_the_last_update_closes_no_loop(external: World) -> None:
    external.cut("edge1", "core1")
    external.tick(1)
    external.disconnect("core1")
    external.cut("edge1", "core1", up=True)
    external.tick(5)
    once(external)


def test_switch_claimed_while_connected_closes_no_loop(external: World) -> None:
    everything = document(forwarding="Controller")
    fewer = {**everything, "sites": [site for site in everything["sites"] if site["datapaths"][0]["name"] != "core1"]}
    for config in (fewer, everything):
        external.do(ConfigChanged(parse(encode({**config, "hash": document_hash(config)}))))
        for _ in range(50):
            once(external)
            external.tick(0.1)
    assert len(external.engine.state.topology.links()) == 4


def test_disconnected_switch_is_forgotten_when_unconfigured(external: World) -> None:
    external.disconnect("core1")
    assert external.engine.state.topology.is_inter_switch(Location(E1, PortNo(1)))
    config = document(forwarding="Controller")
    config["sites"] = [site for site in config["sites"] if site["datapaths"][0]["name"] != "core1"]
    external.do(ConfigChanged(parse(encode({**config, "hash": document_hash(config)}))))
    assert not external.engine.state.topology.is_inter_switch(Location(E1, PortNo(1)))
    assert external.engine.state.away == {}


def test_changed_port_of_a_reconnecting_switch_counts_as_new(external: World) -> None:
    external.disconnect("core1")
    changed = structs.replace(fake_port(1, up=True), mac=parse_mac("02:00:00:00:00:ff"))
    external.do(DatapathUp(C1, (changed, fake_port(2, up=False), *(fake_port(n, up=True) for n in range(3, 6)))))
    settled = [n for n in range(1, 6) if external.engine.state.is_settled(Location(C1, PortNo(n)))]
    assert settled == [3, 4, 5]


def test_reconnecting_switch_keeps_its_flood_entries(external: World, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    apply = external.network.apply

    def noted(command: Apply, now: float) -> list[FlowEntry]:
        taken.extend(entry.priority for entry in command.deletes)
        return apply(command, now)

    monkeypatch.setattr(external.network, "apply", noted)
    for name in SWITCHES:
        external.disconnect(name)
        external.connect([name])  # before the next tick
        external.disconnect(name)
        external.tick(0.1)
        external.connect([name])
        assert not {PRIORITY_FLOOD, PRIORITY_BLOCKED}.intersection(taken)
        external.tick(2)


class Outages(RuleBasedStateMachine):
    """Drive a ring of external switches through random losses of connections and wires. A broadcast must never loop."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(document(forwarding="Controller"))
        self.world.converge()
        self.all = flooded(self.world)
        self.lost: set[str] = set()
        self.cut: set[tuple[str, str]] = set()

    @rule(name=st.sampled_from(sorted(SWITCHES)))
    def lose(self, name: str) -> None:
        if name not in self.lost:
            self.lost.add(name)
            self.world.disconnect(name)

    @rule(name=st.sampled_from(sorted(SWITCHES)))
    def come_back(self, name: str) -> None:
        if name in self.lost:
            self.lost.remove(name)
            self.world.connect([name])

    @rule(wire=st.sampled_from([(edge, core) for edge in ("edge1", "edge2") for core in ("core1", "core2")]))
    def break_wire(self, wire: tuple[str, str]) -> None:
        if wire not in self.cut:
            self.cut.add(wire)
            self.world.cut(*wire)
            self.world.tick(0.05)  # minimum time until the carrier returns

    @rule()
    def mend_wires(self) -> None:
        for wire in self.cut:
            self.world.cut(*wire, up=True)
        self.cut.clear()

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0]))
    def wait(self, seconds: float) -> None:
        self.world.tick(seconds)

    @invariant()
    def nothing_goes_round(self) -> None:
        flooded(self.world)

    def teardown(self) -> None:
        self.world.connect(sorted(self.lost))
        for wire in self.cut:
            self.world.cut(*wire, up=True)
        self.world.tick(6)
        assert flooded(self.world) == self.all


TestOutages = Outages.TestCase
TestOutages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
