"""Tests with switches whose tables are full: a full table costs single services or floods hosts, and the datapath stays in use."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from controller_fake import E1, E2
from controller_lab import document
from controller_views import AT_CLIENT
from controller_world import World, encode
from sos_controller.core import snapshot, table_limits
from sos_controller.core.events import ConfigChanged, EntriesUnreadable, PortChanged, TablesRead
from sos_controller.core.openflow.pipeline import PRIORITY_HOST, TABLE_FORWARD, Kind, cookie_kind
from sos_controller.core.types import DatapathId, Location, PortNo, parse_mac
from sos_controller.files.config import document_hash, parse

AT_SERVER = Location(E2, PortNo(3))
HOSTS = 10_000


def with_services(count: int, forwarding: str = "Controller", **more: Any) -> dict[str, Any]:
    """Return a configuration with services on different server ports. Each has two punt entries."""
    made = document(forwarding=forwarding)
    del made["hash"]
    bulk = made["services"][0]
    ports = [[{"first": 2 * i + 1, "last": 2 * i + 1}, {"first": 20_001 + 2 * i, "last": 20_001 + 2 * i}] for i in range(count)]
    made["services"] = [{**bulk, "id": f"default/s{i:03}", "ports": ports[i], **more} for i in range(count)]
    return {**made, "hash": document_hash(made)}


def arp(number: int) -> bytes:
    mac = b"\x02\x10" + number.to_bytes(4, "big")
    ends = mac + (10 << 24 | 140 + number % 100).to_bytes(4, "big") + bytes(6) + (10 << 24 | 77).to_bytes(4, "big")
    return b"\xff" * 6 + mac + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, 1) + ends


def states(world: World) -> dict[str, str]:
    return {s["id"]: s["reason"] for s in snapshot.status(world.engine, "", "")["services"]}


def messages(world: World) -> dict[str, str]:
    return {s["id"]: s["message"] for s in snapshot.status(world.engine, "", "")["services"]}


def hosts_at(world: World, dpid: DatapathId) -> int:
    return sum(entry.priority == PRIORITY_HOST for entry in world.network.entries(dpid))


def limited(size: int, *, announced: bool, config: dict[str, Any] | None = None) -> World:
    """Return a converged world whose west switch has small tables: announced sizes by table, or one memory for all tables, unannounced."""
    world = World(document(forwarding="Controller") if config is None else config)
    if announced:
        world.table_sizes = {E1: {0: size, 1: size}}
        world.network.sizes = {(E1, 0): size, (E1, 1): size}
    else:
        world.network.sizes = {(E1, None): size}
    world.converge()
    return world


@pytest.mark.parametrize("announced", [True, False])
def test_ten_thousand_hosts_at_a_table_of_100_entries_cost_no_service(announced: bool) -> None:
    world = limited(100, announced=announced)
    seen = set()
    for number in range(HOSTS):
        world.do_packet(AT_SERVER, arp(number))
        if number % 500 == 0:
            world.tick(0.1)
            seen.add((*states(world).values(), world.engine.state.programmer.is_synced(E1)))
    world.tick(10, step=0.1)
    seen.add((*states(world).values(), world.engine.state.programmer.is_synced(E1)))
    assert seen <= {("Programmed", True), ("Programming", True)}, "existing services stay installed while a limit is learned"
    assert states(world) == {"default/bulk": "Programmed"}
    assert world.refused <= (0 if announced else 2)
    world.syn(40000)
    assert world.engine.state.counters["syns", "begun"] == 1


def test_hosts_beyond_the_table_are_flooded_to_their_port() -> None:
    world = limited(100, announced=True)
    for number in range(300):
        world.do_packet(AT_SERVER, arp(number))
    world.tick(0.5)
    assert 90 <= hosts_at(world, E1) < 100 and hosts_at(world, E2) == hosts_at(world, E1), "entries at every switch, or at none"
    assert world.engine.forwarding.flooded() == 302 - hosts_at(world, E1)
    for number in (0, 299):
        frame = b"\x02\x10" + number.to_bytes(4, "big") + parse_mac("02:00:00:00:00:11") + b"\x08\x00" + bytes(46)
        assert [where for where, _ in world.network.walk(AT_CLIENT, frame) if where == AT_SERVER] == [AT_SERVER], "delivered once"
    assert world.refused == 0


def test_flooded_hosts_get_entries_when_others_leave() -> None:
    world = limited(60, announced=True)
    for number in range(100):
        world.do_packet(Location(E2, PortNo(3 if number < 50 else 5)), arp(number))
    world.tick(0.5)
    assert world.engine.forwarding.flooded() > 40
    for port in (3,):
        down = world.engine.state.switches[E2].ports[PortNo(port)]
        world.do(PortChanged(E2, type(down)(down.port_no, down.name, down.mac, False), False))
    world.tick(6)
    assert world.engine.forwarding.flooded() == 0 and len(world.engine.state.hosts) == 50 and world.refused == 0


@pytest.mark.parametrize("announced", [True, False])
def test_services_that_fit_are_programmed_and_the_others_are_table_full(announced: bool) -> None:
    world = limited(100, announced=announced, config=with_services(60))
    for number in range(200):
        world.do_packet(AT_SERVER, arp(number))
    world.tick(30, step=0.1)
    found = list(states(world).values())
    full = found.count("TableFull")
    assert found == ["Programmed"] * (60 - full) + ["TableFull"] * full and 10 < full < 50, "services fit in their order"
    message = messages(world)["default/s059"]
    how = "table 0 takes 100 entries" if announced else "its tables together take 100 entries (learned from a refusal)"
    assert message.startswith(f"datapath edge1: {how}, ") and "are needed" in message
    punts = sum(cookie_kind(entry.cookie) == Kind.PUNT for entry in world.network.entries(E1))
    assert punts == 2 * (60 - full)
    assert world.refused == 0 or not announced


def test_learning_a_limit_is_bounded_and_repeated_after_a_while() -> None:
    world = limited(100, announced=False, config=with_services(60))
    world.tick(30, step=0.1)
    before = world.refused
    world.tick(20, step=0.1)
    assert world.refused == before, "a known limit is not tried again"
    world.network.sizes.clear()
    world.tick(int(table_limits.RELEARN_S), step=0.5)
    assert set(states(world).values()) == {"Programmed"}, "the table has space again"


def test_path_that_does_not_fit_is_table_full_and_not_no_path() -> None:
    world = limited(14, announced=True)
    assert states(world) == {"default/bulk": "TableFull"}
    assert (
        " are left for paths, and " in messages(world)["default/bulk"] or " are left for services, and " in messages(world)["default/bulk"]
    )
    assert world.refused == 0


def test_sessions_beyond_the_table_are_plain_with_the_reason() -> None:
    world = limited(60, announced=True)
    for port in range(40_000, 40_100):
        world.syn(port)
    counters = world.engine.state.counters
    assert counters["syns", "begun"] > 10 and counters["syns", "table-full"] > 10
    assert counters["syns", "begun"] + counters["syns", "table-full"] == 100
    assert world.refused == 0 and states(world) == {"default/bulk": "Programmed"}


@pytest.mark.parametrize("setup", ["Reactive", "Proactive"])
def test_bridge_of_a_node_that_refuses_entries_teaches_its_limit(setup: str) -> None:
    world = World(with_services(60, "Node", setup=setup))
    world.network.sizes = {(E1, 0): 150}
    world.converge()
    world.tick(40, step=0.1)
    found = states(world)
    assert 5 < list(found.values()).count("Programmed") < 55 and set(found.values()) == {"Programmed", "TableFull"}
    before = world.refused
    world.tick(10, step=0.1)
    assert world.refused == before


def test_entry_is_deleted_before_another_takes_its_place_in_a_full_table() -> None:
    world = limited(100, announced=True, config=with_services(60))
    world.tick(5)
    sizes = len([entry for entry in world.network.entries(E1) if entry.table != TABLE_FORWARD])
    changed = with_services(60)
    for service in changed["services"]:
        service["ports"] = [{"first": p["first"] + 1, "last": p["last"] + 1} for p in service["ports"]]
    changed["generation"] = 2
    del changed["hash"]
    world.do(ConfigChanged(parse(encode({**changed, "hash": document_hash(changed)}))))
    world.tick(5)
    assert world.refused == 0 and len([entry for entry in world.network.entries(E1) if entry.table != TABLE_FORWARD]) == sizes


def test_switch_with_too_many_entries_is_table_full_and_read_again_each_minute() -> None:
    world = World(document(forwarding="Controller"))
    world.converge()
    sent: list[object] = []
    world.do(EntriesUnreadable(E1))
    world.unreadable.add(E1)
    world.tick(0.5)
    assert states(world) == {"default/bulk": "TableFull"}
    assert "edge1: has more than 262144 entries of this controller" in messages(world)["default/bulk"]
    before = world.reads[E1]
    world.tick(50, step=0.25)
    assert world.reads[E1] == before and not sent
    world.tick(15, step=0.25)
    assert world.reads[E1] == before + 1
    world.unreadable.clear()
    world.tick(65, step=0.25)
    assert states(world) == {"default/bulk": "Programmed"}


def test_restart_with_a_full_table_keeps_services_programmed() -> None:
    world = limited(100, announced=True, config=with_services(20))
    for number in range(200):
        world.do_packet(AT_SERVER, arp(number))
    world.tick(1)
    again = World(with_services(20), network=world.network, epoch=2, now=world.now + 10)
    again.table_sizes = world.table_sizes
    again.agents = world.agents
    again.connect()
    again.tick(12)
    assert set(states(again).values()) == {"Programmed"} and again.refused == 0


def test_path_is_withdrawn_when_the_table_shrinks_below_it() -> None:
    world = limited(100, announced=True)
    assert states(world) == {"default/bulk": "Programmed"}
    world.do(TablesRead(E1, {0: 10, 1: 100}))
    world.tick(1)
    assert states(world) == {"default/bulk": "TableFull"} and not world.engine.plan.pairs
    assert not any(cookie_kind(entry.cookie) == Kind.PATH for dpid in (E1, E2) for entry in world.network.entries(dpid))
    world.syn(40_000)
    assert not world.engine.state.sessions
    world.do(TablesRead(E1, {0: 100, 1: 100}))
    world.tick(2)
    assert states(world) == {"default/bulk": "Programmed"}
