"""Test the end of sessions, by Ended orders of one or both agents, by session reports, and by the death of agents.

Test adoption by a restarted controller.
"""

from __future__ import annotations

import pytest
from controller_fake import C1, C2, E1, E2
from controller_lab import document
from controller_views import (
    AT_CLIENT,
    AT_EGRESS,
    AT_INGRESS,
    AT_SERVER,
    CLIENT,
    SERVER,
    kinds,
    reverse,
    tables,
)
from controller_world import World, syn_frame
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.pipeline import Kind, cookie_kind
from sos_controller.core.tables.sessions import Phase

STANDING = {Kind.GUARD, Kind.EXACT, Kind.ICMP, Kind.FRAGMENT}
"""Entries that stay on an edge switch while no connection can be accelerated. They do not change forwarding."""


def test_tables_return_to_the_baseline_after_all_sessions(world: World) -> None:
    baseline = tables(world)
    for sport in range(40000, 40040):
        world.syn(sport)
    for session in list(world.engine.state.sessions):
        world.end(session.uuid)
    assert len(world.engine.state.sessions) == 40, "entries remain for the last acknowledgements"
    world.tick(1.5)
    assert tables(world) == baseline
    assert len(world.engine.state.sessions) == 0 and not world.engine.state.sessions.pairs


