"""Test that sessions follow their hosts (docs/adr/0047).

Entries appear at the new switch first. Entries at the old switch stay until the host is known to have left it.
"""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest
from controller_fake import C1, E1, E2
from controller_lab import MACS, SWITCHES, document
from controller_views import AT_CLIENT, AT_INGRESS, CLIENT, SERVER, reverse, signed
from controller_world import CLIENT_PORT, World, fake_port, syn_frame
from sos_controller.core.commands import Command, Install, PacketOut
from sos_controller.core.events import PacketIn, PortChanged, Tick
from sos_controller.core.openflow.flow_entries import LearnSource, Output, SetEthDst
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.sessions.mobility import ASK_S, ASK_TIMES, BATCH, FORGET_S, LINGER_S, MAX_ANNOUNCED, MAX_RESENT, SWEEP_S
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import DatapathId, Location, PortNo, parse_mac
from sos_controller.core.wire.order import OrderType

SPORT = 40000
NEW_PORT = PortNo(3)
TICK_S = 0.025
AT_NEW = Location(C1, NEW_PORT)
"""New location of a moving host: the second switch of its site."""


def two_switches(site: str, rewrite: str = "Transparent", forwarding: str = "Node") -> dict[str, Any]:
    """Return the lab's configuration with core1 as a second switch of a site."""
    made = document(forwarding=forwarding)
    made["sites"] = [s for s in made["sites"] if s["name"] != "core1"]
    for found in made["sites"]:
        found["rewrite"] = rewrite if found["agents"] else found["rewrite"]
        if found["name"] == site:
            found["datapaths"].append({"dpid": f"{SWITCHES['core1']:016x}", "name": "core1", "forwarding": forwarding})
    return signed(made)


def up(site: str = "west", **more: str) -> World:
    world = World(two_switches(site, **more))
    world.converge()
    assert world.service() == "Programmed/Programmed"
    return world


def begun(world: World, sport: int = SPORT) -> Session:
    world.syn(sport)
    return next(s for s in world.engine.state.sessions if s.key[8:10] == sport.to_bytes(2, "big"))


def arp(host: str, address: int, mac: str | None = None) -> bytes:
    """Return a gratuitous ARP request."""
    sender = parse_mac(MACS[host]) if mac is None else parse_mac(mac)
    words = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + sender + struct.pack("!I", address) + bytes(6) + struct.pack("!I", address)
    return b"\xff" * 6 + sender + b"\x08\x06" + words


def announce(world: World, where: Location, host: str = "client", address: int = CLIENT) -> list[Command]:
    return world.do(PacketIn(*where, 0, arp(host, address)))


def segment(sport: int = SPORT) -> bytes:
    return syn_frame(CLIENT, SERVER, sport, 5001, flags=0x10)


def places(world: World, sport: int = SPORT, of: str = "client") -> set[DatapathId]:
    """Return the switches whose entry redirects a host's segments of the session to its agent."""
    ends = (CLIENT, SERVER) if of == "client" else (SERVER, CLIENT)
    found = set()
    for dpid, table in world.network.tables.items():
        for entry in table.values():
            m = entry.match
            if (
                cookie_kind(entry.cookie) == Kind.REDIRECT
                and m.ipv4_src == (ends[0], 0xFFFFFFFF)
                and (m.tcp_src or (0,))[0] in (sport, 5001)
            ):
                port = m.tcp_src if of == "client" else m.tcp_dst
                if port is not None and port[0] == sport:
                    found.add(dpid)
    return found


def track(world: World, dpid: DatapathId) -> set[int]:
    """Return the hosts whose segments a switch copies to the controller."""
    return {e.match.ipv4_src[0] for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.TRACK and e.match.ipv4_src}


def ends_at(world: World, where: Location, frame: bytes) -> list[Location]:
    return [at for at, _ in world.network.walk(where, frame)]


def led_to(world: World, where: Location, frame: bytes) -> str:
    """Return the agent that receives a host's frame, at the same switch or after plain forwarding. Return "" for none."""
    ((at, sent),) = [found for found in world.network.walk(where, frame) if found[0].port_no != PORT_CONTROLLER]
    for name, agent in world.agents.items():
        if sent[:6] == agent.mac and (at == agent.where or (at.port_no == PORT_NORMAL and at.dpid != agent.where.dpid)):
            return name
    return ""


def aborted(world: World) -> int:
    return world.engine.state.counters["orders_sent", OrderType.ABORT.name]


