"""Test sites whose switches rewrite addresses and ports (thesis, tables 2 and 6).

Hosts see each other's addresses, and agents see their own addresses.
"""

from __future__ import annotations

from typing import Any

import pytest
from controller_fake import rewritten
from controller_lab import HOSTS, MACS, document, document_hash
from controller_world import CLIENT_PORT, EGRESS_PORT, INGRESS_PORT, World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.commands import PacketOut
from sos_controller.core.events import PacketIn
from sos_controller.core.openflow.flow_entries import FlowEntry, Output
from sos_controller.core.openflow.pipeline import PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.sessions import redirect
from sos_controller.core.types import Location, PortNo, flow_key, parse_address, parse_mac

CLIENT, SERVER, INGRESS, EGRESS = (parse_address(HOSTS[name][1]) for name in ("client", "server", "agent1", "agent2"))
REDIRECT_PORT = 9877
SPORT, DPORT = 40000, 5001


def config(*sites: str, generation: int = 1) -> dict[str, Any]:
    made = document(generation)
    for site in made["sites"]:
        site["rewrite"] = "OpenFlow" if site["name"] in sites else "Transparent"
    del made["hash"]
    return {**made, "hash": document_hash(made)}


def up(*sites: str, **more: Any) -> World:
    world = World(config(*sites), **more)
    world.converge()
    assert world.service() == "Programmed/Programmed"
    return world


def addresses(frame: bytes) -> tuple[int, int, int, int]:
    number = int.from_bytes
    return number(frame[26:30], "big"), number(frame[30:34], "big"), number(frame[34:36], "big"), number(frame[36:38], "big")


def sent(world: World, at: Location, source: int, target: int, ports: tuple[int, int], mac: str) -> tuple[Location, bytes]:
    """Return the output port and frame of a segment without SYN."""
    (found,) = world.network.walk(at, syn_frame(source, target, *ports, flags=0x10, mac=mac))
    return found


def begin(world: World, sport: int = SPORT, dport: int = DPORT, server: int = SERVER) -> list[bytes]:
    """Send a client's SYN, and return the frames that arrive at the ingress agent."""
    frame = syn_frame(CLIENT, server, sport, dport)
    world.delivered.clear()
    world.do(PacketIn(world.west, PortNo(CLIENT_PORT), world.punt_cookie, frame))
    world.tick(0.1)
    at = (world.west, PortNo(INGRESS_PORT))
    return [arrived(command) for command in world.delivered if is_tcp(command.data) and (command.dpid, out_port(command)) == at]


