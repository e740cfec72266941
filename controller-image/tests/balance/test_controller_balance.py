"""Test balances with the engine in a world whose routers and hosts answer ARP.

The world has one switch, `edge1`, with the host at port 3 and routers at ports 1 and 2 (uplinks p1 and p2).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from controller_home import CLIENT, EDGE, GATEWAY, OUTSIDE, ROUTER_MACS, ROUTERS, SERVER, Home, answer, config, encode, segment
from controller_lab import MACS, document_hash
from controller_world import CLIENT_PORT
from hypothesis import given, settings
from hypothesis import strategies as st
from sos_controller.core.balance import balances as balance
from sos_controller.core.balance import entries as balance_entries
from sos_controller.core.balance import ovs_round_robin
from sos_controller.core.commands import Command, PacketOut
from sos_controller.core.events import ConfigChanged, DatapathDown, DatapathUp, EntryGone, PacketIn, PortChanged
from sos_controller.core.openflow.flow_entries import Match, ToGroup
from sos_controller.core.openflow.groups import group_id
from sos_controller.core.openflow.pipeline import GATEWAY_MAC, SETTLE_S, Kind
from sos_controller.core.topology.neighbours import LOST_S, REFRESH_S
from sos_controller.core.types import Location, MacAddress, Port, PortNo, parse_address, parse_mac
from sos_controller.files.config import parse


def port_of(out: list[tuple[Location, bytes]]) -> int:
    ((where, _),) = out
    return where.port_no


# -- ARP


def external() -> dict[str, Any]:
    """Return a configuration in which edge1 may be any OpenFlow switch."""
    made = config()
    made["sites"][0]["datapaths"][0]["forwarding"] = "Controller"
    del made["hash"]
    return {**made, "hash": document_hash(made)}


@pytest.mark.parametrize("made", [config(), external()], ids=["Node", "Controller"])
def test_requests_for_the_virtual_gateway_are_answered(made: dict[str, Any]) -> None:
    home = Home(made)
    home.up()
    mac = parse_mac(MACS["client"])
    assert home.ask(CLIENT_PORT, CLIENT, mac, GATEWAY) == GATEWAY_MAC
    assert home.ask(CLIENT_PORT, CLIENT, mac, SERVER) == GATEWAY_MAC, "a host with a route but no gateway requests the server's address"
    assert home.ask(CLIENT_PORT, CLIENT, mac, parse_address("10.0.0.99")) is None
    assert home.ask(CLIENT_PORT, parse_address("10.0.0.12"), parse_mac("02:00:00:00:00:12"), GATEWAY) is None, "sender without a balance"


@pytest.mark.parametrize("made", [config(), external()], ids=["Node", "Controller"])
def test_routers_resolve_an_uplink_address_to_its_port_mac(made: dict[str, Any]) -> None:
    home = Home(made)
    home.up()
    assert home.ask(1, ROUTERS[1], ROUTER_MACS[1], OUTSIDE[1]) == parse_mac("02:00:00:00:00:01")
    assert home.ask(1, ROUTERS[1], ROUTER_MACS[1], OUTSIDE[2]) is None, "each address belongs to one uplink"
    assert not [h for h in home.engine.state.hosts.all() if h.location.port_no in (1, 2)], "no host is learned behind an uplink"


# -- connections


@given(at=st.sampled_from(["Controller", "Switch"]), sports=st.lists(st.integers(1024, 65535), min_size=1, max_size=30, unique=True))
@settings(max_examples=30, deadline=None)
def test_answers_reach_the_host_and_connections_keep_their_uplink(at: str, sports: list[int]) -> None:
    home = Home(config(at))
    home.up()
    host = Location(EDGE, PortNo(CLIENT_PORT))
    for sport in sports:
        ((where, frame),) = home.open(sport)
        assert frame[:12] == ROUTER_MACS[where.port_no] + parse_mac(f"02:00:00:00:00:{where.port_no:02x}")
        assert int.from_bytes(frame[26:30], "big") == OUTSIDE[where.port_no] and frame[30:38] == segment(sport)[30:38]
        assert port_of(home.open(sport)) == where.port_no, "a retransmitted SYN keeps its uplink"
        for flags in (0x10, 0x18, 0x11, 0x04):
            assert port_of(home.network.walk(host, segment(sport, flags=flags))) == where.port_no
        for flags in (0x12, 0x10, 0x11, 0x04):
            ((back, seen),) = home.network.walk(where, answer(frame, flags))
            assert back == host and seen[:6] == parse_mac(MACS["client"])
            assert seen[26:38] == answer(segment(sport), flags)[26:38], "addresses and ports are translated back"


@given(weights=st.tuples(st.integers(1, 5), st.integers(1, 5)))
@settings(max_examples=15, deadline=None)
def test_controller_spreads_connections_by_weight(weights: tuple[int, int]) -> None:
    home = Home(config("Controller", weights))
    home.up()
    count = 3 * sum(weights)
    assert Counter(port_of(home.open(40000 + i)) for i in range(count)) == {1: 3 * weights[0], 2: 3 * weights[1]}
    assert home.kinds()[Kind.CONNECTION] == 2 * count and home.row()["sessions"] == count


def by_the_switch(made: dict[str, Any], weights: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Return the same configuration, with a switch that selects the uplinks."""
    (entry,) = made["balances"]
    uplinks = [{**u, "weight": w} for u, w in zip(entry["uplinks"], weights, strict=True)]
    made = {**made, "balances": [{**entry, "at": "Switch", "uplinks": uplinks}]}
    del made["hash"]
    return {**made, "hash": document_hash(made)}