def test_moving_client_keeps_its_session_by_entries_at_the_new_switch() -> None:
    world = up()
    session = begun(world)
    assert places(world) == {E1}
    sent = announce(world, AT_NEW)
    assert places(world) == {E1, C1}, "new entries exist before old entries are removed"
    assert any(isinstance(c, Install) and c.dpids == (C1,) for c in sent)
    assert led_to(world, AT_NEW, segment()) == "agent1"
    world.tick(LINGER_S + 4 * TICK_S)
    assert places(world) == {C1}
    assert (session.dpid, session.in_port) == AT_NEW
    assert aborted(world) == 0


def test_moving_server_keeps_its_session() -> None:
    world = up("east")
    announce(world, Location(E2, PortNo(3)), "server", SERVER)
    begun(world)
    assert places(world, of="server") == {E2}
    announce(world, AT_NEW, "server", SERVER)
    assert places(world, of="server") == {E2, C1}
    assert led_to(world, AT_NEW, reverse(SPORT, flags=0x10)) == "agent2"
    world.tick(LINGER_S + 4 * TICK_S)
    assert places(world, of="server") == {C1}


def test_late_located_server_keeps_sessions_started_before_and_after() -> None:
    """The first session has entries at every switch of the site, later sessions only at the server's switch. All of them follow a move."""
    world = up("east")
    begun(world, SPORT)
    assert places(world, SPORT, "server") == {E2, C1}, "the server's location is still unknown"
    announce(world, Location(E2, PortNo(3)), "server", SERVER)
    begun(world, SPORT + 1)
    assert places(world, SPORT + 1, "server") == {E2}
    assert track(world, C1) == {SERVER} and track(world, E2) == set()
    announce(world, AT_NEW, "server", SERVER)
    assert C1 in places(world, SPORT, "server") & places(world, SPORT + 1, "server")


def test_returning_host_keeps_a_session_started_at_the_other_switch() -> None:
    world = up()
    begun(world, SPORT)
    announce(world, AT_NEW)
    world.do(PacketIn(*AT_NEW, world.punt_cookie, syn_frame(CLIENT, SERVER, SPORT + 1, 5001)))
    assert places(world, SPORT + 1) == {C1}
    assert track(world, E1) == {CLIENT}, "the newest session has no entry at the old switch"
    announce(world, AT_CLIENT)
    assert E1 in places(world, SPORT) & places(world, SPORT + 1)


def test_end_of_a_session_removes_its_entries_at_all_switches() -> None:
    world = up()
    session = begun(world)
    announce(world, AT_NEW)
    world.end(session.uuid)
    world.tick(3.0)
    assert places(world) == places(world, of="server") == set()


def test_segment_at_another_switch_reveals_a_move() -> None:
    """A host need not announce itself. Switches other than its known switch forward its packets and copy them to the controller."""
    world = up()
    begun(world)
    assert track(world, C1) == {CLIENT} and track(world, E1) == set()
    there = ends_at(world, AT_NEW, segment())
    assert Location(C1, PORT_CONTROLLER) in there and Location(C1, PORT_NORMAL) in there
    cookie = next(e.cookie for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.TRACK)
    world.do(PacketIn(*AT_NEW, cookie, segment()))
    assert places(world) == {E1, C1} and track(world, C1) == set()
    world.tick(LINGER_S + 4 * TICK_S)
    assert track(world, E1) == {CLIENT}


def resent(world: World, frame: bytes) -> list[PacketOut]:
    """Let the new switch copy a frame; return the packets that the controller sends from there."""
    copied = PacketIn(*AT_NEW, world.engine.state.cookie(Kind.TRACK), frame)
    return [c for c in world.do(copied) if isinstance(c, PacketOut) and c.in_port == NEW_PORT and c.data[12:14] == b"\x08\x00"]


def announced(sent: list[Command]) -> list[PacketOut]:
    return [c for c in sent if isinstance(c, PacketOut) and c.data[12:14] == b"\x80\x35"]


def test_switches_learn_the_place_of_a_moved_host_at_once() -> None:
    """The agents' switches forward to the host by its MAC address, and the host's own packets may take other ways."""
    world = up()
    begun(world)
    copied = PacketIn(*AT_NEW, world.engine.state.cookie(Kind.TRACK), segment())
    (frame,) = announced(world.do(copied))
    assert (frame.dpid, frame.in_port, frame.actions) == (*AT_NEW, (Output(PORT_NORMAL),))
    assert frame.data[:12] == b"\xff" * 6 + segment()[6:12], "a broadcast from the host"
    assert frame.data[28:32] == frame.data[38:42] == bytes(4), "no address: hosts ignore it"
    assert not announced(world.do(copied)), "once"


