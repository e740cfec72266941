"""A controller that is behind believes all its probes, and replayed probes are old at any time."""

from __future__ import annotations

import pytest
from controller_fake import E1
from controller_views import AT_CLIENT, AT_SERVER
from controller_world import World
from scale_world import TICK_S, ScaleWorld, scale_document
from sos_controller.core.commands import Echo, PacketOut
from sos_controller.core.events import Echoed, PacketIn, PortChanged, Tick
from sos_controller.core.probing import MAX_PER_TICK, REPEAT_S
from sos_controller.core.types import Location, PortNo
from sos_controller.core.wire.lldp import MAX_AGE_MS


def is_probe(command: object) -> bool:
    return isinstance(command, PacketOut) and command.data[12:14] == b"\x88\xcc"


@pytest.mark.parametrize("behind_s", [1.0, 2.0, 10.0, 60.0])
def test_controller_that_is_behind_believes_all_probes(behind_s: float) -> None:
    """All messages of switches wait for as long before they are read."""
    world = ScaleWorld(scale_document(3, 2, 1, 3), slowness=0.0)
    world.delay_s = behind_s
    world.connect()
    world.run(4 * behind_s + 5.0)
    assert world.engine.state.counters["probes", "foreign"] == 0
    assert len(world.engine.state.topology) == 15


def test_slow_controller_finds_all_links_and_does_not_stay_behind() -> None:
    """Each event takes so long that a round of probes takes longer than their interval."""
    world = ScaleWorld(scale_document(3, 4, 1, 3), slowness=0.0)
    world.event_s = 0.012
    world.connect()
    world.run(30.0)
    assert world.engine.state.counters["probes", "foreign"] == 0 and len(world.engine.state.topology) == 66
    assert world.longest_wait < 3 * 132 * 0.012, "no more than one round of probes waits"


@pytest.mark.parametrize("age_s", [(MAX_AGE_MS + 1_100) / 1000, 5.0])
def test_replayed_probes_are_refused(world: World, age_s: float) -> None:
    world.delivered.clear()
    world.tick(1.1)
    recorded = next(c.data for c in world.delivered if is_probe(c) and (c.dpid, c.actions[0].port_no) == AT_CLIENT)
    world.tick(age_s)
    world.do(PacketIn(*AT_SERVER, 0, recorded))
    assert not world.engine.state.topology.is_inter_switch(AT_SERVER)


def test_only_the_expected_echo_reply_counts(world: World) -> None:
    switch = world.engine.state.switches[E1]
    before = switch.marked_ms
    for marker in (0, switch.marker_ms + 1, 2**64 - 1):
        world.do(Echoed(E1, marker))
    assert switch.marked_ms == before


def test_probes_wait_for_the_marker_of_the_last_round(world: World) -> None:
    world.tick(1.0)
    world.unheard.add(E1)
    world.tick(1.1)
    world.delivered.clear()
    port = world.engine.state.switches[E1].ports[PortNo(1)]
    commands = world.engine.handle(PortChanged(E1, port, False), world.now) + world.engine.handle(Tick(world.wall(world.now)), world.now)
    assert not [c for c in commands if is_probe(c) and c.dpid == E1], "the last round has not been read"
    marker = world.engine.state.switches[E1].marker_ms
    world.engine.handle(Echoed(E1, marker), world.now)
    answered = world.engine.handle(Tick(world.wall(world.now)), world.now)
    assert Location(E1, PortNo(1)) in {Location(c.dpid, c.actions[0].port_no) for c in answered if is_probe(c)}
    assert [c.dpid for c in answered if isinstance(c, Echo)] == [E1]


def test_probes_of_many_ports_are_spread_over_ticks() -> None:
    world = ScaleWorld(scale_document(6, 8, 1, 1), slowness=0.0)
    world.connect()
    world.run(3.0)
    engine, rounds = world.engine, list[int]()
    for _ in range(80):
        world.run(TICK_S)
        before = engine.state.now
        rounds.append(sum(map(is_probe, engine.handle(Tick(0), before + TICK_S))))
    assert 0 < max(rounds) <= MAX_PER_TICK + 48 + 2


def test_switch_that_does_not_answer_echoes_gets_probes(world: World) -> None:
    world.unheard.add(E1)
    world.tick(1.1)
    world.delivered.clear()
    world.tick(REPEAT_S + 1.1)
    assert {c.dpid for c in world.delivered if is_probe(c)} >= {E1}