def test_switch_group_has_a_bucket_per_uplink_and_no_connection_entries() -> None:
    home = Home(by_the_switch(external(), (1, 2)))
    home.up()
    before = home.kinds()
    (group,) = home.network.groups[EDGE].values()
    assert [(b.weight, b.watch_port) for b in group.buckets] == [(1, 1), (2, 2)]
    assert {port_of(home.open(40000 + i)) for i in range(50)} == {1, 2}
    assert home.kinds() == before and Kind.CONNECTION not in before and home.row()["sessions"] == 0
    assert not [e for e in home.network.entries(EDGE) if e.hard_timeout]


@given(weights=st.tuples(st.integers(1, 5), st.integers(1, 5)))
@settings(max_examples=15, deadline=None)
def test_open_vswitch_runs_the_round_robin_itself(weights: tuple[int, int]) -> None:
    home = Home(config("Switch", weights))
    home.up()
    before, count, handed = home.kinds(), 3 * sum(weights), len(home.delivered)
    assert Counter(port_of(home.open(40000 + i)) for i in range(count)) == {1: 3 * weights[0], 2: 3 * weights[1]}
    assert home.kinds() == before + Counter({Kind.LEARNED: 2 * count}) and home.row()["sessions"] == 0
    assert len(home.delivered) == handed and not [e for e in home.network.entries(EDGE) if e.hard_timeout]


def test_group_decides_beyond_the_limit_of_learned_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ovs_round_robin, "MAX_REMEMBERED", 4)
    home = Home(config("Switch"))
    home.up()
    host = Location(EDGE, PortNo(CLIENT_PORT))
    kept = {sport: port_of(home.open(sport)) for sport in range(40000, 40040)}
    assert home.kinds()[Kind.LEARNED] == 2 * 4 and set(kept.values()) == {1, 2}
    for sport, port in kept.items():
        assert port_of(home.open(sport)) == port == port_of(home.network.walk(host, segment(sport, flags=0x10)))


def test_open_vswitch_skips_a_down_uplink_before_the_controller_knows() -> None:
    home = Home(config("Switch"))
    home.up()
    home.network.down.add(Location(EDGE, PortNo(2)))
    assert {port_of(home.open(sport)) for sport in range(40000, 40010)} == {1}
    home.network.down.clear()
    assert Counter(port_of(home.open(sport)) for sport in range(50000, 50010)) == {1: 5, 2: 5}


