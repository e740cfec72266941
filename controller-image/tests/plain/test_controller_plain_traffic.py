"""Test covered connections that went plain: counters, samples, and the condition that plain is the rule."""

from __future__ import annotations

from typing import Any

import pytest
from controller_lab import document
from controller_world import CLIENT_PORT, World, encode, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged, PacketIn
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.plain.traffic import MAX_SAMPLES, RULE_CONNECTIONS, RULE_ENDS_AT, SAMPLES_PER_S, SLOT_S, SLOTS, PlainTraffic
from sos_controller.core.types import AgentId, FlowKey, PortNo, flow_key
from sos_controller.core.wire.order import OrderType
from sos_controller.core.wire.packets import parse_ends
from sos_controller.core.wire.path_report import service_mark
from sos_controller.core.wire.plain_report import PlainReport, PlainRow, PlainSample, encode_plain_report
from sos_controller.files.config import document_hash, parse

AGENT = AgentId(b"a" * 16)
KEY = flow_key(1, 2, 3, 4)
MPTCP = bytes((30, 4, 0, 0))


def traffic(*services: str) -> PlainTraffic:
    made = PlainTraffic()
    made.configure(services or ("a",))
    return made


def with_services(*changes: dict[str, Any]) -> dict[str, Any]:
    made = document(2)
    del made["hash"]
    bulk = made["services"][0]
    made["services"] = [{**bulk, **change} for change in changes]
    return {**made, "hash": document_hash(made)}


def counted(world: World, **query: Any) -> dict[str, dict[str, int]]:
    return {row["id"]: row["reasons"] for row in snapshot.plain(world.engine, **query)["services"]}


def test_syn_with_an_option_is_counted_and_sampled(world: World) -> None:
    world.syn(40000, options=MPTCP)
    world.syn(40000, options=MPTCP)
    assert counted(world) == {"default/bulk": {"Option": 1}}, "a retransmission belongs to the same connection"
    (shown,) = snapshot.plain(world.engine)["connections"]
    assert (shown["client"], shown["server"]) == ("10.0.0.11:40000", "10.0.0.139:5001")
    assert (shown["service"], shown["reason"], shown["by"]) == ("default/bulk", "Option", "controller")
    assert not snapshot.plain(world.engine, client=snapshot.place("10.0.0.12"))["connections"]
    assert not snapshot.plain(world.engine, service="default/other")["connections"]


def test_connection_outside_all_services_is_not_counted(world: World) -> None:
    world.syn(40000, dport=7777)
    assert counted(world) == {}


def test_tagged_and_unparsable_first_packets_count_for_their_service(world: World) -> None:
    frame = syn_frame(10 << 24 | 11, 10 << 24 | 139, 40000, 5001)
    tagged = frame[:12] + b"\x81\x00\x00\x07" + frame[12:]
    fragment = frame[:20] + b"\x20\x00" + frame[22:]
    for data in (tagged, fragment, frame[:20] + b"\x20\x07" + frame[22:], frame[:30]):
        world.do(PacketIn(world.west, PortNo(CLIENT_PORT), world.punt_cookie, data))
    assert counted(world) == {"default/bulk": {"Vlan": 1, "Unparsed": 1}}


@given(st.binary(max_size=80))
def test_any_bytes_yield_a_flow_key_or_none(data: bytes) -> None:
    for candidate in (data, b"\0" * 12 + b"\x08\x00\x45" + data, b"\0" * 12 + b"\x81\x00\0\0\x08\x00" + data):
        found = parse_ends(candidate)
        assert found is None or len(found.key) == 12


@pytest.mark.parametrize(("mode", "reason"), [("refuse", "AgentSessions"), ("silent", "NoAnswer")])
def test_failed_set_up_keeps_its_reason(world: World, mode: str, reason: str) -> None:
    world.agents["agent2"].mode = mode
    world.syn(40000)
    world.tick(1.2)
    assert counted(world) == {"default/bulk": {reason: 1}}


def test_shadowed_connection_is_counted_for_both_services() -> None:
    world = World(with_services({"id": "a/observer", "mode": "Observe"}, {}))
    world.converge()
    world.syn(40000)
    assert counted(world) == {"a/observer": {"Observed": 1}, "default/bulk": {"Shadowed": 1}}


def test_control_group_does_not_make_plain_the_rule() -> None:
    world = World(with_services({"percent": 1}))
    world.converge()
    for port in range(40000, 40050):
        world.syn(port)
    found = world.engine.state.plain_traffic.recent("default/bulk", world.now)
    assert found.plain[PlainReason.PERCENT] > 40 and not found.is_rule and found.leading is None


