"""Test exact entries (docs/adr/0020): their priorities, unchanged forwarding, and the delay of sessions because of caches."""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import C1, C2, E1, E2
from controller_lab import document
from controller_views import AT_CLIENT, AT_INGRESS, AT_SERVER, CLIENT, SERVER, parsed, reverse, to_agent
from controller_world import World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.events import ConfigChanged
from sos_controller.core.openflow.flow_entries import FlowEntry, TellApart
from sos_controller.core.openflow.pipeline import (
    NOT_SYN,
    PRIORITY_PUNT,
    PRIORITY_REDIRECT,
    PRIORITY_UNARMED,
    SETTLE_S,
    SLICES,
    Kind,
    cookie_kind,
)
from sos_controller.core.services.cache_guard import SWEPT_S
from sos_controller.core.sessions.setup import OPENING_S
from sos_controller.core.tables.recent_flows import IDLE_S, MAX_RECENT_FLOWS, RecentFlows
from sos_controller.core.types import DatapathId, FlowKey, Location

SPORT = 40000
TICK_S = 0.025


def exact(world: World, dpid: DatapathId) -> list[FlowEntry]:
    return [e for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.EXACT]


def waited(world: World, sport: int = SPORT, isn: int = 1) -> float:
    """Return the delay in seconds of a new connection's SYN that the switches' caches require."""
    world.delivered.clear()
    world.syn(sport, isn)
    (sent,) = to_agent(world, AT_INGRESS)
    return sent.after_s


def up(**more: Any) -> World:
    made = World(document(**more))
    made.converge()
    return made


@pytest.fixture
def old() -> World:
    """Return a world whose exact entries are older than all possible cached flows."""
    made = up()
    made.tick(IDLE_S)
    return made


def test_exact_entries_at_both_sites_exclude_punted_syns(world: World) -> None:
    ingress, egress = exact(world, E1), exact(world, E2)
    assert ingress and len(ingress) == len(egress) and not exact(world, C1) and not exact(world, C2)
    assert {(e.actions, e.match.reg0, e.match.tcp_flags) for e in ingress} == {((TellApart("source"),), 0, NOT_SYN)}
    assert {(e.actions, e.match.reg0, e.match.tcp_flags) for e in egress} == {((TellApart("target"),), 0, None)}
    assert {(e.match.ipv4_src, e.match.ipv4_dst, e.match.tcp_dst) for e in ingress} == {
        (e.match.ipv4_dst, e.match.ipv4_src, e.match.tcp_src) for e in egress
    }


def test_exact_entries_rank_between_sessions_and_punts(world: World) -> None:
    for entry in exact(world, E1):
        assert PRIORITY_PUNT + SLICES <= entry.priority < min(PRIORITY_UNARMED, PRIORITY_REDIRECT) - SLICES


STANDING = up()
"""World for tests without lasting changes."""


@given(st.sampled_from([AT_CLIENT, AT_SERVER]), st.integers(4990, 6010), st.sampled_from([0x02, 0x10, 0x11, 0x12]))
def test_exact_entries_do_not_change_forwarding(at: Location, port: int, flags: int) -> None:
    world = STANDING
    frame = syn_frame(CLIENT, SERVER, SPORT, port, flags=flags) if at == AT_CLIENT else reverse(SPORT, flags)
    there = world.network.walk(at, frame)
    before = {dpid: dict(table) for dpid, table in world.network.tables.items()}
    try:
        for dpid in (E1, E2):
            for entry in exact(world, dpid):
                del world.network.tables[dpid][entry.key]
        assert world.network.walk(at, frame) == there
    finally:
        world.network.tables = before


def test_connection_that_cannot_be_cached_does_not_wait(old: World) -> None:
    assert waited(old) == 0.0