def test_one_agent_may_end_a_session_long_before_the_other(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.end(session.uuid, ["agent1"])
    world.tick(20)
    assert session.state is Phase.ENDING and not session.ingress_entries and session.egress_entries
    back = reverse(40000, flags=0x10)
    assert world.network.walk(AT_SERVER, back)[0][0] == AT_EGRESS
    world.end(session.uuid, ["agent2"])
    world.tick(1.5)
    assert session.state is Phase.ENDED and 3 not in kinds(world, E2)


def test_port_reused_while_ending_starts_a_new_session(world: World) -> None:
    world.syn(40000, isn=1)
    (first,) = world.engine.state.sessions
    world.end(first.uuid)
    assert first.state is Phase.ENDING
    world.syn(40000, isn=99)
    (second,) = world.engine.state.sessions
    assert second is not first and second.state is Phase.ACTIVE
    world.tick(3)
    assert second.ingress_entries[0][1] in world.network.entries(E1)
    assert second.egress_entries[0][1] in world.network.entries(E2)


def test_reports_end_omitted_sessions_except_young_sessions(world: World) -> None:
    for sport in range(40000, 40130):
        world.syn(sport)
    gone = sorted(world.agents["agent1"].held)[0]
    world.tick(5)
    for agent in world.agents.values():
        del agent.held[gone]
    world.tick(3)
    assert len(world.engine.state.sessions) == 130
    world.tick(6)
    assert len(world.engine.state.sessions) == 129 and world.engine.state.sessions.by_uuid(gone) is None


def test_dead_agent_loses_its_sessions_and_disarms_the_service(world: World) -> None:
    world.syn(40000)
    assert 1 in kinds(world, E1)
    world.agents["agent1"].mode = "dead"
    world.tick(4.5)
    assert kinds(world, E1) == STANDING and world.service() == "Pending/NoAgents"
    (session,) = world.engine.state.sessions
    assert session.egress_entries, "the egress agent still has to reset the server"
    world.end(session.uuid, ["agent2"])
    world.tick(1.2)
    assert len(world.engine.state.sessions) == 0 and kinds(world, E2) == STANDING
    world.agents["agent1"].mode = "ready"
    world.tick(1)
    assert world.service() == "Programmed/Programmed"


def test_two_dead_agents_leave_no_redirecting_entries(world: World) -> None:
    for sport in range(40000, 40010):
        world.syn(sport)
    for agent in world.agents.values():
        agent.mode = "dead"
    world.tick(5)
    assert {k for dpid in (E1, E2, C1, C2) for k in kinds(world, dpid)} == STANDING
    assert len(world.engine.state.sessions) == 0


def test_restarted_agent_loses_its_sessions(world: World) -> None:
    world.syn(40000)
    world.agents["agent1"].boot += 10**9
    world.agents["agent1"].beacons = world.agents["agent1"].sequence = 0
    world.agents["agent1"].held.clear()
    world.tick(1)
    (session,) = world.engine.state.sessions
    assert not session.ingress_entries


def test_draining_agents_keep_their_sessions_and_get_no_new_ones(world: World) -> None:
    world.syn(40000)
    world.agents["agent1"].flags = 1
    world.tick(1)
    assert world.service() == "Pending/NoAgents" and 1 not in kinds(world, E1)
    (session,) = world.engine.state.sessions
    assert session.state is Phase.ACTIVE and session.ingress_entries


@pytest.mark.parametrize("ends", [40000, 40001])
def test_rule_8_sessions_with_equal_cookie_numbers_are_not_confused(world: World, ends: int) -> None:
    """After a restart, the controller knows only 16 bits of a session's number, from the cookie."""
    found = {}
    before = world.engine.setup._counter
    for port, counter in ((40000, before), (40001, before + (1 << 16))):
        world.engine.setup._counter = counter
        world.syn(port)
        (found[port],) = [s for s in world.engine.state.sessions if s.key[8:10] == port.to_bytes(2, "big")]
    one, other = found.values()
    assert one.number == other.number and one.uuid != other.uuid
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    reborn.agents = world.agents
    reborn.connect()
    reborn.tick(12, step=0.1)
    assert len(reborn.engine.state.sessions) == 2
    reborn.end(found[ends].uuid)
    reborn.tick(14, step=0.1)
    stays = 40000 + 40001 - ends
    redirected = {e.match.tcp_src for e in reborn.network.entries(E1) if cookie_kind(e.cookie) == Kind.REDIRECT}
    assert (stays, 0xFFFF) in redirected, "the other session continues"
    reborn.end(found[stays].uuid)
    reborn.tick(14, step=0.1)
    assert len(reborn.engine.state.sessions) == 0
    assert not [e for e in reborn.network.entries(E1) if cookie_kind(e.cookie) == Kind.REDIRECT]


@pytest.mark.parametrize("epoch", [2, 1])
def test_rule_8_another_controller_adopts_only_reported_sessions(world: World, epoch: int) -> None:
    """Adoption works for a restarted controller and for a controller without earlier state, which may have the same epoch."""
    for sport in (40000, 40001):
        world.syn(sport)
    keep, lose = (world.engine.state.sessions.by_key(k) for k in sorted(s.key for s in world.engine.state.sessions))
    assert keep is not None and lose is not None
    for agent in world.agents.values():
        del agent.held[lose.uuid]
    reborn = World(network=world.network, epoch=epoch, now=world.now + 3)
    reborn.agents = world.agents
    paths = {d: [e for e in world.network.entries(d) if cookie_kind(e.cookie) == Kind.PATH] for d in (E1, C1, C2, E2)}
    reborn.connect()
    for dpid, entries in paths.items():
        assert set(entries) <= set(reborn.network.entries(dpid)), "paths of streams remain until the new controller has heard the agents"
    assert sum(cookie_kind(e.cookie) == Kind.REDIRECT for e in reborn.network.entries(E1)) == 2
    assert len(reborn.engine.state.sessions) == 2
    reborn.tick(4)
    assert reborn.service() == "Programmed/Programmed"
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert reborn.network.walk(AT_CLIENT, data)[0][0] == AT_INGRESS
    reborn.tick(12, step=0.1)
    (left,) = reborn.engine.state.sessions
    assert left.uuid == keep.uuid and left.adopted
    assert sum(cookie_kind(e.cookie) == Kind.REDIRECT for e in reborn.network.entries(E1)) == 1
    assert {pipeline.cookie_epoch(e.cookie) for e in reborn.network.entries(E1) if cookie_kind(e.cookie) != Kind.REDIRECT} == {epoch & 0xFF}
    reborn.end(keep.uuid)
    reborn.tick(1.5)
    assert not any(cookie_kind(e.cookie) == Kind.REDIRECT for d in (E1, E2) for e in reborn.network.entries(d))


def test_rule_8_paths_remain_until_all_switches_have_reconnected(world: World) -> None:
    """Open vSwitch reconnects after 1, 2, 4, 8 and 8 s."""
    world.syn(40000)
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    reborn.agents = world.agents
    paths = {d: {e for e in world.network.entries(d) if cookie_kind(e.cookie) == Kind.PATH} for d in (E1, C1, C2)}
    assert paths[E1] and (paths[C1] or paths[C2])
    reborn.connect(["edge1", "core1", "core2"])
    reborn.tick(8)
    for dpid, entries in paths.items():
        assert entries <= set(reborn.network.entries(dpid))
    reborn.connect(["edge2"])
    reborn.tick(5)
    kept = [e for d in (E1, C1, C2, E2) for e in reborn.network.entries(d) if cookie_kind(e.cookie) == Kind.PATH]
    assert kept and {pipeline.cookie_epoch(e.cookie) for e in kept} == {2}


def test_paths_of_an_earlier_run_expire(world: World) -> None:
    reborn = World(document(services=False), network=world.network, epoch=2, now=world.now + 3)
    reborn.connect(["edge1", "core1", "core2"])
    reborn.tick(31, step=0.1)
    assert not [e for d in (E1, C1, C2) for e in reborn.network.entries(d) if cookie_kind(e.cookie) == Kind.PATH]


def test_adopted_entries_of_missing_agents_are_removed(world: World) -> None:
    world.syn(40000)
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    for agent in reborn.agents.values():
        agent.mode = "dead"
    reborn.connect()
    reborn.tick(17, step=0.1)
    assert len(reborn.engine.state.sessions) == 0
    assert not any(cookie_kind(e.cookie) == Kind.REDIRECT for d in (E1, E2) for e in reborn.network.entries(d))
