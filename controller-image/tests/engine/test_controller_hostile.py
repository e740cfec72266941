"""Test that forged, replayed or misplaced beacons, orders and probes are rejected."""

from __future__ import annotations

import pytest
from controller_fake import E1, E2
from controller_lab import document, document_hash
from controller_views import (
    AT_CLIENT,
    AT_SERVER,
)
from controller_world import World, encode
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import ConfigChanged, DatapathDown, DatapathUp, PacketIn, PortChanged, Rejected
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.state import MAX_PORTS
from sos_controller.core.tables.agents import MAX_AGENTS, Agents
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import AgentId, DatapathId, Port, PortNo, parse_address
from sos_controller.core.wire.keys import KeyRing
from sos_controller.core.wire.order import OrderType
from sos_controller.files.config import parse


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"site_id": 2}, "key"),
        ({"key_id": 9}, "key"),
        ({"address": parse_address("192.0.2.1")}, "subnet"),
        ({"sequence": 1}, "replay"),
        ({"boot_id": 5}, "replay"),
    ],
)
def test_bad_beacons_are_dropped_and_counted(world: World, change: dict, reason: str) -> None:
    agent = world.agents["agent1"]
    if change.get("site_id") == 2:
        change = {**change, "key_id": 3}
    world.do(PacketIn(*agent.where, 0, agent.beacon(world.wall(world.now), **change)))
    assert world.engine.state.counters["beacons_dropped", reason] == 1


def test_beacons_from_the_wrong_port_or_site_are_dropped(world: World) -> None:
    agent = world.agents["agent1"]
    world.do(PacketIn(E2, PortNo(3), 0, agent.beacon(world.wall(world.now))))
    world.do(PacketIn(E1, PortNo(1), 0, agent.beacon(world.wall(world.now))))
    broken = bytearray(agent.beacon(world.wall(world.now)))
    broken[-1] ^= 1
    world.do(PacketIn(*agent.where, 0, bytes(broken)))
    counters = world.engine.state.counters
    assert [counters["beacons_dropped", r] for r in ("site", "port", "tag")] == [1, 1, 1]


def test_new_boot_id_with_an_old_time_is_dropped(world: World) -> None:
    agent = world.agents["agent1"]
    world.do(PacketIn(*agent.where, 0, agent.beacon(world.wall(world.now) - 40_000, boot_id=agent.boot + 1)))
    assert world.engine.state.counters["beacons_dropped", "replay"] == 1


