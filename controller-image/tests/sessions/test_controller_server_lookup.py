"""Unknown servers are looked up by ARP, so that the agent beside them is chosen."""

from __future__ import annotations

from controller_fake import E2
from controller_lab import MACS, document
from controller_views import AT_SERVER, CLIENT, SERVER
from controller_world import World
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_NORMAL
from sos_controller.core.sessions.server_lookup import ASK_S, MAX_ASKED, ServerLookup
from sos_controller.core.types import Address, Location, parse_mac
from sos_controller.core.wire.packets import build_arp_request, parse_arp


def questions(world: World) -> list[PacketOut]:
    """ARP requests for the server."""
    found = [c for c in world.delivered if (arp := parse_arp(c.data)) is not None and arp.request and arp.target == SERVER]
    world.delivered.clear()
    return found


def test_the_first_connection_to_a_server_asks_in_the_name_of_an_agent_of_its_site(world: World) -> None:
    """The question is one that the agent could have asked: no probe, so that no host takes it for a conflict (RFC 5227, 2.1.1)."""
    world.delivered.clear()
    world.syn(40000)
    agent = world.agents["agent2"]
    assert questions(world) == [PacketOut(*agent.where, (Output(PORT_NORMAL),), build_arp_request(agent.mac, agent.address, SERVER))]


def test_where_the_controller_forwards_the_question_goes_to_the_ports_of_hosts() -> None:
    world = World(document(forwarding="Controller"))
    world.converge()
    world.delivered.clear()
    world.syn(40000)
    (asked,) = questions(world)
    assert asked.dpid == E2 and Output(AT_SERVER.port_no) in asked.actions
    ports = [action.port_no for action in asked.actions if isinstance(action, Output)]
    assert ports and all(world.engine.state.is_edge(Location(asked.dpid, port)) for port in ports), "not towards other switches"
    assert (arp := parse_arp(asked.data)) is not None and arp.sender == world.agents["agent2"].address


def test_no_lookup_without_an_agent_at_the_site(world: World) -> None:
    world.delivered.clear()
    ServerLookup(world.engine.state).look_for("core1", SERVER)
    assert not questions(world)


def test_it_asks_again_only_after_a_second_and_no_more_once_it_knows(world: World) -> None:
    world.syn(40000)
    world.delivered.clear()
    world.syn(40001)
    assert not questions(world)
    world.tick(ASK_S)
    world.syn(40002)
    assert len(questions(world)) == 1
    world.do(PacketIn(*AT_SERVER, 0, build_arp_request(parse_mac(MACS["server"]), SERVER, CLIENT)))
    world.tick(ASK_S)
    world.syn(40003)
    assert not questions(world)


def test_what_was_asked_for_is_bounded(world: World) -> None:
    lookup = ServerLookup(world.engine.state)
    for number in range(MAX_ASKED + 10):
        lookup.look_for("east", Address(SERVER + 1 + number))
    assert len(lookup) == MAX_ASKED