def test_round_robin_restarts_when_its_sequence_shrinks() -> None:
    home = Home(config("Switch", (2, 3)))
    home.up()
    for sport in range(40000, 40004):
        home.open(sport)
    home.do(ConfigChanged(parse(encode(config("Switch", (1, 1), generation=2)))))
    home.tick(1)
    assert Counter(port_of(home.open(sport)) for sport in range(50000, 50010)) == {1: 5, 2: 5}


def test_traffic_outside_the_balance_is_not_changed() -> None:
    home = Home()
    home.up()
    host = Location(EDGE, PortNo(CLIENT_PORT))
    for frame in (segment(40000, dport=82), MacAddress(b"\2" * 6) + segment(40000)[6:]):
        assert [port for (_, port), _ in home.network.walk(host, frame)] == [0xFFFFFFFA]
    opened = answer(segment(40000), flags=2)
    inward = parse_mac("02:00:00:00:00:01") + opened[6:30] + OUTSIDE[1].to_bytes(4, "big") + opened[34:]
    assert [port for (_, port), _ in home.network.walk(Location(EDGE, PortNo(1)), inward)] == [0xFFFFFFFA], "inbound SYN: not balanced"


def test_retransmitted_syn_keeps_its_uplink_and_a_new_syn_gets_the_next() -> None:
    home = Home()
    home.up()
    entry = home.network._lookup(Location(EDGE, PortNo(CLIENT_PORT)), 0, segment(40000))
    first = [port_of(home.punted(entry.cookie, segment(40000))) for _ in range(4)]
    assert len(set(first)) == 1 and home.row()["sessions"] == 1
    assert port_of(home.punted(entry.cookie, segment(40000, isn=2))) != first[0]


def test_reused_port_gets_the_next_uplink_while_old_entries_exist() -> None:
    home = Home()
    home.up()
    taken = [port_of(home.open(40000, isn=isn)) for isn in range(1, 7)]
    assert [sent.after_s for sent in home.delivered if sent.data[12:14] == b"\x08\x00"] == [0.0] + [SETTLE_S] * 5, "settling"
    assert taken in ([1, 2] * 3, [2, 1] * 3)
    host = Location(EDGE, PortNo(CLIENT_PORT))
    ((where, frame),) = home.network.walk(host, segment(40000, flags=0x10))
    assert where.port_no == taken[-1]
    assert [at for at, _ in home.network.walk(where, answer(frame))] == [host]
    assert home.row()["sessions"] == 1


def test_reused_port_avoids_an_uplink_that_left_the_balance() -> None:
    home = Home(config(weights=(1, 1)))
    home.up()
    assert {port_of(home.open(sport)) for sport in range(40000, 40010)} == {1, 2}
    home.do(ConfigChanged(parse(encode(config(weights=(1,), generation=2)))))
    home.tick(1)
    assert {port_of(home.open(sport, isn=2)) for sport in range(40000, 40010)} == {1}


def test_switch_balance_listed_first_keeps_its_connections() -> None:
    made = config("Switch")
    second = {**made["balances"][0], "id": "default/turns", "at": "Controller", "uplinks": made["balances"][0]["uplinks"][:1]}
    made["balances"].append(second)
    del made["hash"]
    home = Home({**made, "hash": document_hash(made)})
    home.up()
    commands = home.do(PacketIn(EDGE, PortNo(CLIENT_PORT), 0x534F010108010000, segment(40002)))
    assert [c.actions for c in commands if isinstance(c, PacketOut)] == [(ToGroup(group_id(1, 1)),)]
    assert Kind.CONNECTION not in home.kinds()


def test_switch_decides_and_connections_continue_without_a_controller() -> None:
    home = Home()
    home.up()
    kept = {sport: port_of(home.open(sport)) for sport in range(40000, 40010)}
    home.network.expire(home.now + 6)
    assert Counter(port_of(home.open(50000 + i)) for i in range(50)) == {1: 25, 2: 25}
    host = Location(EDGE, PortNo(CLIENT_PORT))
    assert kept == {sport: port_of(home.network.walk(host, segment(sport, flags=0x10))) for sport in kept}


