"""Test the outcomes of a SYN: set-up, refusal, plain TCP. Test packets check the resulting tables."""

from __future__ import annotations

import pytest
from controller_fake import E1, E2, FakeNetwork
from controller_lab import AGENTS, HOSTS, MACS, document
from controller_views import (
    AT_CLIENT,
    AT_EGRESS,
    AT_INGRESS,
    AT_SERVER,
    CLIENT,
    SERVER,
    kinds,
    released,
    reverse,
    signed,
    to_agent,
)
from controller_world import CLIENT_PORT, World, syn_frame
from sos_controller.core.commands import Apply, Install, PacketOut
from sos_controller.core.events import PacketIn, PortChanged, Rejected
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import FlowEntry
from sos_controller.core.openflow.pipeline import PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.tables.sessions import Phase
from sos_controller.core.types import Location, Port, PortNo, parse_address, parse_mac
from sos_controller.core.wire import order


def test_syn_starts_a_session_whose_packets_reach_the_agents(world: World) -> None:
    world.delivered.clear()
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert session.state is Phase.ACTIVE and session.service == "default/bulk"
    (syn,) = to_agent(world, AT_INGRESS)
    assert syn.after_s > 0, "a cached flow may still forward the client's first ACK"
    assert syn.data[:6] == parse_mac(MACS["agent1"]) and syn.data[6:] == syn_frame(CLIENT, SERVER, 40000, 5001)[6:]
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert world.network.walk(AT_CLIENT, data) == [(AT_INGRESS, parse_mac(MACS["agent1"]) + data[6:])]
    back = reverse(40000)
    assert world.network.walk(AT_SERVER, back) == [(AT_EGRESS, parse_mac(MACS["agent2"]) + back[6:])]


def test_packets_from_agents_to_hosts_are_forwarded_unchanged(world: World) -> None:
    world.syn(40000)
    from_ingress = reverse(40000)
    from_egress = syn_frame(CLIENT, SERVER, 40000, 5001, flags=2)
    assert world.network.walk(AT_INGRESS, from_ingress) == [(Location(E1, PORT_NORMAL), from_ingress)]
    assert world.network.walk(AT_EGRESS, from_egress) == [(Location(E2, PORT_NORMAL), from_egress)]


def test_entries_are_sent_with_the_orders_and_acknowledged_before_the_syn() -> None:
    world = World()
    world.converge()
    order_of: list[str] = []
    apply, packet = world.network.apply, world._packet_out

    def note_apply(command: Apply, now: float) -> list[FlowEntry]:
        side = "ingress" if command.dpid == E1 else "egress"
        order_of.extend(f"add {side}" for entry in command.adds if cookie_kind(entry.cookie) == Kind.REDIRECT)
        order_of.extend(f"barrier {side}" for _ in range(command.barrier))
        return apply(command, now)

    def note_packet(command: PacketOut) -> None:
        if command.data[23:24] == b"\x06":
            order_of.append("syn")
        packet(command)

    world.network.apply, world._packet_out = note_apply, note_packet  # type: ignore[method-assign]
    world.mute.add(E2)
    world.syn(40000)
    sent = ["add egress", "add ingress", "barrier egress", "barrier ingress"]
    assert order_of == sent
    world.mute.clear()
    world.tick(1.2)
    assert order_of == [*sent, "syn"]
    assert len(released(world)) == 1, "without the egress barrier the SYN goes plain after a second"
    assert not {Kind.REDIRECT} & (kinds(world, E1) | kinds(world, E2)), "the entries of the failed set-up are removed"
    world.syn(40001)
    assert order_of[5:] == [*sent, "syn"]


def test_retransmitted_syns_are_held_during_preparation_without_duplicates(world: World) -> None:
    world.agents["agent2"].mode = "silent"
    world.delivered.clear()
    for _ in range(3):
        world.syn(40000)
    assert len(world.engine.state.sessions) == 1 and not released(world)
    world.agents["agent2"].mode = "ready"
    world.tick(0.1)
    assert len(to_agent(world, AT_INGRESS)) == 1
    world.syn(40000)
    assert len(to_agent(world, AT_INGRESS)) == 2, "a SYN retransmitted after activation is sent to the agent"


def test_prepare_is_retransmitted_and_the_syn_goes_plain_after_a_second(world: World) -> None:
    world.agents["agent2"].mode = "silent"
    world.delivered.clear()
    world.syn(40000)
    world.tick(1.2)
    prepares = [
        c for c in world.delivered if (c.dpid, c.actions[0].port_no) == AT_EGRESS and c.data[42:46] == order.MAGIC and c.data[47] == 1
    ]
    assert len(prepares) == 5
    sequences = [order.decode_header(c.data[42:]).sequence for c in prepares]
    assert len(set(sequences)) == 5, "a retransmission has a new sequence number for the replay window"
    assert len(released(world)) == 1 and len(world.engine.state.sessions) == 0
    assert not world.agents["agent1"].held, "the prepared ingress agent is released"
    world.agents["agent2"].mode = "ready"
    world.syn(40000)
    assert len(released(world)) == 2, "the decision stands for the same SYN"
    world.syn(40000, isn=2)
    assert len(world.engine.state.sessions) == 1, "a new SYN from the same port gets a new decision"


