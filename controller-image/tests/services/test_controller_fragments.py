"""Test fragments of a session's segments: they reach its agent, or the connections of its hosts are plain (docs/adr/0052)."""

from __future__ import annotations

from typing import Any

from controller_fake import E1, E2
from controller_lab import document
from controller_views import AT_CLIENT, AT_EGRESS, AT_INGRESS, AT_SERVER, CLIENT, SERVER, released, reverse, signed, to_agent
from controller_world import World, syn_frame
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.services.fragments import KEEP_S, MAX_PER_SECOND, PLAIN_S, QUIET_S
from sos_controller.core.types import DatapathId, Location
from sos_controller.core.wire.order import OrderType

SPORT = 40000
FIRST, LATER = 0x2000, 0x00B9
"""Flags and offset of a datagram's first fragment (more fragments) and of its last fragment."""


def fragment(frame: bytes, where: int) -> bytes:
    """Return a frame as a fragment, with zero ports, as Open vSwitch matches fragments."""
    return frame[:20] + where.to_bytes(2, "big") + frame[22:34] + bytes(4) + frame[38:]


def up_ward(where: int) -> bytes:
    return fragment(syn_frame(CLIENT, SERVER, SPORT, 5001, flags=0x10), where)


def down_ward(where: int) -> bytes:
    return fragment(reverse(SPORT, flags=0x10), where)


def up(rewrite: str = "Transparent", agents: int = 1, **more: Any) -> World:
    made = document(**more)
    for site in made["sites"]:
        site["rewrite"] = rewrite if site["agents"] else site["rewrite"]
    world = World(signed(made))
    world.converge()
    return world


def copied(world: World, where: Location, frame: bytes) -> None:
    cookie = next(e.cookie for e in world.network.entries(where.dpid) if cookie_kind(e.cookie) == Kind.FRAGMENT)
    world.do(PacketIn(*where, cookie, frame))


def outs(world: World, where: Location, frame: bytes) -> set[Location]:
    return {at for at, _ in world.network.walk(where, frame)}


def aborted(world: World) -> int:
    return world.engine.state.counters["orders_sent", OrderType.ABORT.name]


def test_fragments_of_both_directions_are_redirected_after_the_first_copy() -> None:
    world = up()
    world.syn(SPORT)
    for where, agent, made in ((AT_CLIENT, AT_INGRESS, up_ward), (AT_SERVER, AT_EGRESS, down_ward)):
        assert outs(world, where, made(LATER)) == {Location(where.dpid, PORT_CONTROLLER), Location(where.dpid, PORT_NORMAL)}
        copied(world, where, made(FIRST))
        for part in (FIRST, FIRST | LATER, LATER):
            assert outs(world, where, made(part)) == {agent}
    assert aborted(world) == 0


def test_fragments_from_agents_are_not_redirected() -> None:
    world = up()
    world.syn(SPORT)
    copied(world, AT_CLIENT, up_ward(FIRST))
    copied(world, AT_SERVER, down_ward(FIRST))
    assert outs(world, AT_INGRESS, down_ward(LATER)) == {Location(E1, PORT_NORMAL)}
    assert outs(world, AT_EGRESS, up_ward(LATER)) == {Location(E2, PORT_NORMAL)}


def test_fragments_of_plain_connections_are_copied_at_intervals() -> None:
    world = up()
    copied(world, AT_CLIENT, up_ward(FIRST))
    assert outs(world, AT_CLIENT, up_ward(LATER)) == {Location(E1, PORT_NORMAL)}
    assert outs(world, AT_CLIENT, syn_frame(CLIENT, SERVER, SPORT, 6000, flags=0x10)) == {Location(E1, PORT_NORMAL)}
    world.tick(QUIET_S + 1.0)
    world.network.expire(world.now)
    assert Location(E1, PORT_CONTROLLER) in outs(world, AT_CLIENT, up_ward(LATER))