def test_restarted_controller_preserves_connections() -> None:
    home = Home()
    home.up()
    kept = {sport: port_of(home.open(sport)) for sport in range(40000, 40010)}
    groups = dict(home.network.groups[EDGE])
    again = Home(network=home.network, epoch=2, now=home.now + 1)
    again.connect(["edge1"])
    assert again.network.groups[EDGE] == groups
    again.tick(15)
    host = Location(EDGE, PortNo(CLIENT_PORT))
    assert kept == {sport: port_of(again.network.walk(host, segment(sport, flags=0x10))) for sport in kept}
    assert again.network.groups[EDGE] == groups and again.row()["sessions"] == 10 and again.row()["state"] == "Programmed"


def test_reconnecting_switch_keeps_its_entries_and_groups() -> None:
    home = Home(config("Switch"))
    home.up()
    before, groups = home.kinds(), dict(home.network.groups[EDGE])
    home.disconnect("edge1")
    home.tick(1)
    home.connect(["edge1"])
    assert (home.kinds(), home.network.groups[EDGE]) == (before, groups)
    home.tick(12)
    assert (home.kinds(), home.network.groups[EDGE]) == (before, groups)


def test_switch_without_state_gets_groups_before_entries() -> None:
    home = Home(config("Switch"))
    home.up()
    before = home.kinds()
    home.network.tables.clear()
    home.network.groups.clear()
    home.disconnect("edge1")
    home.connect(["edge1"])
    assert home.kinds() == before and port_of(home.open(40000)) in (1, 2)


def test_group_decides_above_the_connection_limit_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "MAX_CONNECTIONS", 2)
    home = Home()
    home.up()
    for sport in (40000, 40001):
        home.open(sport)
    entry = home.network._lookup(Location(EDGE, PortNo(CLIENT_PORT)), 0, segment(40002))
    commands: list[Command] = home.do(PacketIn(EDGE, PortNo(CLIENT_PORT), entry.cookie, segment(40002)))
    assert [c.actions for c in commands if isinstance(c, PacketOut)] == [(ToGroup(group_id(1, 1)),)]
    assert home.kinds()[Kind.CONNECTION] == 4
    gone = next(e for e in home.network.entries(EDGE) if e.told)
    home.do(EntryGone(EDGE, gone.cookie, gone.match))
    home.open(40003)
    assert home.kinds()[Kind.CONNECTION] == 6 and home.row()["sessions"] == 2


# -- uplinks that go down and return


def set_port(home: Home, port: int, up: bool) -> None:
    home.do(PortChanged(EDGE, Port(PortNo(port), f"p{port}", parse_mac(f"02:00:00:00:00:{port:02x}"), up), False))
    home.tick(0.5)


def test_down_uplink_is_skipped_and_its_group_unchanged() -> None:
    home = Home()
    home.up()
    groups = dict(home.network.groups[EDGE])
    set_port(home, 1, up=False)
    home.tick(LOST_S + 5)
    assert {port_of(home.open(40000 + i)) for i in range(6)} == {2}
    assert "p1 (192.0.2.1)" in home.row()["message"] and home.row()["state"] == "Programmed"
    assert home.network.groups[EDGE] == groups, "a changed group would move connections of the other uplink"
    set_port(home, 1, up=True)
    assert {port_of(home.open(41000 + i)) for i in range(6)} == {1, 2}


def test_unresponsive_router_is_skipped_until_it_answers() -> None:
    home = Home()
    home.up()
    home.silent.add(2)
    home.tick(LOST_S + REFRESH_S + 1)
    assert {port_of(home.open(40000 + i)) for i in range(6)} == {1}
    assert len(next(iter(home.network.groups[EDGE].values())).buckets) == 1
    home.silent.clear()
    home.tick(2)
    assert {port_of(home.open(41000 + i)) for i in range(6)} == {1, 2}