def test_plain_decisions_are_forgotten_after_130_seconds(world: World) -> None:
    world.agents["agent1"].mode = "refuse"
    world.syn(40000)
    assert len(released(world)) == 1
    world.agents["agent1"].mode = "ready"
    world.tick(129, step=0.5)
    world.syn(40000)
    assert len(world.engine.state.sessions) == 0
    world.tick(3, step=0.5)
    world.syn(40000)
    assert len(world.engine.state.sessions) == 1


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        (bytes([2, 4, 5, 0xB4, 4, 2, 8, 10] + [0] * 8 + [1, 3, 3, 7]), False),
        (bytes([19, 18] + [0] * 16), True),
        (bytes([29, 16] + [0] * 14), True),
        (bytes([30, 12] + [0] * 10), True),
        (bytes([2, 0, 0, 0]), True),
        (bytes([1, 1, 1, 8]), True),
        (bytes([2, 40, 0, 0]), True),
    ],
)
def test_unsupported_tcp_options_make_a_connection_plain(world: World, options: bytes, plain: bool) -> None:
    world.syn(40000, options=options)
    assert (len(released(world)) == 1) == plain
    assert len(world.engine.state.sessions) == (0 if plain else 1)


def test_ports_and_prefixes_outside_the_service_stay_plain(world: World) -> None:
    world.syn(40000, dport=80)
    other = syn_frame(CLIENT, parse_address("10.0.0.12"), 40000, 5001)
    world.do(PacketIn(E1, PortNo(3), world.punt_cookie, other))
    assert len(released(world)) == 2 and len(world.engine.state.sessions) == 0


def test_punts_of_another_controller_are_ignored(world: World) -> None:
    world.delivered.clear()
    world.do(PacketIn(E1, PortNo(3), pipeline.cookie(7, Kind.PUNT, 1), syn_frame(CLIENT, SERVER, 40000, 5001)))
    assert not world.delivered and len(world.engine.state.sessions) == 0


def test_rejected_flow_mod_makes_the_connection_plain(world: World) -> None:
    world.mute.add(E1)
    world.delivered.clear()
    token = next(c.token for c in world.syn(40000) if isinstance(c, Install) and c.dpids == (E1,))
    ingress = [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.REDIRECT]
    assert len(ingress) == 1
    world.do(Rejected(E1, token))
    assert len(released(world)) == 1
    assert 3 not in kinds(world, E1) | kinds(world, E2)


def test_connections_above_the_session_limit_are_plain(world: World) -> None:
    world.engine.state.sessions._limit = 0
    for sport in range(40000, 40003):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 0 and len(released(world)) == 3
    assert world.engine.state.counters["syns", "full"] == 3


def test_connections_above_the_share_of_their_port_are_plain(world: World) -> None:
    world.engine.state.sessions._limit = 6
    for sport in range(40000, 40008):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 4 and len(released(world)) == 4
    assert world.engine.state.counters["syns", "port-share"] == 4
    frame = syn_frame(10 << 24 | 12, 10 << 24 | 139, 40000, 5001, mac="agent1")
    world.do(PacketIn(world.west, PortNo(CLIENT_PORT + 20), world.punt_cookie, frame))
    assert len(world.engine.state.sessions) == 5, "another port has places"


def test_agents_at_their_limit_are_not_chosen(world: World) -> None:
    world.agents["agent2"].limit = 3
    world.tick(1)
    for sport in range(40000, 40006):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 3 and len(released(world)) == 3


def test_percent_splits_flows_and_observe_redirects_none() -> None:
    made = document()
    made["services"][0]["percent"] = 50
    world = World(signed(made))
    world.converge()
    for sport in range(40000, 40200):
        world.syn(sport)
    assert 60 < len(world.engine.state.sessions) < 140
    made["services"][0]["mode"] = "Observe"
    observing = World(signed(made))
    observing.converge()
    assert 1 not in kinds(observing, E1) and observing.service() == "Programmed/Programmed"


def test_first_matching_service_decides() -> None:
    made = document()
    first = {**made["services"][0], "id": "default/none", "percent": 0, "ports": [{"first": 5001, "last": 5001}], "priority": 200}
    made["services"].insert(0, first)
    world = World(signed(made))
    world.converge()
    world.syn(40000, dport=5001)
    world.syn(40000, dport=5002)
    assert [s.key[-2:] for s in world.engine.state.sessions] == [(5002).to_bytes(2, "big")]


def test_machines_behind_a_lan_port_are_hosts_with_sessions(world: World) -> None:
    """A LAN port (docs/adr/0065) appears at a running switch, and leads to several machines."""
    lan = Location(E1, PortNo(33101))
    world.do(PortChanged(E1, Port(lan.port_no, "lan0", parse_mac("02:00:00:00:01:00"), True), False))
    world.tick(3.0)  # until the port counts as settled
    for last in (21, 22):
        address, mac = parse_address(f"10.0.0.{last}"), parse_mac(f"02:00:00:00:02:{last:02x}")
        frame = syn_frame(address, SERVER, 40000, 5001)
        world.do(PacketIn(E1, lan.port_no, world.punt_cookie, frame[:6] + mac + frame[12:]))
        host = world.engine.state.hosts.by_address(address)
        assert host is not None and (host.location, host.mac) == (lan, mac)
        data = syn_frame(address, SERVER, 40000, 5001, flags=0x10)
        assert world.network.walk(lan, data) == [(AT_INGRESS, parse_mac(MACS["agent1"]) + data[6:])]
    assert len(list(world.engine.state.sessions)) == 2


def test_equal_histories_yield_equal_commands() -> None:
    def history() -> list[str]:
        world = World()
        world.converge()
        for sport in range(40000, 40010):
            world.syn(sport)
        world.cut("edge1", "core1")
        world.tick(2)
        return [repr(c) for c in world.delivered] + [repr(sorted(map(repr, t.values()))) for t in world.network.tables.values()]

    assert history() == history()


def test_names_in_the_lab_match_the_world() -> None:
    assert set(AGENTS) < set(HOSTS) and isinstance(FakeNetwork().wires, dict) and AT_CLIENT.port_no == CLIENT_PORT
