"""Test the paths of streams and their replacement when links fail."""

from __future__ import annotations

from controller_fake import C1, C2, E1
from controller_lab import HOSTS, MACS, document
from controller_views import (
    AT_EGRESS,
    AT_INGRESS,
    kinds,
    parsed,
    signed,
)
from controller_world import World, syn_frame
from sos_controller.core.events import ConfigChanged
from sos_controller.core.openflow.pipeline import PROTO_UDP, Kind, cookie_kind
from sos_controller.core.types import Location, PortNo, parse_address, parse_mac


def test_streams_use_path_macs_and_arrive_with_the_agents_macs(world: World) -> None:
    ingress, egress = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    for sport, dport in ((33000, 10000), (10000, 33000)):
        frame = syn_frame(ingress, egress, sport, dport, flags=0x10)
        frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + frame[12:]
        assert world.network.walk(AT_INGRESS, frame) == [(AT_EGRESS, frame)]
    in_core = [e for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.PATH]
    assert len(in_core) == 2 and not world.network.entries(C2)


def test_core_entries_are_constant_in_the_number_of_sessions(world: World) -> None:
    before = {dpid: world.network.entries(dpid) for dpid in (C1, C2)}
    for sport in range(40000, 40500):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 500
    assert {dpid: world.network.entries(dpid) for dpid in (C1, C2)} == before


def test_broken_link_moves_the_path_immediately(world: World) -> None:
    world.cut("edge1", "core1")
    world.tick(0.1)
    assert not [e for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.PATH]
    assert len([e for e in world.network.entries(C2) if cookie_kind(e.cookie) == Kind.PATH]) == 2
    assert world.service() == "Programmed/Programmed"
    ingress, egress = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(ingress, egress, 33000, 10000)[12:]
    assert world.network.walk(AT_INGRESS, frame) == [(AT_EGRESS, frame)]


def test_silent_link_expires(world: World) -> None:
    world.network.down |= {Location(E1, PortNo(1)), Location(C1, PortNo(1))}
    world.tick(5.5, step=0.1)
    assert len(world.engine.state.topology.links()) == 3
    assert len([e for e in world.network.entries(C2) if cookie_kind(e.cookie) == Kind.PATH]) == 2


def test_service_without_a_path_is_disarmed(world: World) -> None:
    world.cut("edge1", "core1")
    world.cut("edge1", "core2")
    world.tick(0.2)
    assert world.service() == "Pending/NoPath" and 1 not in kinds(world, E1)
    world.cut("edge1", "core1", up=True)
    world.tick(1.5)
    assert world.service() == "Programmed/Programmed"


def test_two_labels_run_over_two_disjoint_paths() -> None:
    made = document()
    made["services"][0]["paths"] = {"mode": "Disjoint", "max": 2}
    world = World(signed(made))
    world.converge()
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert session.labels == 0b11
    ingress, egress = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    for label, core in ((0, C1), (1, C2)):
        assert len([e for e in world.network.entries(core) if cookie_kind(e.cookie) == Kind.PATH and e.match.eth_dst[2] == label]) == 2
        frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(ingress, egress, 33000, 10000 + label)[12:]
        assert world.network.walk(AT_INGRESS, frame) == [(AT_EGRESS, frame)]
    world.cut("edge1", "core1")
    world.tick(0.2)
    frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(ingress, egress, 33000, 10000)[12:]
    assert world.network.walk(AT_INGRESS, frame) == [(AT_EGRESS, frame)], "the label of the failed path uses the other path"


def test_pause_of_the_controller_does_not_count_as_silence() -> None:
    world = World()
    world.converge()
    world.now += 30
    world.tick(4)
    assert not [n for n in world.notices if n.kind == "agent" and n.data["state"] == "gone"]
    assert len(world.engine.state.topology.links()) == 4
    assert world.service() == "Programmed/Programmed"


def test_silent_link_moves_its_label_until_it_recovers() -> None:
    made = document()
    made["services"][0]["paths"] = {"mode": "Disjoint", "max": 2}
    world = World(signed(made))
    world.converge()
    (pair,) = world.engine.plan.pairs.values()
    (used,) = [link for link in pair.paths[0].links if E1 in (link.a.dpid, link.b.dpid)]
    before, gone = pair.paths, world.network.wires.copy()
    for end in used:
        del world.network.wires[end]
    world.tick(4.0)
    assert [p.paths for p in world.engine.plan.pairs.values()] == [(before[1], before[1])]
    world.network.wires.update(gone)
    world.tick(1.5)
    assert [p.paths for p in world.engine.plan.pairs.values()] == [before]


def datagrams_arrive(world: World, label: int) -> bool:
    """Return whether a datagram of a QUIC stream on a label reaches the peer unchanged."""
    ingress, egress = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    frame = bytearray(parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(ingress, egress, 10000 + label, 10000 + label)[12:])
    frame[23] = PROTO_UDP
    return world.network.walk(AT_INGRESS, bytes(frame)) == [(AT_EGRESS, bytes(frame))]


def test_quic_streams_use_the_paths_of_their_labels() -> None:
    made = document()
    made["services"][0]["paths"] = {"mode": "Disjoint", "max": 2}
    made["services"][0]["transport"]["protocol"] = "QUIC"
    world = World(signed(made))
    world.converge()
    assert [datagrams_arrive(world, label) for label in (0, 1)] == [True, True]
    world.network.down |= {Location(E1, PortNo(1)), Location(C1, PortNo(1))}
    assert [datagrams_arrive(world, label) for label in (0, 1)] == [False, True], "each label has its own path"


def test_only_pairs_with_quic_streams_have_udp_entries(world: World) -> None:
    def entries() -> int:
        return sum(e.match.ip_proto == PROTO_UDP and cookie_kind(e.cookie) == Kind.PATH for e in world.network.entries(E1))

    assert entries() == 0
    made = {**document(), "generation": 2}
    made["services"][0]["transport"]["protocol"] = "QUIC"
    world.do(ConfigChanged(parsed(made)))
    world.tick(1.5)
    assert entries() == 1
    made["services"][0]["transport"]["protocol"] = "TCP"
    world.do(ConfigChanged(parsed({**made, "generation": 3})))
    world.tick(1.5)
    assert entries() == 0