def test_forged_and_replayed_orders_are_dropped(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    ((dpid, port, frame),) = world.ended(session.uuid, ["agent1"])
    broken = bytearray(frame)
    broken[-1] ^= 1
    world.do(PacketIn(dpid, port, 0, bytes(broken)))
    assert session.state is Phase.ACTIVE and world.engine.state.counters["orders_dropped", "tag"] == 1
    world.do(PacketIn(dpid, port, 0, frame))
    world.do(PacketIn(dpid, port, 0, frame))
    assert session.state is Phase.ENDING and world.engine.state.counters["orders_dropped", "replay"] == 1


def test_hosts_cannot_forge_links(world: World) -> None:
    """A host may forge a probe, or record one and replay it later or from another port."""
    links = world.engine.state.topology.links()
    world.delivered.clear()
    world.tick(1.1)
    recorded = next(c.data for c in world.delivered if c.data[12:14] == b"\x88\xcc" and (c.dpid, c.actions[0].port_no) == AT_CLIENT)
    forged = bytearray(recorded)
    forged[-20] ^= 1
    world.do(PacketIn(*AT_SERVER, 0, bytes(forged)))
    assert not world.engine.state.topology.is_inter_switch(AT_SERVER)
    world.do(PacketIn(*AT_SERVER, 0, recorded))
    assert world.engine.state.topology.links() == links, "a link needs probes in both directions"
    world.tick(5)
    world.do(PacketIn(*AT_SERVER, 0, recorded))
    assert not world.engine.state.topology.is_inter_switch(AT_SERVER), "old probes are ignored"


def test_unclaimed_switches_that_join_and_leave_cause_no_work(world: World) -> None:
    """Otherwise any host that reaches the OpenFlow port could trigger probes of all links and replanning of all entries at any rate."""
    world.tick(0.1)
    world.delivered.clear()
    stranger, port = DatapathId(0xFF), Port(PortNo(1), "p1", bytes(6), True)
    for event in (DatapathUp(stranger, (port,)), PortChanged(stranger, port, False), Rejected(stranger, 7), DatapathDown(stranger)):
        world.do(event)
        assert not world.engine.state.dirty, event
    world.tick(0.05)
    assert not world.delivered and not world.engine.state.counters["rejected", "00000000000000ff"]
    assert [n.data["state"] for n in world.notices if n.data.get("dpid") == "00000000000000ff"] == ["connected", "disconnected"]


def test_an_unclaimed_switch_cannot_fill_memory_with_ports(world: World) -> None:
    stranger = DatapathId(0xFF)
    world.do(DatapathUp(stranger, ()))
    for port_no in range(1, MAX_PORTS + 100):
        world.do(PortChanged(stranger, Port(PortNo(port_no), "p", bytes(6), True), False))
    switch = world.engine.state.switches[stranger]
    assert (len(switch.ports), len(switch.up_since)) == (MAX_PORTS, MAX_PORTS)
    world.do(PortChanged(stranger, Port(PortNo(7), "p", bytes(6), True), True))
    assert (len(switch.ports), len(switch.up_since)) == (MAX_PORTS - 1, MAX_PORTS - 1)


def test_records_of_departed_senders_are_replaced() -> None:
    """Nodes join and leave. A sender's record is dropped only when its recorded messages are too old to be accepted."""
    agents, wall = Agents(KeyRing()), 1_774_000_000_000

    def new(number: int, time_ms: int, wall_ms: int) -> bool:
        return agents.accept_order(AgentId(number.to_bytes(16)), 1, 1, time_ms, wall_ms)

    assert all(new(number, wall, wall) for number in range(MAX_AGENTS))
    assert not new(MAX_AGENTS, wall + 60_000, wall + 60_000), "the table is full"
    assert new(MAX_AGENTS, wall + 60_001, wall + 60_001)
    assert not new(0, wall, wall + 60_001), "the record is dropped, and the message is too old"


@pytest.mark.parametrize("cut", [0, 1, 40, 200])
def test_orders_from_host_ports_are_ignored(world: World, cut: int) -> None:
    frame = world.agents["agent1"].order(OrderType.READY, b"u" * 16, world.wall(world.now))[: -cut or None]
    held = [dict(agent.held) for agent in world.agents.values()]
    world.do(PacketIn(E1, PortNo(3), world.punt_cookie, frame))
    assert [agent.held for agent in world.agents.values()] == held and len(world.engine.state.sessions) == 0


def declared() -> World:
    """A world whose switches declare the ports that lead to other switches: not those of the hosts."""
    made = document()
    for site in made["sites"]:
        for datapath in site["datapaths"]:
            datapath["linkPorts"] = ["p1", "p2"]
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    return world


def relay(world: World, seconds: float) -> None:
    """Two hosts of different switches exchange all frames that they receive, so the probes of one port arrive at the other."""
    for _ in range(int(seconds / 0.1)):
        world.delivered.clear()
        world.tick(0.1)
        sent = [c for c in world.delivered if isinstance(c, PacketOut)]
        for here, there in ((AT_CLIENT, AT_SERVER), (AT_SERVER, AT_CLIENT)):
            for frame in [c.data for c in sent if c.dpid == here.dpid and Output(here.port_no) in c.actions]:
                world.do(PacketIn(*there, 0, frame))


def test_hosts_that_relay_probes_become_a_link_only_where_no_port_is_declared(world: World) -> None:
    """The undeclared case shows that the attack works: the hosts would get all packets of a path."""
    relay(world, 3)
    assert world.engine.state.topology.is_inter_switch(AT_CLIENT)
    guarded = declared()
    links = guarded.engine.state.topology.links()
    assert links and guarded.service() == "Programmed/Programmed"
    relay(guarded, 3)
    assert guarded.engine.state.topology.links() == links
    assert not guarded.engine.state.topology.is_inter_switch(AT_CLIENT)
    assert not guarded.engine.state.counters["probes", "undeclared"], "hosts never see a probe"
    guarded.syn(40000)
    assert len(guarded.engine.state.sessions) == 1


def test_a_probe_of_another_port_at_a_hosts_port_is_counted_and_reported_once() -> None:
    world = declared()
    links = world.engine.state.topology.links()
    for _ in range(3):
        world.delivered.clear()
        world.tick(1.1)
        probe = next(c for c in world.delivered if isinstance(c, PacketOut) and c.data[12:14] == b"\x88\xcc" and c.dpid != E1)
        world.do(PacketIn(*AT_CLIENT, 0, probe.data))
    assert world.engine.state.topology.links() == links and not world.engine.state.topology.is_inter_switch(AT_CLIENT)
    assert world.engine.state.counters["probes", "undeclared"] == 3
    (said,) = [notice.data for notice in world.notices if notice.kind == "undeclared-link"]
    assert (said["dpid"], said["port"]) == (f"{AT_CLIENT.dpid:016x}", f"p{AT_CLIENT.port_no}")


def test_links_at_ports_that_are_no_longer_declared_expire() -> None:
    world = declared()
    made = document(generation=2)
    for site in made["sites"]:
        site["datapaths"][0]["linkPorts"] = []
    world.do(ConfigChanged(parse(encode({**made, "hash": document_hash(made)}))))
    world.tick(4.5)
    assert not world.engine.state.topology.links()
    assert world.service() != "Programmed/Programmed"
