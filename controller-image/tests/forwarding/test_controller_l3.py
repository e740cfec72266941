"""Test routed sites: switches answer ARP for the gateway, hosts reach each other, and silent destinations cause little work."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from controller_lab import MACS, SWITCHES, document, document_hash
from controller_world import CLIENT_PORT, World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import Apply, PacketOut
from sos_controller.core.events import PacketIn, Tick
from sos_controller.core.forwarding import l3
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import UNKNOWN, SetEthDst
from sos_controller.core.openflow.pipeline import GATEWAY_MAC, PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.types import DatapathId, Location, PortNo, parse_address, parse_mac
from sos_controller.core.wire import packets

CLIENT, SERVER, SILENT = parse_address("10.1.0.11"), parse_address("10.2.0.11"), parse_address("10.2.0.99")
GATEWAYS = {"west": parse_address("10.1.0.1"), "east": parse_address("10.2.0.1")}
CLIENT_MAC, SERVER_MAC = parse_mac(MACS["client"]), parse_mac(MACS["server"])
UDP = 17


def config() -> dict[str, Any]:
    made = document(services=False)
    for site, subnet in (("west", "10.1.0"), ("east", "10.2.0")):
        entry = next(s for s in made["sites"] if s["name"] == site)
        entry |= {"prefixes": [f"{subnet}.0/24"], "subnet": f"{subnet}.0/24", "gateway": f"{subnet}.1", "agents": []}
    del made["hash"]
    return {**made, "hash": document_hash(made)}


class Sites(World):
    """World in which only the server answers ARP, unless `answers` is false."""

    def __init__(self, made: dict[str, Any] | None = None, **more: Any) -> None:
        self.answers = True
        self.asked = 0
        super().__init__(made if made is not None else config(), **more)
        for agent in self.agents.values():
            agent.mode = "dead"

    def _packet_out(self, command: PacketOut) -> None:
        super()._packet_out(command)
        arp = packets.parse_arp(command.data)
        if arp is not None and arp.request and command.dpid == self.east:
            self.asked += 1
            if self.answers and arp.target == SERVER:
                self.queue.append(PacketIn(self.east, PortNo(CLIENT_PORT), 0, packets.build_arp_reply(arp, SERVER_MAC)))

    def up(self) -> Sites:
        self.connect()
        self.tick(4)
        return self

    def send(self, target: int, source: int = CLIENT, flags: int = 2, at: DatapathId | None = None) -> list[tuple[int, bytes]]:
        """Send a host's packet to its gateway. Return the ports and frames that leave, including packets that the controller sends."""
        here = Location(self.west if at is None else at, PortNo(CLIENT_PORT))
        frame = GATEWAY_MAC + CLIENT_MAC + syn_frame(source, target, 40000, 80, flags=flags)[12:]
        out = self.network.walk(here, frame)
        if [where.port_no for where, _ in out] != [PORT_CONTROLLER]:
            return [(where.port_no, data) for where, data in out]
        entry = self.network._lookup(here, 1, frame)
        assert entry is not None and cookie_kind(entry.cookie) == Kind.ROUTE
        self.delivered.clear()
        self.do(PacketIn(here.dpid, here.port_no, entry.cookie, frame))
        return self.sent()

    def sent(self) -> list[tuple[int, bytes]]:
        return [(PORT_NORMAL, command.data) for command in self.delivered if command.data[12:14] == b"\x08\x00"]

    def ask(self, at: DatapathId, target: int) -> packets.Arp | None:
        """Return the switch's answer to a host's ARP request, without the controller. Check the MAC addresses of the frame."""
        request = packets.build_arp_request(CLIENT_MAC, CLIENT, target)
        ((where, frame),) = self.network.walk(Location(at, PortNo(CLIENT_PORT)), request)
        if where.port_no == PORT_NORMAL:
            assert frame == request
            return None
        told = packets.parse_arp(frame)
        assert where.port_no == CLIENT_PORT and told is not None and frame[:12] == CLIENT_MAC + told.sender_mac
        return told


def test_switches_answer_for_the_gateway_of_their_site() -> None:
    world = Sites().up()
    world.network.expire(world.now + 60)
    for at, site, other in ((world.west, "west", "east"), (world.east, "east", "west")):
        gateway = GATEWAYS[site]
        assert world.ask(at, gateway) == packets.Arp(False, GATEWAY_MAC, gateway, CLIENT)
        assert world.ask(at, GATEWAYS[other]) is None and world.ask(at, SERVER) is None
    assert not [c for c in world.delivered if packets.parse_arp(c.data) is not None], "the controller sends no second answer"


