"""Tests of ageing: silent hosts are asked by ARP, and forgotten if they do not answer."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from controller_fake import E1, E2
from controller_lab import HOSTS, MACS, document
from controller_world import World
from sos_controller.core.forwarding import host_ageing
from sos_controller.core.forwarding.host_ageing import ASK_GAP_S, ASK_TIMES, SILENT_S
from sos_controller.core.openflow.pipeline import PRIORITY_HOST
from sos_controller.core.topology import hosts as hosts_module
from sos_controller.core.topology.hosts import Hosts
from sos_controller.core.types import Address, Location, MacAddress, PortNo, parse_address, parse_mac
from sos_controller.core.wire.packets import Arp, parse_arp

AT_SERVER = Location(E2, PortNo(3))
ASKED_S = ASK_TIMES * ASK_GAP_S + 2
"""Time from the first request to a silent host until it is forgotten, with some margin."""


def arp(mac: MacAddress, address: Address, reply_to: Arp | None = None) -> bytes:
    """Return an ARP request for another address, or the reply to a request."""
    target = reply_to.sender if reply_to is not None else Address(10 << 24 | 77)
    ends = mac + address.to_bytes(4, "big") + bytes(6) + target.to_bytes(4, "big")
    return b"\xff" * 6 + mac + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x800, 6, 4, 1 if reply_to is None else 2) + ends


def made_up(number: int) -> tuple[MacAddress, Address]:
    return MacAddress(b"\x02\x10" + number.to_bytes(4, "big")), Address(10 << 24 | 140 + number % 100)


@pytest.fixture
def external(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world with external switches that has converged, with short times of ageing."""
    monkeypatch.setattr(host_ageing, "SILENT_S", 20.0)
    world = World(document(forwarding="Controller"))
    world.converge()
    yield world


def requests(world: World) -> list[Arp]:
    """Return the ARP requests sent to the server's port."""
    sent = [c for c in world.delivered if (c.dpid, *(a.port_no for a in c.actions if hasattr(a, "port_no"))) == (E2, 3)]
    found = [parse_arp(command.data) for command in sent if command.data[12:14] == b"\x08\x06"]
    return [packet for packet in found if packet is not None and packet.request]


def test_made_up_hosts_are_asked_and_forgotten_with_their_entries(external: World) -> None:
    for number in range(50):
        external.do_packet(AT_SERVER, arp(*made_up(number)))
    assert len(external.engine.state.hosts) == 50
    assert sum(entry.priority == PRIORITY_HOST for entry in external.network.entries(E1)) == 52
    external.tick(19, step=0.25)
    assert len(external.engine.state.hosts) == 50 and not requests(external)
    external.tick(1 + ASKED_S, step=0.25)
    assert len(external.engine.state.hosts) == 0 and len(requests(external)) == 50 * ASK_TIMES
    assert sum(entry.priority == PRIORITY_HOST for entry in external.network.entries(E1)) == 2, "only the agents are left"


def test_request_names_an_agent_of_the_site_as_its_sender(external: World) -> None:
    external.do_packet(AT_SERVER, arp(*made_up(1)))
    external.tick(21, step=0.25)
    sender = {(packet.sender_mac, packet.sender) for packet in requests(external)}
    assert sender == {(parse_mac(MACS["agent2"]), parse_address(HOSTS["agent2"][1]))}


def test_host_that_answers_stays(external: World) -> None:
    silent, answers = made_up(1), made_up(2)
    for mac, address in (silent, answers):
        external.do_packet(AT_SERVER, arp(mac, address))
    for _ in range(8):
        external.delivered.clear()
        external.tick(ASKED_S, step=0.25)
        for packet in requests(external):
            if packet.target == answers[1]:
                external.do_packet(AT_SERVER, arp(*answers, reply_to=packet))
    assert [host.mac for host in external.engine.state.hosts.all()] == [answers[0]]


def test_host_without_an_address_of_its_site_is_forgotten_without_a_request(external: World) -> None:
    external.do_packet(AT_SERVER, arp(made_up(1)[0], Address(192 << 24 | 1)))
    assert len(external.engine.state.hosts) == 1
    external.tick(22, step=0.25)
    assert len(external.engine.state.hosts) == 0 and not requests(external)


def test_silent_host_with_a_session_stays(external: World) -> None:
    client = parse_mac(MACS["client"])
    external.syn(40000)
    external.tick(0.5)
    assert external.engine.state.hosts.by_mac(client) is not None
    external.tick(60, step=0.25)
    assert external.engine.state.sessions and external.engine.state.hosts.by_mac(client) is not None


def test_host_stays_while_no_agent_of_its_site_can_ask(external: World) -> None:
    external.do_packet(AT_SERVER, arp(*made_up(1)))
    external.agents["agent2"].mode = "dead"
    external.tick(60, step=0.25)
    assert len(external.engine.state.hosts) == 1
    external.agents["agent2"].mode = "ready"
    external.tick(30, step=0.25)
    assert len(external.engine.state.hosts) == 0


def test_requests_per_second_are_bounded(external: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_ageing, "MAX_ASKED", 5)
    for number in range(40):
        external.do_packet(AT_SERVER, arp(*made_up(number)))
    external.tick(19.5, step=0.25)
    for _ in range(10):
        before = len(requests(external))
        external.tick(1.0, step=0.25)
        assert len(requests(external)) - before <= 10
    external.tick(60, step=0.25)
    assert len(external.engine.state.hosts) == 0


def test_port_at_its_bound_keeps_its_hosts_and_accepts_others_after_ageing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "MAX_AT_PORT", 4)
    hosts = Hosts()
    macs = [made_up(number)[0] for number in range(6)]
    assert [hosts.learn(mac, Address(0), AT_SERVER, float(at)) for at, mac in enumerate(macs)] == [True] * 4 + [False] * 2
    hosts.learn(macs[0], Address(0), AT_SERVER, 10.0)
    assert [host.mac for host in hosts.silent(3.0)] == macs[1:4], "the longest silent first"
    assert [host.mac for host in hosts.forget([macs[1]])] == [macs[1]]
    assert hosts.learn(macs[5], Address(0), AT_SERVER, 11.0)
    assert {host.mac for host in hosts} == {macs[0], macs[2], macs[3], macs[5]}


def test_ageing_time_is_that_of_bridges() -> None:
    assert SILENT_S == 300
