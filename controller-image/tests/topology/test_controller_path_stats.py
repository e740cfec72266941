"""Test the agents' path measurements, their expiry and bounds, and the path choice that uses them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from controller_lab import document
from controller_world import World
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core import snapshot
from sos_controller.core.config import ONE_PATH_MODES
from sos_controller.core.events import PacketIn
from sos_controller.core.pairs.path_choice import Choice, PathAssignments, pick
from sos_controller.core.topology import path_stats
from sos_controller.core.topology.path_stats import PathMeasure, PathStats, Series
from sos_controller.core.types import AgentId
from sos_controller.core.wire import order, path_report
from sos_controller.core.wire.path_report import PathReport, PathRow, ServiceRow, service_mark
from sos_controller.files.config import document_hash

LOW, HIGH = AgentId(b"\x01" * 16), AgentId(b"\x02" * 16)
BULK = service_mark("default/bulk")


def row(peer: AgentId, label: int = 0, rtt_us: int = 50_000, sent: int = 0, received: int = 0) -> PathRow:
    return PathRow(peer, label, 8, rtt_us, rtt_us, sent, received)


def report(at_ms: int, *paths: PathRow, services: tuple[ServiceRow, ...] = ()) -> PathReport:
    return PathReport(at_ms, paths, services)


# -- measurements


@given(st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20))
def test_rates_use_the_clock_of_the_reporting_agent(steps: list[tuple[int, int, int]]) -> None:
    series, at, counters, samples = Series(), 0, (0, 0), list[tuple[int, int, int]]()
    for gap, up, down in steps:
        at, counters = at + gap, (counters[0] + up, counters[1] + down)
        assert series.add(at, counters, 0.0)
        samples = [*samples, (at, *counters)][-path_stats.SAMPLES :]
    rates = series.rates()
    if len(samples) == 1:
        assert rates.mean == rates.latest == (0.0, 0.0)
        return
    for shown, first in ((rates.mean, samples[0]), (rates.latest, samples[-2])):
        seconds = (samples[-1][0] - first[0]) / 1000
        assert shown == pytest.approx(((samples[-1][1] - first[1]) / seconds, (samples[-1][2] - first[2]) / seconds))


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=30))
def test_rates_are_never_negative_for_any_reported_counters(said: list[tuple[int, int, int]]) -> None:
    series = Series()
    for at, up, down in said:
        series.add(at, (up, down), 0.0)
        assert min(*series.rates().mean, *series.rates().latest) >= 0


def test_path_measurement_combines_the_reports_of_both_agents() -> None:
    kept = PathStats()
    for at, now in ((1_000, 10.0), (3_000, 12.0)):
        passed = (at - 1_000) * 1_000
        kept.report(LOW, report(at, row(HIGH, rtt_us=61_000, sent=passed + passed // 50, received=7 * passed)), now)
        kept.report(HIGH, report(at, row(LOW, rtt_us=59_000, sent=8 * passed, received=passed)), now)
    found = kept.path(LOW, HIGH, 0)
    assert found is not None and (found.forward, found.back, found.rtt_us) == (1_000_000, 7_000_000, 59_000)
    kept.forget(HIGH)
    found = kept.path(LOW, HIGH, 0)
    assert found is not None and (found.forward, found.back) == (1_020_000, 7_000_000), "the sender's count replaces it"
    assert kept.path(LOW, HIGH, 1) is None and kept.path(HIGH, LOW, 0) is not None


def test_measurements_without_reports_expire() -> None:
    kept = PathStats()
    kept.report(LOW, report(1, row(HIGH), services=(ServiceRow(BULK, 1, 2, 3),)), 10.0)
    kept.expire(10.0 + path_stats.FRESH_S)
    assert len(kept) == 2
    kept.expire(10.1 + path_stats.FRESH_S)
    assert len(kept) == 0 and kept.path(LOW, HIGH, 0) is None


def test_measurements_are_bounded_and_known_paths_are_updated() -> None:
    kept = PathStats(limit=3)
    for label in range(8):
        kept.report(LOW, report(1, row(HIGH, label), services=(ServiceRow(bytes([label] * 8), 0, 0, 0),)), 1.0)
    assert len(kept) == 6
    kept.report(LOW, report(2, row(HIGH, 2, rtt_us=7)), 2.0)
    found = kept.path(LOW, HIGH, 2)
    assert found is not None and found.rtt_us == 7


# -- path choice


def choice(label: int, rtt_us: int | None = None, load: float = 0.0, capacity: float = 0.0, given: int = 0) -> Choice:
    measure = None if rtt_us is None else PathMeasure(rtt_us, rtt_us, 0.0, 0.0, load, 1.0)
    return Choice(label, measure, capacity, given)


CHOICES = st.lists(
    st.builds(
        choice, st.just(0), st.none() | st.integers(0, 10**6), st.floats(0, 1e9), st.sampled_from([0.0, 1e6, 1e9]), st.integers(0, 99)
    ),
    min_size=1,
    max_size=8,
).map(lambda found: [c._replace(label=2 * i) for i, c in enumerate(found)])


@given(st.sampled_from(sorted(ONE_PATH_MODES)), CHOICES, st.integers(0, 10**6))
def test_session_gets_one_of_the_existing_paths(mode: str, choices: list[Choice], turn: int) -> None:
    label = pick(mode, choices, turn)
    assert label in {c.label for c in choices}
    assert label == pick(mode, choices, turn)
    if mode == "RoundRobin":
        following = [pick(mode, choices, turn + i) for i in range(len(choices))]
        assert sorted(following) == [c.label for c in choices]
    elif not any(c.measure for c in choices):
        assert label == choices[0].label, "without measurements, the first (shortest) path is chosen"


@given(CHOICES, st.integers(0, 10))
def test_measured_mode_never_chooses_a_measurably_longer_path(choices: list[Choice], turn: int) -> None:
    chosen = next(c for c in choices if c.label == pick("Measured", choices, turn))
    timed = [c.measure.rtt_us for c in choices if c.measure is not None and c.measure.rtt_us]
    if timed:
        assert chosen.measure is not None and 0 < chosen.measure.rtt_us <= max(min(timed) * 1.1, min(timed) + 2_000)


@given(CHOICES, st.integers(0, 10))
def test_least_loaded_mode_never_chooses_a_more_loaded_path(choices: list[Choice], turn: int) -> None:
    known = [c for c in choices if c.measure is not None]
    chosen = next(c for c in choices if c.label == pick("LeastLoaded", choices, turn))
    if known:
        plain = known if all(c.capacity for c in known) else [c._replace(capacity=0.0) for c in known]
        assert min(plain, key=lambda c: (c.load, c.label)).label == chosen.label


def test_sessions_between_two_reports_are_spread_over_paths() -> None:
    turns, pair, taken = PathAssignments(), (LOW, HIGH), list[int]()
    for _ in range(10):
        found = [choice(label, 50_000, given=turns.given(pair, label, 1.0)) for label in (0, 1)]
        taken.append(pick("LeastLoaded", found, 0))
        turns.give(pair, taken[-1], 1.0)
    assert taken == [0, 1] * 5
    assert turns.given(pair, 0, 2.0) == 0, "a later measurement already includes earlier sessions"


def test_path_assignments_are_bounded() -> None:
    turns = PathAssignments(limit=4)
    for i in range(20):
        pair = (LOW, AgentId(bytes([i]) * 16))
        assert turns.turn("default/bulk", pair) == 0 and turns.turn("default/bulk", pair) == 1
        turns.give(pair, 0, 1.0)
    assert len(turns._turns) <= 4 and len(turns._given) <= 4


# -- in the engine


def with_paths(**paths: Any) -> dict[str, Any]:
    made = document()
    made["services"][0]["paths"] = paths
    made["hash"] = document_hash(made)
    return made


def tell(world: World, at_ms: int, rtts: tuple[int, int], received: tuple[int, int] = (0, 0)) -> None:
    ingress, egress = world.agents["agent1"], world.agents["agent2"]
    for agent, peer in ((ingress, egress), (egress, ingress)):
        rows = tuple(row(peer.id, label, rtts[label], received=received[label]) for label in (0, 1))
        counted = (ServiceRow(BULK, 1, 1_000 * at_ms, 0),) if agent is ingress else ()
        body = path_report.encode_path_report(PathReport(at_ms, rows, counted))
        world.do(PacketIn(*agent.where, 0, agent.order(order.OrderType.PATH_REPORT, body, world.wall(world.now))))


def labels(world: World, number: int) -> list[int]:
    for i in range(number):
        world.syn(41_000 + i)
    found = sorted(world.engine.state.sessions, key=lambda s: s.key)
    return [s.labels for s in found]


def test_sessions_use_paths_in_round_robin() -> None:
    world = World(with_paths(mode="RoundRobin", max=2))
    world.converge()
    assert labels(world, 6) == [1, 2] * 3


def test_measured_mode_uses_the_shorter_path_while_measurements_are_fresh() -> None:
    world = World(with_paths(mode="Measured", max=2))
    world.converge()
    assert labels(world, 2) == [1, 1]
    tell(world, 1_000, (80_000, 40_000))
    world.syn(42_000)
    found = world.engine.state.sessions.by_key(max(s.key for s in world.engine.state.sessions))
    assert found is not None and found.labels == 2
    world.tick(path_stats.FRESH_S + 1)
    world.syn(43_000)
    found = world.engine.state.sessions.by_key(max(s.key for s in world.engine.state.sessions))
    assert found is not None and found.labels == 1, "expired measurements do not count"


def test_least_loaded_path_is_chosen() -> None:
    world = World(with_paths(mode="LeastLoaded", max=2))
    world.converge()
    tell(world, 1_000, (50_000, 50_000), (0, 0))
    tell(world, 3_000, (50_000, 50_000), (40_000_000, 2_000_000))
    assert labels(world, 4) == [2] * 4
    tell(world, 5_000, (50_000, 50_000), (40_000_000, 42_000_000))
    world.syn(42_000)
    assert max(world.engine.state.sessions, key=lambda s: s.key).labels == 1


def test_measurements_are_shown_and_removed_with_their_agents() -> None:
    world = World(with_paths(mode="Disjoint", max=2))
    world.converge()
    tell(world, 1_000, (59_000, 164_000))
    tell(world, 3_000, (59_000, 164_000), (250_000, 0))
    shown = snapshot.measurements(world.engine)
    assert json.loads(json.dumps(shown)) == shown
    assert [(p["label"], p["rttMicros"], p["forwardBytesPerSecond"], len(p["dpids"])) for p in shown["paths"]] == [
        (0, 59_000, 125_000, 3),
        (1, 164_000, 0, 3),
    ]
    (service,) = shown["services"]
    assert (service["id"], service["upBytesPerSecond"], service["bytesUp"]) == ("default/bulk", 1_000_000, 3_000_000)
    for agent in world.agents.values():
        agent.mode = "dead"
    world.tick(6)
    assert snapshot.measurements(world.engine)["paths"] == []


def test_service_that_selects_paths_is_reactive() -> None:
    made = with_paths(mode="Measured", max=2)
    made["services"][0]["setup"] = "Proactive"
    made["hash"] = document_hash(made)
    world = World(made)
    world.converge()
    (shown,) = snapshot.status(world.engine, "", "")["services"]
    assert shown["message"].startswith("set up reactively: with paths.mode Measured")
