"""Test passive measurement: packet copies and the computed results. Measuring must not change forwarding."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import pytest
from controller_fake import E1
from controller_lab import document
from controller_views import AT_CLIENT, CLIENT, SERVER, released
from controller_world import CLIENT_PORT, World, encode, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.events import ConfigChanged, PacketIn
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.flow_entries import Goto, Output
from sos_controller.core.openflow.pipeline import PORT_CONTROLLER, PORT_NORMAL, TABLE_FORWARD, Kind, cookie_kind
from sos_controller.core.services import gain as comparison
from sos_controller.core.services.gain import ACCELERATED, PLAIN, Gain, size_class
from sos_controller.core.services.passive_measurement import PassiveMeasurement
from sos_controller.core.tables.policies import in_share
from sos_controller.core.types import Location, PortNo
from sos_controller.core.wire.packets import parse_segment
from sos_controller.files.config import document_hash, parse

WAN_PORT = PortNo(1)
SYN_ACK, FIN_ACK = 0x12, 0x11


def with_service(**fields: Any) -> World:
    made = document()
    made["services"][0] |= fields
    made["hash"] = document_hash(made)
    world = World(made)
    world.converge()
    return world


def measure_cookie() -> int:
    return pipeline.cookie(1, Kind.MEASURE, 1)


def answer(sport: int, flags: int, seq: int, ack: int, payload: int = 0) -> bytes:
    """Return a packet of the server."""
    frame = bytearray(syn_frame(SERVER, CLIENT, 5001, sport, seq, flags, mac="server"))
    frame[42:46] = struct.pack("!I", ack & 0xFFFFFFFF)
    frame[16:18] = struct.pack("!H", 40 + payload)
    return bytes(frame) + bytes(payload)


def copy(world: World, port: int, data: bytes) -> None:
    world.do(PacketIn(world.west, PortNo(port), measure_cookie(), data))


def connection(world: World, sport: int, down: int, seconds: float, isn: int = 0xFFFFFFF0) -> None:
    """Complete a connection after its SYN with number `isn`: the server answers after 40 ms and sends `down` bytes."""
    world.now += 0.04
    copy(world, WAN_PORT, answer(sport, SYN_ACK, isn, isn + 1))
    world.now += seconds - 0.04
    copy(world, WAN_PORT, answer(sport, FIN_ACK, isn + 1 + down - 100, isn + 1 + 7, payload=100))


def shown(world: World) -> dict[str, Any]:
    (found,) = snapshot.measurements(world.engine)["services"]
    assert json.loads(json.dumps(found)) == found
    return found


# -- comparison


def test_size_classes_have_their_bounds() -> None:
    assert [size_class(n) for n in (0, 16_384, 65_535, 65_536, 262_143, 262_144, 2**60)] == [0, 0, 0, 1, 1, 2, comparison.CLASSES - 1]


@given(
    st.lists(st.tuples(st.integers(14, 36), st.floats(0.1, 10)), min_size=3, max_size=40),
    st.floats(0.05, 50),
)
def test_gain_is_independent_of_the_mixture_of_sizes(flows: list[tuple[int, float]], gain: float) -> None:
    """The plain group contains each transfer three times, the accelerated group once. A comparison of sums would be wrong."""
    found = Gain()
    for exponent, seconds in flows:
        moved = 1 << exponent
        for _ in range(3):
            found.ended(PLAIN, moved, seconds * moved / 1e6, 0.0)
        found.ended(ACCELERATED, moved, seconds * moved / 1e6 / gain, 0.0)
    assert found.gain(0.0) == pytest.approx(gain)


def test_different_sizes_alone_are_no_gain() -> None:
    found = Gain()
    for _ in range(10):
        found.ended(ACCELERATED, 10**9, 10.0, 0.0)
        found.ended(PLAIN, 10**5, 1.0, 0.0)
    assert found.gain(0.0) is None, "the groups have no size class in common"
    for _ in range(3):
        found.ended(ACCELERATED, 10**5, 1.0, 0.0)
    assert found.gain(0.0) == pytest.approx(1.0)


def test_old_connections_lose_weight_and_expire() -> None:
    found = Gain()
    for group, rate in ((ACCELERATED, 8e6), (PLAIN, 1e6)):
        for _ in range(20):
            found.ended(group, 10**6, 10**6 / rate, 0.0)
    assert found.gain(0.0) == pytest.approx(8.0)
    later = 2 * comparison.HALF_LIFE_S
    for _ in range(20):
        found.ended(ACCELERATED, 10**6, 1 / 2, later)
    assert found.gain(later) == pytest.approx(math.exp((20 * math.log(2) + 5 * math.log(8)) / 25))
    assert found.gain(later + 10 * comparison.HALF_LIFE_S) is None
    assert found.summary(PLAIN, later + 100 * comparison.HALF_LIFE_S).goodput is None


@given(st.binary(max_size=120))
def test_any_bytes_parse_as_a_segment_or_none(data: bytes) -> None:
    for frame in (data, bytes(12) + b"\x08\x00\x45" + data):
        found = parse_segment(frame)
        assert found is None or found.size >= 0


# -- observation


def test_observed_connections_are_copied_and_forwarded_unchanged() -> None:
    world = with_service(mode="Observe")
    made = [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.MEASURE]
    assert made and all(e.actions == (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD)) and e.hard_timeout for e in made)
    assert not {Kind.PUNT, Kind.PATH} & {cookie_kind(e.cookie) for e in world.network.entries(E1)}
    for place, frame in (
        (AT_CLIENT, syn_frame(CLIENT, SERVER, 40000, 5001)),
        (Location(E1, WAN_PORT), answer(40000, SYN_ACK, 1, 2)),
        (Location(E1, WAN_PORT), answer(40000, FIN_ACK, 1, 2)),
    ):
        assert (Location(E1, PORT_NORMAL), frame) in world.network.walk(place, frame)
        assert (Location(E1, PORT_CONTROLLER), frame) in world.network.walk(place, frame)
    for place, frame in (
        (AT_CLIENT, syn_frame(CLIENT, SERVER, 40000, 5001, flags=0x10)),
        (Location(E1, WAN_PORT), answer(40000, 0x10, 1, 2)),
    ):
        assert world.network.walk(place, frame) == [(Location(E1, PORT_NORMAL), frame)], "data is not copied"


def test_observed_connection_yields_round_trip_time_and_goodput() -> None:
    world = with_service(mode="Observe")
    world.delivered.clear()
    copy(world, CLIENT_PORT, syn_frame(CLIENT, SERVER, 40000, 5001, isn=0xFFFFFFF0))
    copy(world, CLIENT_PORT, syn_frame(CLIENT, SERVER, 40000, 5001, isn=0xFFFFFFF0))
    connection(world, 40000, 5_000_000, 2.0)
    found = shown(world)
    assert found["plain"] == {"connections": 1, "bytesPerSecond": 2_500_000, "answerMicros": 40_000}
    assert found["accelerated"]["connections"] == 0 and found["gain"] is None
    assert not released(world) and len(world.engine.state.sessions) == 0, "a copy is only measured"


def test_measuring_leases_are_renewed_and_removed_with_the_service() -> None:
    world = with_service(mode="Observe")
    keys = [e.key for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.MEASURE]
    world.tick(12.0)
    assert all(world.network.expires[E1, key] > world.now for key in keys)
    world.do(ConfigChanged(parse(encode(document(generation=2)))))
    world.tick(1.0)
    assert not [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.MEASURE]
    copy(world, CLIENT_PORT, syn_frame(CLIENT, SERVER, 40000, 5001))
    assert shown(world).get("plain") is None


def test_recorded_connections_are_bounded() -> None:
    world = with_service(mode="Observe")
    observed = world.engine.plan.passive_measurement = PassiveMeasurement(world.engine.state, limit=10)
    observed.configure()
    for sport in range(1_000, 1_100):
        copy(world, CLIENT_PORT, syn_frame(CLIENT, SERVER, sport, 5001))
    assert len(observed) == 10 and shown(world)["plain"]["connections"] == 100


# -- percent


def test_accelerated_percentage_is_compared_with_the_control_group() -> None:
    world = with_service(percent=50)
    rates = {ACCELERATED: 8e6, PLAIN: 1e6}
    for sport in range(40_000, 40_040):
        world.syn(sport, isn=0xFFFFFFF0)
        sessions = world.engine.state.sessions
        key = syn_frame(CLIENT, SERVER, sport, 5001)[26:38]
        session = sessions.by_key(key)  # type: ignore[arg-type]
        assert (session is not None) == in_share(key, 50)  # type: ignore[arg-type]
        connection(world, sport, 2_000_000, 2e6 / rates[ACCELERATED if session is not None else PLAIN])
        world.tick(0.5)
        if session is not None:
            world.end(session.uuid)
    found = shown(world)
    assert found["gain"] == pytest.approx(8.0, abs=0.01)
    assert found["accelerated"]["connections"] + found["plain"]["connections"] == 40
    assert snapshot.status(world.engine, "", "")["services"][0]["gain"] == found["gain"]
    assert found["accelerated"]["connections"] > 3 and found["plain"]["connections"] > 3


def test_connection_that_is_plain_for_another_reason_is_not_compared() -> None:
    world = with_service(percent=99)
    for agent in world.agents.values():
        agent.mode = "refuse"
    before = len(released(world))
    for sport in range(40_000, 40_010):
        if in_share(syn_frame(CLIENT, SERVER, sport, 5001)[26:38], 99):  # type: ignore[arg-type]
            world.syn(sport)
    assert len(released(world)) > before and len(world.engine.plan.passive_measurement) == 0


def test_fully_accelerated_service_is_not_measured(world: World) -> None:
    assert not [e for e in world.network.entries(E1) if cookie_kind(e.cookie) == Kind.MEASURE]
    world.syn(40000)
    assert len(world.engine.plan.passive_measurement) == 0 and "gain" not in shown(world)


def test_first_of_two_services_decides_even_if_it_observes() -> None:
    made = document()
    first = {**made["services"][0], "id": "default/seen", "mode": "Observe", "ports": [{"first": 5001, "last": 5001}]}
    made["services"] = [first, *made["services"]]
    made["hash"] = document_hash(made)
    world = World(made)
    world.converge()
    world.syn(40000, dport=5001)
    assert len(world.engine.state.sessions) == 0 and len(world.engine.plan.passive_measurement) == 1, (
        "the second service's entry punts the SYN, and the first service observes it"
    )
    world.syn(40001, dport=5002)
    assert len(world.engine.state.sessions) == 1 and len(world.engine.plan.passive_measurement) == 1