def test_number_of_announced_moves_is_bounded() -> None:
    world = up()
    begun(world)
    sent = [frame for _ in range(MAX_ANNOUNCED) for at in (AT_NEW, AT_CLIENT) for frame in announced(announce(world, at))]
    assert len(sent) == MAX_ANNOUNCED
    world.tick(TICK_S)
    assert announced(announce(world, AT_NEW))


@pytest.mark.parametrize("rewrite", ["Transparent", "OpenFlow"])
@pytest.mark.parametrize("forwarding", ["Node", "Controller"])
def test_redirecting_entries_learn_the_port_of_the_host(rewrite: str, forwarding: str) -> None:
    """An entry that outputs to the agent bypasses MAC learning, and a host may change its port without an announcement."""
    world = up(rewrite=rewrite, forwarding=forwarding)
    begun(world)
    led = [e for dpid in (E1, E2) for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.REDIRECT]
    direct = [e for e in led if any(isinstance(a, Output) for a in e.actions)]
    assert len(direct) == 2
    assert all(isinstance(e.actions[0], LearnSource) == (forwarding == "Node") for e in direct)


def test_first_segments_at_the_new_switch_reach_the_agent() -> None:
    """The switch has forwarded them to the server before the entries were placed; the controller sends their copies to the agent."""
    world = up()
    begun(world)
    for _ in range(2):
        (again,) = resent(world, segment())
        assert (again.dpid, again.in_port, again.data) == (*AT_NEW, segment())
        assert again.actions == (SetEthDst(world.agents["agent1"].mac), Output(PORT_NORMAL))
    assert not any(resent(world, other) for other in (segment(SPORT + 1), segment()[:40], segment() + bytes(2000)))


def test_first_segments_of_a_moved_server_reach_the_agent() -> None:
    world = up("east")
    announce(world, Location(E2, PortNo(3)), "server", SERVER)
    begun(world)
    (again,) = resent(world, reverse(SPORT, flags=0x10))
    assert again.actions == (SetEthDst(world.agents["agent2"].mac), Output(PORT_NORMAL))


def test_number_of_segments_sent_again_is_bounded() -> None:
    world = up()
    begun(world)
    assert sum(len(resent(world, segment())) for _ in range(MAX_RESENT + 9)) == MAX_RESENT
    world.tick(TICK_S)
    assert resent(world, segment())


def test_new_connection_at_another_switch_reveals_a_move() -> None:
    world = up()
    begun(world)
    world.do(PacketIn(*AT_NEW, world.punt_cookie, syn_frame(CLIENT, SERVER, SPORT + 1, 5001)))
    assert places(world) == {E1, C1}


def test_host_whose_old_port_went_down_first_is_followed() -> None:
    world = up()
    begun(world)
    world.do(PortChanged(E1, fake_port(CLIENT_PORT, False), True))
    announce(world, AT_NEW)
    assert C1 in places(world)


def test_new_port_gets_entries_but_old_entries_stay_until_it_settles() -> None:
    """The port of an arriving machine came up seconds ago, and may still turn out to lead to another switch."""
    world = up()
    begun(world)
    new = Location(C1, PortNo(5))
    world.do(PortChanged(C1, fake_port(5, False), False))
    world.do(PortChanged(C1, fake_port(5, True), False))
    announce(world, new)
    assert places(world) == {E1, C1}
    world.tick(LINGER_S)
    assert places(world) == {E1, C1}
    world.tick(3.0)
    assert places(world) == {C1}, "the port has settled"


def test_host_with_a_claimed_address_does_not_take_over_sessions() -> None:
    world = up()
    begun(world)
    world.do(PacketIn(*AT_NEW, 0, arp("client", CLIENT, "02:66:66:66:66:66")))
    assert AT_INGRESS in ends_at(world, AT_CLIENT, segment())
    world.tick(LINGER_S + 4 * TICK_S)
    assert Location(E1, PORT_CONTROLLER) in ends_at(world, AT_CLIENT, segment()), "the controller receives the host's next segment"
    cookie = next(e.cookie for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.TRACK)
    world.do(PacketIn(*AT_CLIENT, cookie, segment()))
    assert ends_at(world, AT_CLIENT, segment()) == [AT_INGRESS]
    assert aborted(world) == 0


def test_host_that_alternates_causes_one_move_per_linger_time() -> None:
    world = up()
    begun(world)
    installs = sum(isinstance(c, Install) for _ in range(20) for at in (AT_NEW, AT_CLIENT) for c in announce(world, at))
    assert installs == 1
    world.tick(LINGER_S + 4 * TICK_S)
    assert ends_at(world, AT_CLIENT, segment()) == [AT_INGRESS]