def test_status_shows_plain_as_the_rule_until_connections_are_accelerated(world: World) -> None:
    world.agents["agent2"].mode = "refuse"
    for port in range(40000, 40000 + RULE_CONNECTIONS):
        world.syn(port)
    recent = row(world)["recent"]
    assert recent["plainIsRule"] and recent["leadingReason"] == "AgentSessions" and recent["plain"] == {"AgentSessions": RULE_CONNECTIONS}
    world.agents["agent2"].mode = "ready"
    for port in range(41000, 41000 + RULE_CONNECTIONS * RULE_ENDS_AT - 1):
        world.syn(port)
    assert row(world)["recent"]["plainIsRule"], "hysteresis"
    world.syn(42000)
    recent = row(world)["recent"]
    assert not recent["plainIsRule"] and recent["accelerated"] == RULE_CONNECTIONS * RULE_ENDS_AT


def row(world: World) -> dict[str, Any]:
    (found,) = snapshot.status(world.engine, "", "")["services"]
    return dict(found)


def test_report_of_an_agent_is_counted_once_and_sampled(world: World) -> None:
    mark, agent = service_mark("default/bulk"), world.agents["agent1"]

    def report(*rows: PlainRow, samples: tuple[PlainSample, ...] = ()) -> None:
        body = encode_plain_report(PlainReport(rows, samples))
        world.do(PacketIn(*agent.where, 0, agent.order(OrderType.PLAIN_REPORT, body, world.wall(world.now))))

    report(PlainRow(mark, 1, 70))
    assert counted(world) == {}, "a first report only sets the baseline"
    world.tick(2)
    sample = PlainSample(mark, 16, flow_key(10 << 24 | 11, 10 << 24 | 139, 40000, 5001))
    report(PlainRow(mark, 1, 72), PlainRow(mark, 0, 3), PlainRow(mark, 999, 5), samples=(sample,))
    report(PlainRow(mark, 1, 72), PlainRow(mark, 0, 3))
    assert counted(world) == {"default/bulk": {"Option": 2}}
    assert world.engine.state.plain_traffic.recent("default/bulk", world.now).accelerated == 3
    (shown,) = snapshot.plain(world.engine)["connections"]
    assert (shown["reason"], shown["by"]) == ("ServerUnreachable", "agent1")


def test_counters_of_a_removed_service_are_dropped(world: World) -> None:
    world.syn(40000, options=MPTCP)
    world.do(ConfigChanged(parse(encode(with_services({"id": "default/other"})))))
    assert counted(world) == {}


def test_flood_of_connections_does_not_replace_earlier_samples() -> None:
    made = traffic()
    for i in range(10):
        made.plain("a", PlainReason.FULL, KEY, float(i))
    for i in range(100_000):
        made.plain("a", PlainReason.OPTION, FlowKey(i.to_bytes(12, "big")), 20.0)
    assert sum(s.reason is PlainReason.FULL for s in made.samples()) == 10
    assert len(made.samples()) == 10 + SAMPLES_PER_S
    assert {r: n for _, r, n in made.totals()}[PlainReason.OPTION] == 100_000


@given(st.lists(st.tuples(st.sampled_from([None, *PlainReason]), st.integers(0, 60))))
def test_window_holds_only_the_last_minutes(events: list[tuple[PlainReason | None, int]]) -> None:
    made, now, noted = traffic(), 0.0, []
    for reason, seconds in events:
        now += seconds
        if reason is None:
            made.accelerated("a", now)
        else:
            made.plain("a", reason, KEY, now)
        noted.append((now, reason))
    found = made.recent("a", now)
    inside = [reason for at, reason in noted if now // SLOT_S - at // SLOT_S < SLOTS]
    assert found.accelerated == inside.count(None)
    assert sum(found.plain.values()) == len(inside) - inside.count(None)
    assert len(made.samples()) <= MAX_SAMPLES


@given(st.lists(st.booleans(), max_size=200))
def test_plain_is_the_rule_only_with_enough_plain_connections(events: list[bool]) -> None:
    made = traffic()
    for number, plain in enumerate(events):
        if plain:
            made.plain("a", PlainReason.FULL, None, number / 10)
        else:
            made.accelerated("a", number / 10)
        found = made.recent("a", number / 10)
        assert not found.is_rule or sum(found.plain.values()) >= RULE_CONNECTIONS
    assert not made.recent("a", 10_000.0).is_rule


steps = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([None, *PlainReason]), st.integers(1, 5)), max_size=40)


@given(steps, st.integers(0, 12))
def test_window_holds_the_connections_of_its_slots(counts: list[tuple[int, PlainReason | None, int]], later: int) -> None:
    made, now, seen = traffic(), 0, list[tuple[int, PlainReason | None]]()
    for slots, reason, count in counts:
        now += slots
        for _ in range(count):
            seen.append((now, reason))
            if reason is None:
                made.accelerated("a", now * SLOT_S)
            else:
                made.plain("a", reason, None, now * SLOT_S)
    found = made.recent("a", (now + later) * SLOT_S)
    inside = [reason for at, reason in seen if now + later - at < SLOTS]
    assert found.accelerated == inside.count(None)
    assert found.plain == {reason: inside.count(reason) for reason in PlainReason if reason in inside}
