"""The engine in a world without sockets: set-up, refusals, ends, deaths, changes, adoption; packets walked through the resulting tables."""

from __future__ import annotations

import pytest
from controller_fake import C1, C2, E1, E2, FakeNetwork
from controller_lab import AGENTS, HOSTS, MACS, document
from controller_world import CLIENT_PORT, World, syn_frame
from sos_controller.core import order, pipeline, snapshot
from sos_controller.core.commands import Apply, PacketOut
from sos_controller.core.events import ConfigChanged, DatapathUp, PacketIn, Rejected
from sos_controller.core.flowtable import Output
from sos_controller.core.model import DatapathId, Location, Port, PortNo, parse_address, parse_mac
from sos_controller.core.pipeline import PORT_CONTROLLER, PORT_NORMAL, Kind, cookie_kind
from sos_controller.core.session import State

CLIENT, SERVER = parse_address("10.0.0.11"), parse_address("10.0.0.139")
AT_CLIENT, AT_SERVER = Location(E1, PortNo(3)), Location(E2, PortNo(3))
AT_NEAR, AT_FAR = Location(E1, PortNo(4)), Location(E2, PortNo(4))


@pytest.fixture
def world() -> World:
    made = World()
    made.converge()
    assert made.service() == "Programmed/Programmed"
    return made


def kinds(world: World, dpid: int) -> set[int]:
    return {cookie_kind(e.cookie) for e in world.network.entries(DatapathId(dpid))}


def tables(world: World) -> dict:
    return {dpid: dict(table) for dpid, table in world.network.tables.items()}


def released(world: World) -> list[PacketOut]:
    """SYNs sent on plain."""
    return [c for c in world.delivered if c.actions == (Output(PORT_NORMAL),)]


def to_agent(world: World, where: Location) -> list[PacketOut]:
    """TCP packets handed to an agent."""
    return [c for c in world.delivered if (c.dpid, c.actions[0].port_no) == where and c.data[23:24] == b"\x06"]


def reverse(sport: int, flags: int = 0x12) -> bytes:
    frame = syn_frame(SERVER, CLIENT, 5001, sport, flags=flags)
    return parse_mac(MACS["client"]) + parse_mac(MACS["server"]) + frame[12:]


def test_a_syn_becomes_a_session_whose_packets_reach_the_agents(world: World) -> None:
    world.delivered.clear()
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert session.state is State.ACTIVE and session.service == "default/bulk"
    (syn,) = to_agent(world, AT_NEAR)
    assert syn.after_s > 0, "a switch may still forward the client's first ACK by what it has cached"
    assert syn.data[:6] == parse_mac(MACS["agent1"]) and syn.data[6:] == syn_frame(CLIENT, SERVER, 40000, 5001)[6:]
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert world.network.walk(AT_CLIENT, data) == [(AT_NEAR, parse_mac(MACS["agent1"]) + data[6:])]
    back = reverse(40000)
    assert world.network.walk(AT_SERVER, back) == [(AT_FAR, parse_mac(MACS["agent2"]) + back[6:])]


def test_what_agents_send_to_hosts_is_forwarded_plainly_and_unchanged(world: World) -> None:
    world.syn(40000)
    from_near = reverse(40000)
    from_far = syn_frame(CLIENT, SERVER, 40000, 5001, flags=2)
    assert world.network.walk(AT_NEAR, from_near) == [(Location(E1, PORT_NORMAL), from_near)]
    assert world.network.walk(AT_FAR, from_far) == [(Location(E2, PORT_NORMAL), from_far)]


def test_far_entry_is_acknowledged_before_the_near_one_is_sent_and_that_before_the_syn() -> None:
    world = World()
    world.converge()
    order_of: list[str] = []
    apply, packet = world.network.apply, world._packet_out

    def note_apply(command: Apply, now: float) -> None:
        for entry in command.adds:
            if cookie_kind(entry.cookie) == Kind.REDIRECT:
                order_of.append(f"add {'near' if command.dpid == E1 else 'far'} barrier={command.barrier}")
        apply(command, now)

    def note_packet(command: PacketOut) -> None:
        if command.data[23:24] == b"\x06":
            order_of.append("syn")
        packet(command)

    world.network.apply, world._packet_out = note_apply, note_packet  # type: ignore[method-assign]
    world.mute.add(E2)
    world.syn(40000)
    assert order_of == ["add far barrier=True"]
    world.mute.clear()
    world.tick(1.2)
    assert order_of == ["add far barrier=True", "syn"]
    assert len(released(world)) == 1, "without the far barrier the SYN goes plain after a second"
    world.syn(40001)
    assert order_of[2:] == ["add far barrier=True", "add near barrier=True", "syn"]