def test_status_names_missing_hosts_and_uplinks() -> None:
    home = Home()
    assert home.row()["reason"] == "DatapathDisconnected"
    home.silent |= {1, 2, CLIENT_PORT}
    home.up()
    assert home.row()["reason"] == "NoHost" and "10.0.0.11" in home.row()["message"]
    home.silent.discard(CLIENT_PORT)
    home.tick(2)
    assert home.row()["reason"] == "NoUplink" and "p2 (192.0.2.5)" in home.row()["message"]
    home.silent.clear()
    home.tick(2)
    assert home.row() == {
        **{"id": "default/spread", "state": "Programmed", "reason": "Programmed", "message": "", "sessions": 0},
        **{"needed": [f"{EDGE:016x}"], "acknowledged": [f"{EDGE:016x}"]},
    }


def test_group_creation_waits_for_slow_routers() -> None:
    home = Home()
    home.silent.add(2)
    home.connect(["edge1"])
    home.tick(1)
    assert not home.network.groups.get(EDGE)
    home.tick(balance.GROUP_AFTER_S)
    assert len(next(iter(home.network.groups[EDGE].values())).buckets) == 1


# -- configuration


def test_removed_balance_keeps_only_connection_entries() -> None:
    home = Home()
    home.up()
    kept = {sport: port_of(home.open(sport)) for sport in range(40000, 40004)}
    home.do(ConfigChanged(parse(encode(config(at="", generation=2)))))
    home.tick(1)
    assert set(home.kinds()) & {Kind.BALANCE, Kind.CONNECTION} == {Kind.CONNECTION} and not home.network.groups[EDGE]
    host = Location(EDGE, PortNo(CLIENT_PORT))
    for sport, port in kept.items():
        ((where, frame),) = home.network.walk(host, segment(sport, flags=0x10))
        assert where.port_no == port
        assert [at for at, _ in home.network.walk(where, answer(frame))] == [host]


def test_balance_with_too_many_entries_is_refused() -> None:
    ports = [{"first": 1 + 1000 * i, "last": 998 + 1000 * i} for i in range(60)]
    home = Home(config(to=[f"198.51.{i}.0/24" for i in range(60)], ports=ports))
    home.up()
    assert home.row()["reason"] == "TableFull" and Kind.BALANCE in home.kinds()
    assert len(home.network.entries(EDGE)) < 50


def test_first_of_two_balances_wins_and_each_has_a_group() -> None:
    made = config("Switch")
    wide = {**made["balances"][0], "id": "default/wide", "to": ["0.0.0.0/0"], "ports": [{"first": 1, "last": 65535}]}
    wide["uplinks"] = wide["uplinks"][1:]
    made["balances"].append(wide)
    del made["hash"]
    home = Home({**made, "hash": document_hash(made)})
    home.up()
    assert {port_of(home.open(40000 + i)) for i in range(30)} == {1, 2}
    assert {port_of(home.open(40000 + i, dport=443)) for i in range(30)} == {2}
    assert len(home.network.groups[EDGE]) == 2


@given(st.lists(st.tuples(st.integers(1, 65535), st.integers(0, 40)), min_size=1, max_size=8))
def test_conditions_select_exactly_the_ports(ranges: list[tuple[int, int]]) -> None:
    ports = [{"first": first, "last": min(65535, first + more)} for first, more in ranges]
    (entry,) = parse(encode(config(ports=ports))).balances
    found = [m.tcp_dst for m in balance_entries.conditions(entry)]
    for port in {p for r in ports for p in (r["first"] - 1, r["first"], r["last"], r["last"] + 1)}:
        wanted = any(r["first"] <= port <= r["last"] for r in ports)
        assert any(port & mask == value for value, mask in filter(None, found)) == wanted


def test_stale_events_of_a_reconnecting_datapath_are_no_bug() -> None:
    home = Home()
    home.up()
    home.do(DatapathDown(EDGE))
    home.do(EntryGone(EDGE, 0x534F010109010000, Match(tcp_src=(40000, 0xFFFF))))
    home.do(DatapathUp(EDGE, ()))
    home.tick(1)
    assert home.row()["state"] == "Pending"