def test_first_packet_resolves_its_host_and_later_packets_bypass_the_controller() -> None:
    world = Sites().up()
    assert world.send(SERVER) == []
    world.tick(0.3)
    ((port, frame),) = world.sent()
    assert port == PORT_NORMAL and frame[:6] == GATEWAY_MAC, "the packet-out's actions rewrite the frame"
    for flags in (2, 0x10):
        ((port, frame),) = world.send(SERVER, flags=flags)
        assert (port, frame[:12], frame[22]) == (PORT_NORMAL, SERVER_MAC + CLIENT_MAC, 63)


@pytest.mark.parametrize("answers", [True, False])
def test_routes_to_hosts_behind_a_disconnected_switch_stay_until_checked(answers: bool) -> None:
    """The disconnected switch keeps forwarding."""
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    world.disconnect("edge2")
    for _ in range(3):
        world.tick(10, step=0.1)
        ((port, frame),) = world.send(SERVER)
        assert (port, frame[:6]) == (PORT_NORMAL, SERVER_MAC)
    world.answers = answers
    world.connect(["edge2"])
    world.tick(12, step=0.1)
    assert [frame[:6] for _, frame in world.send(SERVER)] == [SERVER_MAC] * answers
    assert not world.engine.routing._presumed


def test_packets_to_a_silent_host_are_dropped_between_arp_requests() -> None:
    world = Sites().up()
    assert world.send(SILENT) == []
    asked = world.asked
    assert asked >= 1 and world.send(SILENT) == [], "an entry drops further packets"
    assert world.asked == asked
    world.now += l3.QUIET_S + 0.1
    world.network.expire(world.now)
    world.tick()
    assert world.send(SILENT) == [] and world.asked > asked
    world.tick(l3.HELD_S + 1)
    assert world.engine.state.counters["routed", "unreachable"] == 2
    assert not [e for e in world.network.entries(world.west) if e.priority == 800]


def test_held_packets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Sites().up()
    for number in range(l3.MAX_HELD + 50):
        world.send(parse_address("10.2.0.0") + number % 200 + 20)
        world.network.expire(world.now + 2)
    assert len(world.engine.routing._held) == l3.MAX_HELD
    monkeypatch.setattr(l3, "MAX_ROUTES", 3)
    for number in range(5):
        world.engine.routing._want(world.west, SERVER + number, SERVER_MAC)
    assert len(world.engine.routing._wanted) == 3


def test_known_hosts_stay_reachable_while_the_controller_is_dead() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    world.network.expire(world.now + 6)
    assert [port for port, _ in world.send(SERVER, flags=0x10)] == [PORT_NORMAL]
    here = Location(world.west, PortNo(CLIENT_PORT))
    ((where, frame),) = world.network.walk(here, GATEWAY_MAC + CLIENT_MAC + syn_frame(CLIENT, SILENT, 1, 2)[12:])
    assert (where.port_no, frame[:6]) == (PORT_NORMAL, GATEWAY_MAC), "no host has that address"


def successor(world: Sites, answers: bool = True) -> Sites:
    """Return a controller that replaces the first controller after a crash."""
    again = Sites(network=world.network, epoch=2, now=world.now + 3)
    again.answers = answers
    again.connect()
    return again


def onward(world: Sites) -> list[bytes]:
    """Return the destination MAC addresses of the routes at the western switch."""
    found = [e for e in world.network.entries(world.west) if e.priority == pipeline.PRIORITY_ROUTE]
    return [a.mac for e in found for a in e.actions if isinstance(a, SetEthDst)]


def test_successor_keeps_routes_and_checks_their_hosts() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    again = successor(world)
    for _ in range(40):
        assert onward(again) == [SERVER_MAC]
        again.tick(0.5)
    assert again.asked == 1 and again.engine.state.hosts.by_address(SERVER) is not None
    assert not again.engine.routing._presumed and not again.engine.routing._unconfirmed
    assert [port for port, _ in again.send(SERVER, flags=0x10)] == [PORT_NORMAL]


def test_successor_removes_the_route_of_a_silent_host() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    again = successor(world, answers=False)
    again.tick(l3.CONFIRM_AFTER_S)
    assert onward(again) == [SERVER_MAC]
    again.tick(l3.CONFIRM_TIMES * l3.CONFIRM_GAP_S + 1)
    assert onward(again) == [] and again.asked == l3.CONFIRM_TIMES
    assert not again.engine.routing._presumed


