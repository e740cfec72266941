"""Results of the demo: JSON, chart, table and wire limit."""

import json
from dataclasses import replace
from pathlib import Path

from sos_testbed.core.model import Shape
from sos_testbed.lifecycle.declare import load
from sos_testbed.lifecycle.lab import ONE_PATH, PROACTIVE
from sos_testbed.measurements.demo import BENCH_SCENARIOS, SCENARIOS, Row, bars, table, write
from sos_testbed.measurements.measure import WireLimit, formula_mbps, same_bytes, sha256

ROWS = [
    Row(
        scenario="164 ms",
        rtt_ms=164.0,
        link_mbps=500.0,
        wire_limit_mbps=470.7,
        plain_mbps=94.1,
        sos_mbps=423.6,
        ratio=4.5,
        sha256_ok=True,
        client_saw="10.0.0.139:80",
        server_saw="10.0.0.11:40000",
    )
]


def test_json_has_exactly_the_agreed_fields_and_the_chart_is_a_png(tmp_path: Path) -> None:
    write(tmp_path / "out", ROWS)
    (row,) = json.loads((tmp_path / "out" / "demo.json").read_text())
    fields = "scenario rtt_ms link_mbps wire_limit_mbps plain_mbps sos_mbps ratio sha256_ok client_saw server_saw"
    assert list(row) == fields.split()
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_table_is_aligned_and_has_the_share_of_the_wire_limit() -> None:
    head, line = table(ROWS)
    assert line.index("90%") == head.index("of wire")
    assert line.index("10.0.0.139:80") == head.index("client saw")


def test_bars_show_shares_of_the_wire_limit() -> None:
    _, plain, sos = bars(ROWS, width=50)
    assert (plain.count("█"), sos.count("█")) == (10, 45)


def test_wire_limit_is_the_lower_of_arithmetic_and_measurement() -> None:
    shape = Shape(rate_bps=500_000_000, rtt_us=20_000, loss=0.01, queue_bytes=10**6)
    arithmetic = formula_mbps(shape)
    assert round(arithmetic, 1) == 466.0  # 500 x 1448/1538 x 0.99
    assert WireLimit(formula_mbps=arithmetic, tcp_mbps=300, udp_mbps=460).mbps == 460
    assert WireLimit(formula_mbps=arithmetic, tcp_mbps=469, udp_mbps=0).mbps == arithmetic
    assert WireLimit(formula_mbps=arithmetic, tcp_mbps=None, udp_mbps=465).mbps == 465


def test_scenarios_include_three_basic_paths_and_two_with_two_paths() -> None:
    one = [(59_000, 0.0, 1), (164_000, 0.0, 1), (20_000, 0.01, 1)]
    reactive = [(s.rtt_us, s.loss, s.paths) for s in SCENARIOS if s.switches and not s.proactive]
    assert reactive == [*one, (59_000, 0.0, 2), (164_000, 0.0, 2)]
    assert BENCH_SCENARIOS[: len(SCENARIOS)] == SCENARIOS
    for scenario in BENCH_SCENARIOS:
        options = scenario.options(500_000_000)
        assert all(wire.shape is not None for wire in options.build().shaped())
        setups = [loaded.obj["spec"].get("setup") for loaded in load(options.files()) if loaded.obj["kind"] == "SosService"]
        assert setups == [None]


def test_a_proactive_scenario_reuses_the_lab_of_the_reactive_one() -> None:
    first, second = SCENARIOS[:2]
    assert (first.wire, first.proactive, second.proactive) == (second.wire, False, True)
    before, after = load(first.options(500_000_000).files()), load((PROACTIVE,))
    assert [loaded.obj["metadata"]["name"] for loaded in after] == [loaded.obj["metadata"]["name"] for loaded in before]
    setups = [loaded.obj["spec"].get("setup") for loaded in after if loaded.obj["kind"] == "SosService"]
    assert setups == ["Proactive"]


def test_two_paths_split_the_rate_and_their_wire_limits_add_up() -> None:
    options = SCENARIOS[-1].options(500_000_000)
    rates = [wire.shape.rate_bps for wire in options.build().shaped() if wire.shape is not None]
    (service,) = [loaded.obj for loaded in load(options.files()) if loaded.obj["kind"] == "SosService"]
    assert (rates, service["spec"]["paths"]) == ([250_000_000] * 2, {"mode": "Disjoint", "max": 2})
    assert WireLimit(formula_mbps=235, tcp_mbps=200, udp_mbps=210).of(2).mbps == 420
    assert str(WireLimit(formula_mbps=235, tcp_mbps=None, udp_mbps=234).of(2)) == "   468 Mbit/s (arithmetic 470, UDP 468)"


def test_bytes_are_compared_completely_or_as_a_prefix(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(bytes(range(256)) * 10)
    copy.write_bytes(source.read_bytes()[:1000])
    assert same_bytes(source, copy, complete=False)
    assert not same_bytes(source, copy, complete=True)
    copy.write_bytes(source.read_bytes()[:999] + b"x")
    assert not same_bytes(source, copy, complete=False)
    assert sha256(source, 1000) != sha256(copy)


def test_one_scenario_has_no_switches_and_otherwise_the_first_scenarios_path() -> None:
    (row,) = [scenario for scenario in SCENARIOS if not scenario.switches]
    assert (row.rtt_us, row.loss, row.queue_bytes, row.paths) == (SCENARIOS[0].rtt_us, 0.0, None, 1)
    options = row.options(500_000_000)
    assert (options.topology, options.examples[-1]) == ("routed-wan", ONE_PATH)
    assert replace(row, paths=2).options(500_000_000).examples == ()