def test_streams_run_over_the_path_with_path_macs_and_arrive_with_real_ones(world: World) -> None:
    near, far = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    for sport, dport in ((33000, 10000), (10000, 33000)):
        frame = syn_frame(near, far, sport, dport, flags=0x10)
        frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + frame[12:]
        assert world.network.walk(AT_NEAR, frame) == [(AT_FAR, frame)]
    in_core = [e for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.PATH]
    assert len(in_core) == 2 and not world.network.entries(C2)


def test_core_entries_are_constant_in_the_number_of_sessions(world: World) -> None:
    before = {dpid: world.network.entries(dpid) for dpid in (C1, C2)}
    for sport in range(40000, 40500):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 500
    assert {dpid: world.network.entries(dpid) for dpid in (C1, C2)} == before


def test_everything_is_at_its_baseline_after_the_sessions_have_ended(world: World) -> None:
    baseline = tables(world)
    for sport in range(40000, 40040):
        world.syn(sport)
    for session in list(world.engine.state.sessions):
        world.end(session.uuid)
    assert len(world.engine.state.sessions) == 40, "entries linger for the last acknowledgements"
    world.tick(1.5)
    assert tables(world) == baseline
    assert len(world.engine.state.sessions) == 0 and not world.engine.state.sessions.pairs