def is_tcp(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\x00" and frame[23] == 6


def out_port(command: PacketOut) -> int:
    return next(action.port_no for action in command.actions if isinstance(action, Output))


def arrived(command: PacketOut) -> bytes:
    frame = command.data
    for action in command.actions:
        if not isinstance(action, Output):
            frame = rewritten(frame, action)
    return frame


@pytest.mark.parametrize("sites", [("west",), ("east",), ("west", "east")])
def test_hosts_see_each_other_and_agents_see_their_own_addresses(sites: tuple[str, ...]) -> None:
    world = up(*sites)
    (syn,) = begin(world)
    ingress, egress = "west" in sites, "east" in sites
    agent_end = (INGRESS, REDIRECT_PORT) if ingress else (SERVER, DPORT)
    assert syn[:6] == parse_mac(MACS["agent1"]) and addresses(syn) == (CLIENT, agent_end[0], SPORT, agent_end[1])
    where, frame = sent(world, Location(world.west, PortNo(CLIENT_PORT)), CLIENT, SERVER, (SPORT, DPORT), "client")
    assert where == Location(world.west, PortNo(INGRESS_PORT)) and addresses(frame) == addresses(syn)
    where, frame = sent(world, where, agent_end[0], CLIENT, (agent_end[1], SPORT), "agent1")
    assert where.port_no == PORT_NORMAL and addresses(frame) == (SERVER, CLIENT, DPORT, SPORT)
    local = EGRESS if egress else CLIENT
    where, frame = sent(world, Location(world.east, PortNo(EGRESS_PORT)), local, SERVER, (SPORT, DPORT), "agent2")
    assert where.port_no == PORT_NORMAL and addresses(frame) == (CLIENT, SERVER, SPORT, DPORT), "the last hop (table 6)"
    where, frame = sent(world, Location(world.east, PortNo(CLIENT_PORT)), SERVER, CLIENT, (DPORT, SPORT), "server")
    assert where == Location(world.east, PortNo(EGRESS_PORT)) and addresses(frame) == (SERVER, local, DPORT, SPORT)


def test_client_port_has_one_session_at_a_rewriting_agent() -> None:
    world, other = up("west", "east"), parse_address("10.0.0.140")
    assert begin(world) and not begin(world, server=other) and not begin(world, dport=DPORT + 1)
    assert world.engine.state.counters["syns", "port-taken"] == 2
    assert begin(world, sport=SPORT + 1, server=other)
    transparent = up()
    assert begin(transparent) and begin(transparent, server=other)


def test_egress_agent_reuses_a_client_port_to_another_server() -> None:
    world, other = up("east"), parse_address("10.0.0.140")
    assert begin(world) and begin(world, server=other)


def test_end_of_a_rewritten_session_removes_all_its_entries() -> None:
    world = up("west", "east")
    before = {dpid: set(table) for dpid, table in world.network.tables.items()}
    begin(world)
    (session,) = world.engine.state.sessions
    assert len(session.ingress_entries) == len(session.egress_entries) == 2
    world.end(session.uuid)
    world.tick(2)
    assert {dpid: set(table) for dpid, table in world.network.tables.items()} == before
    assert begin(world), "the port is free again"


def test_restarted_controller_adopts_rewritten_sessions() -> None:
    world = up("west", "east")
    begin(world)
    (session,) = world.engine.state.sessions
    entries = session_entries(world)
    again = World(config("west", "east"), network=world.network, epoch=2, now=world.now + 1)
    for name, agent in world.agents.items():
        again.agents[name] = agent
    again.converge()
    again.tick(12)
    assert session_entries(again) == entries
    (adopted,) = again.engine.state.sessions
    assert (adopted.key, adopted.ingress, adopted.egress, adopted.uuid) == (session.key, session.ingress, session.egress, session.uuid)
    assert len(adopted.ingress_entries) == len(adopted.egress_entries) == 2
    assert not begin(again, dport=DPORT + 1), "the session's port is in use"
    again.end(session.uuid)
    again.tick(2)
    assert not session_entries(again)


def session_entries(world: World) -> list[FlowEntry]:
    found = [entry for dpid in world.network.tables for entry in world.network.entries(dpid)]
    return sorted((entry for entry in found if cookie_kind(entry.cookie) == Kind.REDIRECT), key=repr)


def test_packets_are_rewritten_at_the_agents_switch() -> None:
    world = up("west")
    agent = next(a for a in world.engine.state.agents.all() if a.beacon.address == INGRESS)
    key = flow_key(CLIENT, SERVER, SPORT, DPORT)
    placed = redirect.entries(key, redirect.Leg(agent, True, REDIRECT_PORT), (world.east,), 1)
    assert sorted(dpids for dpids, _ in placed) == sorted(((world.west,), (world.west,), (world.east,)))
    (elsewhere,) = [entry for dpids, entry in placed if dpids == (world.east,)]
    (alone,) = redirect.entries(key, redirect.Leg(agent, True, 0), (world.east,), 1)
    assert elsewhere == alone[1]


@pytest.fixture(scope="module")
def idle() -> World:
    return up("west")


@given(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 65535), st.integers(1, 65535)), st.booleans(),
    st.sampled_from([0, REDIRECT_PORT]),
)  # fmt: skip
def test_entries_identify_their_session(idle: World, ends: tuple[int, int, int, int], ingress: bool, port: int) -> None:
    agent = idle.engine.state.agents.all()[0]
    leg = redirect.Leg(agent, ingress, port if ingress or not port else ends[2])
    for _, entry in redirect.entries(flow_key(*ends), leg, (idle.west, idle.east), 7):
        found = redirect.parse(entry)
        assert found is not None and (found.key, found.ingress) == (flow_key(*ends), ingress)
        assert found.mac in (None, agent.beacon.mac)