def test_1000_sessions_move_within_a_second_in_bounded_batches() -> None:
    world = up()
    for sport in range(20_000, 21_000):
        world.syn(sport)
    turns = [announce(world, AT_NEW)]
    began = world.now
    while world.engine.mobility._moves:
        world.now += TICK_S
        turns.append(world.do(Tick(world.wall(world.now))))
    placed = [sum(isinstance(c, Install) for c in turn) for turn in turns]
    assert sum(placed) == 1000 and max(placed) <= 2 * BATCH
    assert world.now - began < 1.0
    assert all(C1 in places(world, sport) for sport in (20_000, 20_500, 20_999))
    world.tick(LINGER_S + 1.0)
    assert not any(E1 in places(world, sport) for sport in (20_000, 20_500, 20_999))


def test_moving_sessions_costs_less_than_half_of_setting_them_up() -> None:
    """The batches of a move are as frequent as ticks. They take a second for 1,000 sessions only if the controller keeps up."""
    world, began = up(), time.process_time()
    for sport in range(20_000, 21_000):
        world.syn(sport)
    set_up = time.process_time() - began
    announce(world, AT_NEW)
    while world.engine.mobility._moves:
        world.now += TICK_S
        world.do(Tick(world.wall(world.now)))
    moved = time.process_time() - began - set_up
    assert C1 in places(world, 20_999)
    assert moved < set_up / 2


def test_sessions_of_a_host_that_moves_to_another_site_are_aborted() -> None:
    world = up()
    begun(world)
    world.do(PortChanged(E1, fake_port(CLIENT_PORT, False), True))
    announce(world, Location(E2, PortNo(5)))
    assert aborted(world) == 0, "the controller first sends ARP requests"
    world.tick(ASK_S * (ASK_TIMES + 1))
    assert aborted(world) == 2 and world.engine.state.counters["sessions", Outcome.MOVED_AWAY] == 1


def test_host_that_answers_at_its_port_keeps_its_sessions() -> None:
    world = up()
    begun(world)
    announce(world, Location(E2, PortNo(5)))
    world.tick(ASK_S / 2)
    asked = [c for c in world.delivered if c.dpid == E1 and c.data[12:14] == b"\x08\x06" and c.data[38:42] == CLIENT.to_bytes(4, "big")]
    assert asked
    announce(world, AT_CLIENT)
    world.tick(ASK_S * (ASK_TIMES + 1))
    assert aborted(world) == 0 and ends_at(world, AT_CLIENT, segment()) == [AT_INGRESS]


def test_session_ends_if_the_new_switch_disconnects_during_a_move() -> None:
    world = up()
    begun(world)
    world.mute.add(C1)
    announce(world, AT_NEW)
    world.disconnect("core1")
    assert aborted(world) == 2


def test_rewriting_site_keeps_entries_at_the_agents_switch() -> None:
    world = up(rewrite="OpenFlow")
    begun(world)
    announce(world, AT_NEW)
    assert led_to(world, AT_NEW, segment()) == "agent1"
    world.tick(LINGER_S + 4 * TICK_S)
    announce(world, AT_CLIENT)
    world.tick(LINGER_S + 4 * TICK_S)
    assert ends_at(world, AT_CLIENT, segment()) == [AT_INGRESS]
    assert ends_at(world, Location(E1, PortNo(5)), segment()) == [AT_INGRESS]


def test_external_switches_keep_entries_at_both_locations() -> None:
    world = up(forwarding="Controller")
    begun(world)
    announce(world, AT_NEW)
    world.tick(LINGER_S + 1.0)
    assert places(world) == {E1, C1} and track(world, C1) == set()


def test_adopted_sessions_follow_their_hosts() -> None:
    old = up()
    begun(old)
    new = World(two_switches("west"), network=old.network, epoch=2, now=old.now + 1.0)
    new.converge()
    assert len(new.engine.state.sessions) == 1 and places(new) == {E1}
    announce(new, AT_NEW)
    assert places(new) == {E1, C1}


def test_host_without_sessions_is_forgotten() -> None:
    world = up()
    session = begun(world)
    world.end(session.uuid)
    world.tick(3.0)
    assert track(world, C1) == {CLIENT}, "track entries remain for the next connection"
    world.tick(FORGET_S + 2 * SWEEP_S, step=0.25)
    assert track(world, C1) == set() and len(world.engine.mobility) == 0


@pytest.mark.parametrize("data", [b"", bytes(14), bytes(60), b"\xff" * 33])
def test_malformed_packets_move_no_host(data: bytes) -> None:
    world = up()
    begun(world)
    cookie = next(e.cookie for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.TRACK)
    world.do(PacketIn(*AT_NEW, cookie, data))
    assert places(world) == {E1}