def test_session_with_the_4_tuple_of_an_ended_session_waits(old: World) -> None:
    waited(old)
    (session,) = old.engine.state.sessions
    old.end(session.uuid)
    old.tick(3.0)
    assert not len(old.engine.state.sessions)
    assert waited(old, isn=2) == pytest.approx(SETTLE_S)
    assert waited(old, SPORT + 1) == 0.0, "other sessions do not wait"


def test_session_with_the_4_tuple_of_an_ending_session_waits(old: World) -> None:
    waited(old)
    (session,) = old.engine.state.sessions
    old.end(session.uuid, ["agent1"])
    assert waited(old, isn=2) == pytest.approx(SETTLE_S)


def test_undelayed_session_does_not_shorten_the_opening_time(old: World) -> None:
    """A leaving controller waits for the opening time, so it must cover the session that is delivered last."""
    waited(old)
    (session,) = old.engine.state.sessions
    old.end(session.uuid, ["agent1"])
    late = waited(old, isn=2)
    assert waited(old, SPORT + 1) == 0.0 < late
    assert old.engine.setup.is_opening(old.now + OPENING_S + late / 2)
    assert not old.engine.setup.is_opening(old.now + OPENING_S + late)


def test_4_tuple_of_a_plain_connection_waits_while_it_may_be_cached(old: World) -> None:
    for agent in old.agents.values():
        agent.mode = "refuse"
    old.syn(SPORT)
    old.syn(SPORT + 1)
    for agent in old.agents.values():
        agent.mode = "ready"
    assert waited(old, isn=2) == pytest.approx(SETTLE_S)
    old.tick(IDLE_S)
    assert waited(old, SPORT + 1, isn=2) == 0.0


def test_first_connections_of_a_service_wait_until_caches_expire() -> None:
    world = World(document(services=False))
    world.converge()
    world.tick(IDLE_S)
    world.do(ConfigChanged(parsed(document(2))))
    world.tick(2 * TICK_S)
    since = world.now - 2 * TICK_S
    assert world.service() == "Programmed/Programmed", "the wait does not delay programming"
    assert since + SWEPT_S - TICK_S <= world.now + waited(world) <= since + SWEPT_S + TICK_S
    world.tick(SWEPT_S)
    assert waited(world, SPORT + 1) == pytest.approx(SETTLE_S), "an earlier connection of the same 4-tuple may be cached"
    world.tick(IDLE_S)
    assert waited(world, SPORT + 2) == 0.0


def test_retransmitted_syn_does_not_overtake_a_delayed_syn(world: World) -> None:
    kept_s = waited(world)
    assert kept_s > 0
    world.delivered.clear()
    world.syn(SPORT)
    assert not to_agent(world, AT_INGRESS)
    world.tick(kept_s + TICK_S)
    world.delivered.clear()
    world.syn(SPORT)
    (again,) = to_agent(world, AT_INGRESS)
    assert again.after_s == 0.0, "the first SYN may have been lost"


def test_rearmed_service_waits_for_unrecorded_plain_connections(old: World) -> None:
    ingress = old.agents["agent1"]
    before, ingress.flags = ingress.flags, 0
    old.tick(1.0)
    assert not [e for e in old.network.entries(E1) if cookie_kind(e.cookie) == Kind.PUNT] and exact(old, E1)
    ingress.flags = before
    old.tick(1.0)
    assert waited(old) == pytest.approx(SETTLE_S)
    old.tick(IDLE_S)
    assert waited(old, SPORT + 1) == 0.0


def test_only_a_service_with_changed_ports_waits(old: World) -> None:
    made = document(2)
    other = {**made["services"][0], "id": "default/other", "ports": [{"first": 7000, "last": 7000}]}
    old.do(ConfigChanged(parsed({**made, "services": [*made["services"], other]})))
    old.tick(2 * TICK_S)
    assert waited(old) == 0.0
    old.delivered.clear()
    old.syn(SPORT, dport=7000)
    (sent,) = to_agent(old, AT_INGRESS)
    assert 0.0 < sent.after_s <= SWEPT_S


