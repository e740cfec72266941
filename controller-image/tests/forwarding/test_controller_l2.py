"""Test host learning, and datapaths whose plain traffic the controller forwards."""

from __future__ import annotations

import pytest
from controller_fake import C1, C2, E1, E2
from controller_lab import HOSTS, MACS, document, document_hash
from controller_views import (
    AT_CLIENT,
    AT_INGRESS,
    AT_SERVER,
    CLIENT,
    SERVER,
)
from controller_world import CLIENT_PORT, World, syn_frame
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.forwarding.arp_relay import MAX_PENDING, PENDING_S
from sos_controller.core.openflow.flow_entries import Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import Address, Location, PortNo, parse_address, parse_mac
from sos_controller.core.wire.packets import Arp, build_arp_reply, build_arp_request


def test_hosts_are_learned_at_their_ports_but_not_behind_agents_or_wires(world: World) -> None:
    def arp(where: Location, name: str) -> None:
        mac = parse_mac(MACS[name])
        sender = parse_address(HOSTS[name][1]).to_bytes(4, "big")
        frame = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + sender + bytes(6) + SERVER.to_bytes(4, "big")
        world.do(PacketIn(*where, 0, frame))

    for where, name in ((AT_CLIENT, "client"), (AT_SERVER, "server"), (AT_INGRESS, "agent1"), (Location(E2, PortNo(1)), "client")):
        arp(where, name)
    hosts = world.engine.state.hosts
    assert {h.mac: h.location for h in hosts.all()} == {parse_mac(MACS["client"]): AT_CLIENT, parse_mac(MACS["server"]): AT_SERVER}
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert [dpids for dpids, _ in session.egress_entries] == [(E2,)]
    arp(Location(E1, PortNo(5)), "client")
    assert hosts.by_address(CLIENT).location == Location(E1, PortNo(5))


QUESTION = Arp(request=True, sender_mac=parse_mac(MACS["client"]), sender=CLIENT, target=SERVER)
ANSWER = build_arp_reply(QUESTION, parse_mac(MACS["server"]))


def asked(world: World) -> list[PacketOut]:
    """Return the packet-outs that follow an ARP request from the client for the server."""
    return [
        c for c in world.do(PacketIn(*AT_CLIENT, 0, build_arp_request(QUESTION.sender_mac, CLIENT, SERVER))) if isinstance(c, PacketOut)
    ]


def answered(world: World) -> list[PacketOut]:
    """Return the packet-outs that follow the server's ARP reply at its own switch."""
    return [c for c in world.do(PacketIn(*AT_SERVER, 0, ANSWER)) if isinstance(c, PacketOut)]


def told(where: Location, frame: bytes) -> list[PacketOut]:
    return [PacketOut(where.dpid, PORT_CONTROLLER, (Output(where.port_no),), frame)]


def test_unanswered_arp_request_and_its_answer_are_relayed(world: World) -> None:
    answered(world)
    assert asked(world) == [], "the switches flood the first request"
    assert answered(world) == [], "the switches forward the answer"
    world.tick(1)
    assert asked(world) == told(AT_SERVER, build_arp_request(QUESTION.sender_mac, CLIENT, SERVER))
    assert asked(world) == [], "the relayed request arrives again by another path"
    assert answered(world) == told(AT_CLIENT, ANSWER)
    assert answered(world) == [], "an answer is relayed once"


def test_late_and_unsolicited_answers_are_not_relayed(world: World) -> None:
    answered(world)
    asked(world)
    world.tick(1)
    assert asked(world) != []
    world.tick(PENDING_S)
    assert answered(world) == []
    assert asked(world) == [], "a request after the timeout counts as a first request"


def test_requests_for_unknown_or_departed_hosts_are_not_relayed(world: World) -> None:
    asked(world)
    world.tick(1)
    assert asked(world) == []
    answered(world)
    world.disconnect("edge2")
    world.tick(1)
    assert asked(world) == []


def test_pending_arp_requests_are_bounded(world: World) -> None:
    for number in range(MAX_PENDING + 1):
        world.do(PacketIn(*AT_CLIENT, 0, build_arp_request(QUESTION.sender_mac, CLIENT, Address(SERVER + 1 + number))))
    assert len(world.engine.forwarding.relay) == MAX_PENDING


@pytest.fixture
def external() -> World:
    made = World(document(forwarding="Controller"))
    made.converge()
    return made


def test_external_switches_flood_without_looping(external: World) -> None:
    broadcast = b"\xff" * 6 + parse_mac(MACS["client"]) + b"\x08\x06" + bytes(28)
    out = external.network.walk(AT_CLIENT, broadcast)
    reached = sorted(where for where, _ in out if where.port_no != PORT_CONTROLLER)
    wires = external.network.wires
    expected = sorted(Location(d, PortNo(p)) for d in (E1, E2, C1, C2) for p in range(1, 6) if Location(d, PortNo(p)) not in wires)
    expected.remove(AT_CLIENT)
    assert reached == expected, "the broadcast reaches every edge port once, despite the loop"