def test_session_begun_after_plain_fragments_gets_its_fragments_at_once() -> None:
    """Fragments of a plain connection stop copies for QUIET_S. A session of the same hosts must not lose its fragments for that long."""
    world = up()
    copied(world, AT_CLIENT, up_ward(FIRST))
    copied(world, AT_SERVER, down_ward(FIRST))
    world.syn(SPORT)
    assert outs(world, AT_CLIENT, up_ward(LATER)) == {AT_INGRESS}
    assert outs(world, AT_SERVER, down_ward(LATER)) == {AT_EGRESS}
    world.tick(QUIET_S + 1.0)
    world.network.expire(world.now)
    assert outs(world, AT_CLIENT, up_ward(LATER)) == {AT_INGRESS}


def test_session_begun_after_plain_fragments_at_a_rewriting_site_gets_copies_again() -> None:
    world = up(rewrite="OpenFlow")
    copied(world, AT_CLIENT, up_ward(FIRST))
    assert Location(E1, PORT_CONTROLLER) not in outs(world, AT_CLIENT, up_ward(LATER))
    world.syn(SPORT)
    assert Location(E1, PORT_CONTROLLER) in outs(world, AT_CLIENT, up_ward(LATER))


def test_rewriting_site_aborts_fragmented_sessions_and_makes_the_host_plain() -> None:
    world = up(rewrite="OpenFlow")
    world.syn(SPORT)
    copied(world, AT_CLIENT, up_ward(FIRST))
    assert aborted(world) == 2
    (session,) = world.engine.state.sessions
    world.end(session.uuid)
    world.tick(3.0)
    world.delivered.clear()
    world.syn(SPORT + 1)
    assert len(released(world)) == 1 and not to_agent(world, AT_INGRESS)
    assert world.engine.state.counters["syns", "fragments"] == 1
    world.tick(PLAIN_S, step=0.5)
    world.syn(SPORT + 2)
    assert world.engine.state.sessions.by_key(syn_frame(CLIENT, SERVER, SPORT + 2, 5001)[26:38]) is not None


def test_fragment_redirection_ends_with_the_agent_or_after_the_last_session() -> None:
    world = up()
    world.syn(SPORT)
    (session,) = world.engine.state.sessions
    copied(world, AT_CLIENT, up_ward(FIRST))
    world.end(session.uuid)
    world.tick(3.0)
    assert outs(world, AT_CLIENT, up_ward(LATER)) == {AT_INGRESS}
    world.tick(KEEP_S + 3.0, step=0.25)
    assert Location(E1, PORT_NORMAL) in outs(world, AT_CLIENT, up_ward(LATER))
    world.syn(SPORT + 1)
    copied(world, AT_CLIENT, up_ward(FIRST))
    world.agents["agent1"].mode = "dead"
    world.tick(7.0)
    assert Location(E1, PORT_NORMAL) in outs(world, AT_CLIENT, up_ward(LATER))


def test_fragment_processing_is_rate_limited() -> None:
    world = up()
    world.now = float(int(world.now) + 1)
    for _ in range(MAX_PER_SECOND):
        copied(world, AT_CLIENT, bytes(60))
    world.syn(SPORT)
    copied(world, AT_CLIENT, up_ward(FIRST))
    assert world.engine.state.counters["fragments", "led"] == 0
    world.now += 1.0
    copied(world, AT_CLIENT, up_ward(FIRST))
    assert world.engine.state.counters["fragments", "led"] == 1


def test_proactive_service_redirects_all_fragments_to_its_agent() -> None:
    made = document()
    made["services"][0]["setup"] = "Proactive"
    world = World(signed(made))
    world.converge()
    world.tick(8.0)
    for where, agent, part in ((AT_CLIENT, AT_INGRESS, up_ward), (AT_SERVER, AT_EGRESS, down_ward)):
        assert outs(world, where, part(FIRST)) == outs(world, where, part(LATER)) == {agent}


def test_malformed_packets_change_nothing() -> None:
    world = up()
    world.syn(SPORT)
    for data in (b"", bytes(60), up_ward(FIRST)[:30]):
        copied(world, AT_CLIENT, data)
    assert DatapathId(E1) in world.network.tables and aborted(world) == 0
    assert world.engine.state.counters["fragments", "led"] == 0