def test_sessions_wait_after_a_switch_reconnects_without_entries(old: World) -> None:
    old.disconnect("edge2")
    old.network.tables[E2].clear()
    old.connect(["edge2"])
    old.tick(SWEPT_S / 2)
    assert waited(old) == pytest.approx(SWEPT_S / 2, abs=2 * TICK_S)


def test_client_port_of_a_plain_connection_waits_for_any_server_port(old: World) -> None:
    """Cached flows do not match the server's port."""
    for agent in old.agents.values():
        agent.mode = "refuse"
    old.syn(SPORT, dport=5002)
    for agent in old.agents.values():
        agent.mode = "ready"
    assert waited(old, isn=2) == pytest.approx(SETTLE_S)
    assert waited(old, SPORT + 1) == 0.0


def test_services_in_both_directions_match_both_ports(world: World) -> None:
    made = document(2)
    (service,) = made["services"]
    back = {**service, "id": "default/back", "from": service["to"], "to": service["from"]}
    world.do(ConfigChanged(parsed({**made, "services": [service, back]})))
    world.tick(1.0)
    for dpid in (E1, E2):
        assert {e.actions for e in exact(world, dpid)} == {(TellApart("both"),)}


def test_external_switch_has_no_exact_entries_and_always_waits() -> None:
    world = up(forwarding="Controller")
    world.tick(IDLE_S)
    assert not exact(world, E1) and not exact(world, E2)
    assert waited(world) == pytest.approx(SETTLE_S)


@pytest.mark.parametrize("change", [{"mode": "Observe"}, {"percent": 0}, {"setup": "Proactive"}])
def test_service_without_reactive_set_up_has_no_exact_entries(change: dict[str, Any]) -> None:
    made = document()
    world = World()
    world.converge()
    world.do(ConfigChanged(parsed({**made, "generation": 2, "services": [{**made["services"][0], **change}]})))
    world.tick(1.0)
    assert not exact(world, E1) and not exact(world, E2)


def test_rewriting_site_has_no_exact_entries() -> None:
    made = document()
    made["sites"][0]["rewrite"] = "OpenFlow"
    world = World()
    world.converge()
    world.do(ConfigChanged(parsed({**made, "generation": 2})))
    world.tick(1.0)
    assert not exact(world, E1) and not exact(world, E2)


def test_exact_entries_are_removed_with_their_service(world: World) -> None:
    world.do(ConfigChanged(parsed(document(2, services=False))))
    world.tick(1.0)
    assert not exact(world, E1) and not exact(world, E2)


def test_services_with_equal_prefixes_and_ports_share_exact_entries(world: World) -> None:
    made = document(2)
    before = {e.key for e in exact(world, E1)}
    twin = {**made["services"][0], "id": "default/twin"}
    world.do(ConfigChanged(parsed({**made, "services": [*made["services"], twin]})))
    world.tick(1.0)
    assert {e.key for e in exact(world, E1)} == before
    world.do(ConfigChanged(parsed({**document(3), "services": [twin]})))
    world.tick(1.0)
    assert {e.key for e in exact(world, E1)} == before


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.0, 6.0)), max_size=40))
def test_recent_flows_are_held_for_the_cache_idle_time(steps: list[tuple[int, float]]) -> None:
    lately, noted, now = RecentFlows(), dict[FlowKey, float](), 0.0
    for number, pause in steps:
        now += pause
        key = FlowKey(bytes((number,)))
        assert lately.holds(key, now) == (key in noted and now < noted[key] + IDLE_S)
        lately.note(key, now)
        noted[key] = now


def test_full_table_evicts_the_oldest_recent_flow() -> None:
    lately = RecentFlows()
    for number in range(MAX_RECENT_FLOWS + 1):
        lately.note(FlowKey(number.to_bytes(4, "big")), 1.0)
    assert not lately.holds(FlowKey(bytes(4)), 1.0) and lately.holds(FlowKey(bytes((0, 0, 0, 1))), 1.0)