def test_external_switches_send_to_learned_hosts_without_flooding(external: World) -> None:
    for where, name in ((AT_CLIENT, "client"), (AT_SERVER, "server")):
        mac = parse_mac(MACS[name])
        sender = parse_address(HOSTS[name][1]).to_bytes(4, "big")
        target = parse_address(HOSTS["server" if name == "client" else "client"][1]).to_bytes(4, "big")
        frame = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + sender + bytes(6) + target
        external.do(PacketIn(*where, 0, frame))
    ping = syn_frame(CLIENT, SERVER, 1, 7, flags=0x10)
    assert external.network.walk(AT_CLIENT, ping) == [(AT_SERVER, ping)]
    answers = [c for c in external.delivered if c.data[12:14] == b"\x08\x06"]
    assert len(answers) == 1 and answers[0].data[:6] == parse_mac(MACS["server"]), "the second request is answered from the host table"
    external.cut("edge1", "core1")
    external.tick(0.1)
    assert external.network.walk(AT_CLIENT, ping) == [(AT_SERVER, ping)], "the other side of the loop carries the packet"


def test_external_switches_redirect_accelerated_connections(external: World) -> None:
    assert external.service() == "Programmed/Programmed"
    external.syn(40000)
    (session,) = external.engine.state.sessions
    assert session.state is Phase.ACTIVE
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert external.network.walk(AT_CLIENT, data) == [(AT_INGRESS, parse_mac(MACS["agent1"]) + data[6:])]


def test_external_switches_release_plain_syns_towards_the_host(external: World) -> None:
    external.delivered.clear()
    external.syn(40000, dport=80)
    (out,) = [c for c in external.delivered if c.data[23:24] == b"\x06"]
    assert PortNo(CLIENT_PORT) not in [a.port_no for a in out.actions] and len(out.actions) >= 2, "flooded: the server is unknown"


def among_nodes(external: str, labelled: str) -> World:
    """Return a world with one external switch; all other switches are nodes.

    All links of the core `labelled` carry only labelled paths. They use ports `p1` and `p2` of the core and one port of each edge.
    """
    number = labelled.removeprefix("core")
    names = {"edge1": [f"p{number}"], "edge2": [f"p{number}"], labelled: ["p1", "p2"]}
    made = document()
    for site in made["sites"]:
        (datapath,) = site["datapaths"]
        mine = names.get(datapath["name"])
        datapath |= {"forwarding": "Controller"} if datapath["name"] == external else {"labelledPorts": mine} if mine else {}
    world = World({**made, "hash": document_hash(made)})
    world.converge()
    return world


def test_links_for_labelled_paths_do_not_block_plain_traffic() -> None:
    """The only plain path crosses the external switch. The switch must not block its ports because of the links for labelled paths."""
    world = among_nodes("core1", "core2")
    broadcast = b"\xff" * 6 + parse_mac(MACS["client"]) + b"\x08\x06" + bytes(28)
    for port, beyond in ((1, E2), (2, E1)):
        out = world.network.walk(Location(C1, PortNo(port)), broadcast)
        assert Location(beyond, PORT_NORMAL) in [where for where, _ in out]


def test_plain_traffic_avoids_links_for_labelled_paths() -> None:
    """Both paths have equal length, and the path listed first would drop plain traffic."""
    world = among_nodes("edge1", "core1")
    mac = parse_mac(MACS["server"])
    world.do(PacketIn(*AT_SERVER, 0, build_arp_request(mac, SERVER, CLIENT)))
    ping = syn_frame(CLIENT, SERVER, 1, 7, flags=0x10)
    assert world.network.walk(AT_CLIENT, ping) == [(Location(C2, PORT_NORMAL), ping)]
    broadcast = b"\xff" * 6 + parse_mac(MACS["client"]) + b"\x08\x06" + bytes(28)
    switches = {where.dpid for where, _ in world.network.walk(AT_CLIENT, broadcast)}
    assert C2 in switches and C1 not in switches


@pytest.mark.parametrize("sender", [Address(0), SERVER], ids=["probe", "announcement"])
def test_arp_probes_and_announcements_are_ignored(sender: Address) -> None:
    """A moved host announces its address. An answer from the controller's outdated record would signal a conflict (RFC 5227, 2.1.1)."""
    for forwarding in ("Node", "Controller"):
        world = World(document(forwarding=forwarding))
        world.converge()
        answered(world)
        claim = build_arp_request(parse_mac("02:00:00:00:00:77"), sender, SERVER)
        world.delivered.clear()
        for _ in range(3):
            world.do(PacketIn(*AT_CLIENT, 0, claim))
            world.tick(1)
        assert not [c for c in world.delivered if c.data[12:14] == b"\x08\x06"]