def test_one_side_may_end_long_before_the_other(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.end(session.uuid, ["agent1"])
    world.tick(20)
    assert session.state is State.ENDING and session.near_entry is None and session.far_entries
    back = reverse(40000, flags=0x10)
    assert world.network.walk(AT_SERVER, back)[0][0] == AT_FAR
    world.end(session.uuid, ["agent2"])
    world.tick(1.5)
    assert session.state is State.ENDED and 3 not in kinds(world, E2)


def test_retransmitted_syns_are_held_while_preparing_and_not_doubled(world: World) -> None:
    world.agents["agent2"].mode = "silent"
    world.delivered.clear()
    for _ in range(3):
        world.syn(40000)
    assert len(world.engine.state.sessions) == 1 and not released(world)
    world.agents["agent2"].mode = "ready"
    world.tick(0.1)
    assert len(to_agent(world, AT_NEAR)) == 1
    world.syn(40000)
    assert len(to_agent(world, AT_NEAR)) == 2, "a SYN retransmitted after activation is handed to the agent"


def test_prepare_is_resent_with_back_off_and_the_syn_goes_plain_after_a_second(world: World) -> None:
    world.agents["agent2"].mode = "silent"
    world.delivered.clear()
    world.syn(40000)
    world.tick(1.2)
    prepares = [c for c in world.delivered if (c.dpid, c.actions[0].port_no) == AT_FAR and c.data[42:46] == order.MAGIC and c.data[47] == 1]
    assert len(prepares) == 5
    sequences = [order.decode_header(c.data[42:]).sequence for c in prepares]
    assert len(set(sequences)) == 5, "a resend is a new message to the replay window"
    assert len(released(world)) == 1 and len(world.engine.state.sessions) == 0
    assert not world.agents["agent1"].held, "the ready one is released"
    world.agents["agent2"].mode = "ready"
    world.syn(40000)
    assert len(released(world)) == 2, "the decision stands for the same SYN"
    world.syn(40000, isn=2)
    assert len(world.engine.state.sessions) == 1, "and not for another one of the same port"


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
def test_options_decide(world: World, options: bytes, plain: bool) -> None:
    world.syn(40000, options=options)
    assert (len(released(world)) == 1) == plain
    assert len(world.engine.state.sessions) == (0 if plain else 1)


def test_ports_and_prefixes_outside_the_service_stay_plain(world: World) -> None:
    world.syn(40000, dport=80)
    other = syn_frame(CLIENT, parse_address("10.0.0.12"), 40000, 5001)
    world.do(PacketIn(E1, PortNo(3), world.punt_cookie, other))
    assert len(released(world)) == 2 and len(world.engine.state.sessions) == 0


def test_a_foreign_punt_is_none_of_our_business(world: World) -> None:
    world.delivered.clear()
    world.do(PacketIn(E1, PortNo(3), pipeline.cookie(7, Kind.PUNT, 1), syn_frame(CLIENT, SERVER, 40000, 5001)))
    assert not world.delivered and len(world.engine.state.sessions) == 0


def test_dead_agent_loses_its_sessions_and_disarms_the_service(world: World) -> None:
    world.syn(40000)
    assert 1 in kinds(world, E1)
    world.agents["agent1"].mode = "dead"
    world.tick(4.5)
    assert kinds(world, E1) == {Kind.GUARD} and world.service() == "Pending/NoAgents"
    (session,) = world.engine.state.sessions
    assert session.far_entries, "the far agent still has to reset the server"
    world.end(session.uuid, ["agent2"])
    world.tick(1.2)
    assert len(world.engine.state.sessions) == 0 and kinds(world, E2) == {Kind.GUARD}
    world.agents["agent1"].mode = "ready"
    world.tick(1)
    assert world.service() == "Programmed/Programmed"


def test_both_agents_dead_leaves_guards_only(world: World) -> None:
    for sport in range(40000, 40010):
        world.syn(sport)
    for agent in world.agents.values():
        agent.mode = "dead"
    world.tick(5)
    assert {k for dpid in (E1, E2, C1, C2) for k in kinds(world, dpid)} == {Kind.GUARD}
    assert len(world.engine.state.sessions) == 0


def test_a_restarted_agent_has_lost_its_sessions(world: World) -> None:
    world.syn(40000)
    world.agents["agent1"].boot += 10**9
    world.agents["agent1"].beacons = world.agents["agent1"].sequence = 0
    world.agents["agent1"].held.clear()
    world.tick(1)
    (session,) = world.engine.state.sessions
    assert session.near_entry is None


def test_draining_agents_get_nothing_new_and_keep_what_they_have(world: World) -> None:
    world.syn(40000)
    world.agents["agent1"].flags = 1
    world.tick(1)
    assert world.service() == "Pending/NoAgents" and 1 not in kinds(world, E1)
    (session,) = world.engine.state.sessions
    assert session.state is State.ACTIVE and session.near_entry is not None


def test_leases_are_renewed_and_run_out_without_the_controller(world: World) -> None:
    world.tick(20, step=0.1)
    world.network.expire(world.now)
    assert 1 in kinds(world, E1)
    world.syn(40000)
    world.network.expire(world.now + 6)
    assert 1 not in kinds(world, E1)
    assert 3 in kinds(world, E1), "redirects have no timeout"


def test_service_removed_withdraws_punts_at_once_and_leaves_sessions_alone(world: World) -> None:
    world.syn(40000)
    world.do(ConfigChanged(_config(2, services=False)))
    assert 1 not in kinds(world, E1) and 3 in kinds(world, E1)
    assert 4 in kinds(world, C1), "the session's path stays"
    (session,) = world.engine.state.sessions
    world.end(session.uuid)
    world.tick(2)
    assert not world.network.entries(C1) and not kinds(world, E1) & {1, 3, 4}


def test_service_changed_moves_the_punts(world: World) -> None:
    world.syn(40000)
    world.do(ConfigChanged(_config(2, ports=(80, 80))))
    world.tick(0.2)
    punts = [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.PUNT]
    assert [e.match.tcp_dst for e in punts] == [(80, 0xFFFF)]
    assert len(world.engine.state.sessions) == 1


def test_a_link_that_breaks_moves_the_path_at_once(world: World) -> None:
    world.cut("edge1", "core1")
    world.tick(0.1)
    assert not [e for e in world.network.entries(C1) if cookie_kind(e.cookie) == Kind.PATH]
    assert len([e for e in world.network.entries(C2) if cookie_kind(e.cookie) == Kind.PATH]) == 2
    assert world.service() == "Programmed/Programmed"
    near, far = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(near, far, 33000, 10000)[12:]
    assert world.network.walk(AT_NEAR, frame) == [(AT_FAR, frame)]


def test_a_link_that_goes_silent_expires(world: World) -> None:
    world.network.down |= {Location(E1, PortNo(1)), Location(C1, PortNo(1))}
    world.tick(5.5, step=0.1)
    assert len(world.engine.state.topology.links()) == 3
    assert len([e for e in world.network.entries(C2) if cookie_kind(e.cookie) == Kind.PATH]) == 2


def test_no_path_disarms(world: World) -> None:
    world.cut("edge1", "core1")
    world.cut("edge1", "core2")
    world.tick(0.2)
    assert world.service() == "Pending/NoPath" and 1 not in kinds(world, E1)
    world.cut("edge1", "core1", up=True)
    world.tick(1.5)
    assert world.service() == "Programmed/Programmed"


def test_a_lost_datapath_is_told_and_synchronised_when_it_is_back(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.disconnect("edge1")
    world.tick(0.5)
    assert world.service() == "Pending/DatapathDisconnected"
    world.network.tables[E1].clear()
    world.connect(["edge1"])
    world.tick(1.5)
    assert world.service() == "Programmed/Programmed"
    assert session.near_entry is not None and session.near_entry[1] in world.network.entries(E1)


def test_entries_of_a_session_that_ended_meanwhile_go_when_the_datapath_is_back(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    world.disconnect("edge1")
    world.end(session.uuid, ["agent2"])
    world.tick(5)
    assert 3 in kinds(world, E1) and len(world.engine.state.sessions) == 0
    world.connect(["edge1"])
    world.tick(0.2)
    assert 3 not in kinds(world, E1)


def test_a_refused_flow_mod_means_plain(world: World) -> None:
    world.mute.add(E1)
    world.delivered.clear()
    world.syn(40000)
    near = [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.REDIRECT]
    assert len(near) == 1
    token = next(t for t, p in world.engine.state.programmer._pending.items() if p.dpid == E1)
    world.do(Rejected(E1, token))
    assert len(released(world)) == 1
    assert 3 not in kinds(world, E1) | kinds(world, E2)


def test_a_port_used_again_while_ending_starts_a_new_session(world: World) -> None:
    world.syn(40000, isn=1)
    (first,) = world.engine.state.sessions
    world.end(first.uuid)
    assert first.state is State.ENDING
    world.syn(40000, isn=99)
    (second,) = world.engine.state.sessions
    assert second is not first and second.state is State.ACTIVE
    world.tick(3)
    assert second.near_entry is not None and second.near_entry[1] in world.network.entries(E1)
    assert second.far_entries[0][1] in world.network.entries(E2)


def test_reports_end_the_sessions_they_omit_but_not_young_ones(world: World) -> None:
    for sport in range(40000, 40130):
        world.syn(sport)
    gone = sorted(world.agents["agent1"].held)[0]
    world.tick(5)
    for agent in world.agents.values():
        del agent.held[gone]
    world.tick(3)
    assert len(world.engine.state.sessions) == 130
    world.tick(6)
    assert len(world.engine.state.sessions) == 129 and world.engine.state.sessions.by_uuid(gone) is None


def test_restart_adopts_reported_sessions_and_buries_the_rest(world: World) -> None:
    for sport in (40000, 40001):
        world.syn(sport)
    keep, lose = (world.engine.state.sessions.by_key(k) for k in sorted(s.key for s in world.engine.state.sessions))
    assert keep is not None and lose is not None
    for agent in world.agents.values():
        del agent.held[lose.uuid]
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    reborn.agents = world.agents
    reborn.connect()
    assert sum(cookie_kind(e.cookie) == Kind.REDIRECT for e in reborn.network.entries(E1)) == 2
    assert len(reborn.engine.state.sessions) == 2
    reborn.tick(4)
    assert reborn.service() == "Programmed/Programmed"
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert reborn.network.walk(AT_CLIENT, data)[0][0] == AT_NEAR
    reborn.tick(12, step=0.1)
    (left,) = reborn.engine.state.sessions
    assert left.uuid == keep.uuid and left.adopted
    assert sum(cookie_kind(e.cookie) == Kind.REDIRECT for e in reborn.network.entries(E1)) == 1
    assert {pipeline.cookie_epoch(e.cookie) for e in reborn.network.entries(E1) if cookie_kind(e.cookie) != Kind.REDIRECT} == {2}
    reborn.end(keep.uuid)
    reborn.tick(1.5)
    assert not any(cookie_kind(e.cookie) == Kind.REDIRECT for d in (E1, E2) for e in reborn.network.entries(d))


def test_adopted_entries_of_agents_that_never_come_back_are_removed(world: World) -> None:
    world.syn(40000)
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    for agent in reborn.agents.values():
        agent.mode = "dead"
    reborn.connect()
    reborn.tick(17, step=0.1)
    assert len(reborn.engine.state.sessions) == 0
    assert not any(cookie_kind(e.cookie) == Kind.REDIRECT for d in (E1, E2) for e in reborn.network.entries(d))


def test_foreign_entries_are_never_touched(world: World) -> None:
    foreign = next(e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.GUARD)
    alien = type(foreign)(0, 123, foreign.match, (), 0x534F_0107_0300_0001)
    world.network.tables[E1][alien.key] = alien
    world.syn(40000)
    reborn = World(network=world.network, epoch=2, now=world.now + 3)
    reborn.connect()
    reborn.tick(30, step=0.1)
    assert alien in reborn.network.entries(E1)


def test_unclaimed_datapaths_get_nothing(world: World) -> None:
    world.delivered.clear()
    stranger = DatapathId(0xFF)
    world.do(DatapathUp(stranger, (Port(PortNo(1), "p1", bytes(6), True),)))
    world.tick(3)
    assert stranger not in world.network.tables and not any(c.dpid == stranger for c in world.delivered)
    assert snapshot.status(world.engine, "", "")["unclaimed"] == ["00000000000000ff"]


def test_a_datapath_given_up_loses_our_entries(world: World) -> None:
    made = document(2)
    made["sites"][3]["datapaths"] = []
    made["sites"][1]["datapaths"] = []
    world.syn(40000)
    world.do(ConfigChanged(_parse(made)))
    world.tick(1)
    assert not world.network.entries(E2)
    (session,) = world.engine.state.sessions
    world.end(session.uuid, ["agent1"])
    world.tick(1.5)
    assert len(world.engine.state.sessions) == 0


def test_bounds_mean_plain(world: World) -> None:
    world.engine.state.sessions._limit = 5
    for sport in range(40000, 40008):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 5 and len(released(world)) == 3


def test_agents_at_their_limit_are_not_chosen(world: World) -> None:
    world.agents["agent2"].limit = 3
    world.tick(1)
    for sport in range(40000, 40006):
        world.syn(sport)
    assert len(world.engine.state.sessions) == 3 and len(released(world)) == 3


def test_hosts_are_learned_where_they_are_and_never_behind_agents_or_wires(world: World) -> None:
    def arp(where: Location, name: str) -> None:
        mac = parse_mac(MACS[name])
        sender = parse_address(HOSTS[name][1]).to_bytes(4, "big")
        frame = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + sender + bytes(6) + SERVER.to_bytes(4, "big")
        world.do(PacketIn(*where, 0, frame))

    for where, name in ((AT_CLIENT, "client"), (AT_SERVER, "server"), (AT_NEAR, "agent1"), (Location(E2, PortNo(1)), "client")):
        arp(where, name)
    hosts = world.engine.state.hosts
    assert {h.mac: h.location for h in hosts.all()} == {parse_mac(MACS["client"]): AT_CLIENT, parse_mac(MACS["server"]): AT_SERVER}
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert [dpid for dpid, _ in session.far_entries] == [E2]
    arp(Location(E1, PortNo(5)), "client")
    assert hosts.by_address(CLIENT).location == Location(E1, PortNo(5))


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


def test_beacons_from_the_wrong_place_are_dropped(world: World) -> None:
    agent = world.agents["agent1"]
    world.do(PacketIn(E2, PortNo(3), 0, agent.beacon(world.wall(world.now))))
    world.do(PacketIn(E1, PortNo(1), 0, agent.beacon(world.wall(world.now))))
    broken = bytearray(agent.beacon(world.wall(world.now)))
    broken[-1] ^= 1
    world.do(PacketIn(*agent.where, 0, bytes(broken)))
    counters = world.engine.state.counters
    assert [counters["beacons_dropped", r] for r in ("site", "port", "tag")] == [1, 1, 1]


def test_a_new_boot_with_an_old_clock_is_not_believed(world: World) -> None:
    agent = world.agents["agent1"]
    world.do(PacketIn(*agent.where, 0, agent.beacon(world.wall(world.now) - 40_000, boot_id=agent.boot + 1)))
    assert world.engine.state.counters["beacons_dropped", "replay"] == 1


def test_orders_with_wrong_tags_or_twice_are_dropped(world: World) -> None:
    world.syn(40000)
    (session,) = world.engine.state.sessions
    ((dpid, port, frame),) = world.ended(session.uuid, ["agent1"])
    broken = bytearray(frame)
    broken[-1] ^= 1
    world.do(PacketIn(dpid, port, 0, bytes(broken)))
    assert session.state is State.ACTIVE and world.engine.state.counters["orders_dropped", "tag"] == 1
    world.do(PacketIn(dpid, port, 0, frame))
    world.do(PacketIn(dpid, port, 0, frame))
    assert session.state is State.ENDING and world.engine.state.counters["orders_dropped", "replay"] == 1


def test_hosts_cannot_make_up_links(world: World) -> None:
    """Neither by a probe of their own nor by recording one and sending it later or from elsewhere alone."""
    links = world.engine.state.topology.links()
    world.delivered.clear()
    world.tick(1.1)
    recorded = next(c.data for c in world.delivered if c.data[12:14] == b"\x88\xcc" and (c.dpid, c.actions[0].port_no) == AT_CLIENT)
    forged = bytearray(recorded)
    forged[-20] ^= 1
    world.do(PacketIn(*AT_SERVER, 0, bytes(forged)))
    assert not world.engine.state.topology.is_inter_switch(AT_SERVER)
    world.do(PacketIn(*AT_SERVER, 0, recorded))
    assert world.engine.state.topology.links() == links, "one direction is no link"
    world.tick(5)
    world.do(PacketIn(*AT_SERVER, 0, recorded))
    assert not world.engine.state.topology.is_inter_switch(AT_SERVER), "an old probe is not believed"


def test_percent_splits_flows_and_observe_redirects_none() -> None:
    made = document()
    made["services"][0]["percent"] = 50
    world = World(_signed(made))
    world.converge()
    for sport in range(40000, 40200):
        world.syn(sport)
    assert 60 < len(world.engine.state.sessions) < 140
    made["services"][0]["mode"] = "Observe"
    observing = World(_signed(made))
    observing.converge()
    assert 1 not in kinds(observing, E1) and observing.service() == "Programmed/Programmed"


def test_sites_that_ask_for_what_we_cannot_do_stay_plain_and_say_so() -> None:
    made = document()
    made["sites"][1]["rewrite"] = "OpenFlow"
    world = World(_signed(made))
    world.converge()
    world.syn(40000)
    assert len(released(world)) == 1 and 1 not in kinds(world, E1)
    (service,) = snapshot.status(world.engine, "", "")["services"]
    assert service["state"] == "Pending" and "site east asks for OpenFlow rewriting" in service["message"]


def test_the_first_service_that_matches_decides() -> None:
    made = document()
    first = {**made["services"][0], "id": "default/none", "percent": 0, "ports": [{"first": 5001, "last": 5001}], "priority": 200}
    made["services"].insert(0, first)
    world = World(_signed(made))
    world.converge()
    world.syn(40000, dport=5001)
    world.syn(40000, dport=5002)
    assert [s.key[-2:] for s in world.engine.state.sessions] == [(5002).to_bytes(2, "big")]


def test_two_labels_run_over_two_disjoint_paths() -> None:
    made = document()
    made["services"][0]["paths"] = {"mode": "Disjoint", "max": 2}
    world = World(_signed(made))
    world.converge()
    world.syn(40000)
    (session,) = world.engine.state.sessions
    assert session.labels == 0b11
    near, far = parse_address(HOSTS["agent1"][1]), parse_address(HOSTS["agent2"][1])
    for label, core in ((0, C1), (1, C2)):
        assert len([e for e in world.network.entries(core) if cookie_kind(e.cookie) == Kind.PATH and e.match.eth_dst[2] == label]) == 2
        frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(near, far, 33000, 10000 + label)[12:]
        assert world.network.walk(AT_NEAR, frame) == [(AT_FAR, frame)]
    world.cut("edge1", "core1")
    world.tick(0.2)
    frame = parse_mac(MACS["agent2"]) + parse_mac(MACS["agent1"]) + syn_frame(near, far, 33000, 10000)[12:]
    assert world.network.walk(AT_NEAR, frame) == [(AT_FAR, frame)], "the failed path's label shares the other path"


# -- datapaths whose plain forwarding is ours


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
    assert reached == expected, "every edge port once, also in the loop"


def test_external_switches_learn_hosts_and_send_straight(external: World) -> None:
    for where, name in ((AT_CLIENT, "client"), (AT_SERVER, "server")):
        mac = parse_mac(MACS[name])
        sender = parse_address(HOSTS[name][1]).to_bytes(4, "big")
        target = parse_address(HOSTS["server" if name == "client" else "client"][1]).to_bytes(4, "big")
        frame = b"\xff" * 6 + mac + b"\x08\x06\x00\x01\x08\x00\x06\x04\x00\x01" + mac + sender + bytes(6) + target
        external.do(PacketIn(*where, 0, frame))
    ping = syn_frame(CLIENT, SERVER, 1, 7, flags=0x10)
    assert external.network.walk(AT_CLIENT, ping) == [(AT_SERVER, ping)]
    answers = [c for c in external.delivered if c.data[12:14] == b"\x08\x06"]
    assert len(answers) == 1 and answers[0].data[:6] == parse_mac(MACS["server"]), "the second asker is answered from what was learned"
    external.cut("edge1", "core1")
    external.tick(0.1)
    assert external.network.walk(AT_CLIENT, ping) == [(AT_SERVER, ping)], "around the loop the other way"


def test_external_switches_accelerate_too(external: World) -> None:
    assert external.service() == "Programmed/Programmed"
    external.syn(40000)
    (session,) = external.engine.state.sessions
    assert session.state is State.ACTIVE
    data = syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)
    assert external.network.walk(AT_CLIENT, data) == [(AT_NEAR, parse_mac(MACS["agent1"]) + data[6:])]


def test_external_switches_release_plain_syns_towards_the_host(external: World) -> None:
    external.delivered.clear()
    external.syn(40000, dport=80)
    (out,) = [c for c in external.delivered if c.data[23:24] == b"\x06"]
    assert PortNo(CLIENT_PORT) not in [a.port_no for a in out.actions] and len(out.actions) >= 2, "flooded while the server is unknown"


def test_every_command_of_one_history_is_reproducible() -> None:
    def history() -> list[str]:
        world = World()
        world.converge()
        for sport in range(40000, 40010):
            world.syn(sport)
        world.cut("edge1", "core1")
        world.tick(2)
        return [repr(c) for c in world.delivered] + [repr(sorted(map(repr, t.values()))) for t in world.network.tables.values()]

    assert history() == history()


def _signed(made: dict) -> dict:
    from sos_controller.config import document_hash

    return {**made, "hash": document_hash(made)}


def _parse(made: dict):
    import json

    from sos_controller.config import parse

    return parse(json.dumps(_signed(made)).encode())


def _config(generation: int, **more):
    return _parse(document(generation, **more))


def test_names_of_the_lab_agree_with_the_world() -> None:
    assert set(AGENTS) < set(HOSTS) and isinstance(FakeNetwork().wires, dict) and AT_CLIENT.port_no == CLIENT_PORT