def test_adoption_drops_entries_with_unknown_actions() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    strange = next(e for e in world.network.entries(world.west) if e.priority == pipeline.PRIORITY_ROUTE)
    match = msgspec.structs.replace(strange.match, ipv4_dst=(SILENT, 0xFFFFFFFF))
    strange = msgspec.structs.replace(strange, match=match, actions=(UNKNOWN, *strange.actions))
    world.network.apply(Apply(world.west, (strange,), (), 0, False), world.now)
    again = successor(world)
    assert strange.key not in {e.key for e in again.network.entries(world.west)}
    assert onward(again) == [SERVER_MAC]


def test_host_behind_a_missing_switch_does_not_count_as_silent() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    again = Sites(network=world.network, epoch=2, now=world.now + 3)
    again.connect([name for name in SWITCHES if SWITCHES[name] != again.east])
    again.tick(l3.CONFIRM_AFTER_S + 5 * l3.CONFIRM_TIMES * l3.CONFIRM_GAP_S)
    assert onward(again) == [SERVER_MAC] and again.asked == 0
    again.connect()
    again.tick(l3.CONFIRM_AFTER_S + 1)
    assert onward(again) == [SERVER_MAC] and again.asked == 1
    assert not again.engine.routing._presumed


def test_many_routes_are_confirmed_a_few_at_a_time() -> None:
    world = Sites().up()
    for number in range(3 * l3.MAX_CONFIRMED):
        world.engine.routing._want(world.west, SILENT + number, SERVER_MAC)
        world.engine.state.hosts.learn(bytes([2, 0, 0, 1, number >> 8, number & 255]), SILENT + number, Location(world.east, PortNo(3)), 0)
    world.tick(1)
    again = successor(world, answers=False)
    again.tick(l3.CONFIRM_AFTER_S - 0.5)
    most = 0
    for _ in range(20):
        before = again.asked
        again.now += l3.CHECK_S
        again.do(Tick(again.wall(again.now)))
        most = max(most, again.asked - before)
    assert 0 < most <= l3.MAX_CONFIRMED
    again.tick(20)
    assert onward(again) == []


def test_changed_mac_address_of_a_host_updates_its_route() -> None:
    world = Sites().up()
    world.send(SERVER)
    world.tick(0.3)
    other = parse_mac("02:00:00:00:99:01")
    said = packets.Arp(True, other, SERVER, GATEWAYS["east"])
    world.do(PacketIn(world.east, PortNo(CLIENT_PORT), 0, packets.build_arp_request(other, said.sender, said.target)))
    world.tick(1)
    ((_, frame),) = world.send(SERVER, flags=0x10)
    assert frame[:6] == other


def test_a_single_site_with_a_gateway_is_not_routed() -> None:
    made = config()
    next(s for s in made["sites"] if s["name"] == "east")["gateway"] = None
    del made["hash"]
    world = Sites({**made, "hash": document_hash(made)}).up()
    assert world.ask(world.west, GATEWAYS["west"]) is None
    assert not [e for dpid in world.network.tables for e in world.network.entries(dpid) if cookie_kind(e.cookie) == Kind.ROUTE]


@pytest.fixture(scope="module")
def idle() -> Sites:
    return Sites().up()


@given(st.binary(max_size=80))
def test_any_bytes_for_the_gateway_are_no_bug(idle: Sites, data: bytes) -> None:
    idle.do(PacketIn(idle.west, PortNo(CLIENT_PORT), 0x534F01010B010000, GATEWAY_MAC + data))
    assert not idle.engine.state.counters["bugs", ""]


@given(st.binary(max_size=60), st.booleans())
def test_partial_udp_checksum_is_completed_and_a_complete_one_kept(payload: bytes, unfinished: bool) -> None:
    udp = struct.pack("!HHHH", 1000, 2000, 8 + len(payload), 0) + payload
    pseudo = struct.pack("!IIHH", CLIENT, SERVER, UDP, len(udp))
    right = ~total(pseudo + udp) & 0xFFFF
    begun = total(pseudo) if unfinished else right
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, UDP, 0, CLIENT, SERVER)
    frame = GATEWAY_MAC + CLIENT_MAC + b"\x08\x00" + ip + udp[:6] + begun.to_bytes(2, "big") + udp[8:]
    done = packets.complete_checksum(frame)
    assert done[:40] == frame[:40] and done[42:] == frame[42:]
    if begun % 0xFFFF != right % 0xFFFF or not unfinished:
        assert int.from_bytes(done[40:42], "big") % 0xFFFF == right % 0xFFFF


def total(data: bytes) -> int:
    found = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2))
    while found >> 16:
        found = (found & 0xFFFF) + (found >> 16)
    return found
