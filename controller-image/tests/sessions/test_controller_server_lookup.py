"""Test server lookup: ARP requests locate unknown servers, so that the controller selects the agent beside the server."""

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
    """Return and clear the ARP requests for the server."""
    found = [c for c in world.delivered if (arp := parse_arp(c.data)) is not None and arp.request and arp.target == SERVER]
    world.delivered.clear()
    return found


def test_first_connection_sends_an_arp_request_from_the_sites_agent(world: World) -> None:
    """The request has the agent's addresses as sender. A probe could look like an address conflict to hosts (RFC 5227, 2.1.1)."""
    world.delivered.clear()
    world.syn(40000)
    agent = world.agents["agent2"]
    assert questions(world) == [PacketOut(*agent.where, (Output(PORT_NORMAL),), build_arp_request(agent.mac, agent.address, SERVER))]


def test_external_switches_send_the_request_to_host_ports() -> None:
    world = World(document(forwarding="Controller"))
    world.converge()
    world.delivered.clear()
    world.syn(40000)
    (asked,) = questions(world)
    assert asked.dpid == E2 and Output(AT_SERVER.port_no) in asked.actions
    ports = [action.port_no for action in asked.actions if isinstance(action, Output)]
    assert ports and all(world.engine.state.is_edge(Location(asked.dpid, port)) for port in ports), "no request is sent to other switches"
    assert (arp := parse_arp(asked.data)) is not None and arp.sender == world.agents["agent2"].address


def test_lookup_needs_an_agent_at_the_site(world: World) -> None:
    world.delivered.clear()
    ServerLookup(world.engine.state).look_for("core1", SERVER)
    assert not questions(world)


def test_lookup_repeats_after_a_second_until_the_server_is_known(world: World) -> None:
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


def test_pending_lookups_are_bounded(world: World) -> None:
    lookup = ServerLookup(world.engine.state)
    for number in range(MAX_ASKED + 10):
        lookup.look_for("east", Address(SERVER + 1 + number))
    assert len(lookup) == MAX_ASKED
