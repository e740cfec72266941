"""scripts/figures.py: benchmark figures become tables of a page."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from testbed_scripts import load_script

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return load_script("figures")


def row(scheme: str, runs: int, **medians: float) -> dict[str, Any]:
    found = {name: {"median": value, "least": value - 1, "most": value + 1} for name, value in medians.items()}
    status = "ok" if runs else "not available: no such program"
    return {"scenario": "59ms", "scheme": scheme, "runs": runs, "failed": 0, "status": status, "wire_limit_mbps": 942.0, **found}


def document(*rows: dict[str, Any], settings: str = "48d57a2c, 20 s") -> dict[str, Any]:
    return {"settings": settings, "machine": {"kernel": "6.1", "cpus": 2}, "rows": list(rows)}


def test_each_scenario_is_a_table_of_its_measured_schemes(figures: ModuleType) -> None:
    text = figures.page_part("wan", document(row("sos", 5, mbps_total=929.4, retransmits_per_gb=1234.0), row("gridftp-8", 0)))
    assert text.splitlines()[1] == "Median (min-max) of `make bench-wan` at 48d57a2c, 20 s per measurement, 2 cores, Linux 6.1."
    assert text.splitlines()[3:] == [
        "**59ms**, wire 942 Mbit/s",
        "",
        "|  | runs | Mbit/s | retransmits per GB |",
        "| --- | --- | --- | --- |",
        "| **sos** | 5 | 929 (928-930) | 1,234 |",
        "",
        "gridftp-8: not available: no such program.",
    ]


def test_cell_is_empty_if_a_scheme_lacks_the_figure(figures: ModuleType) -> None:
    text = figures.page_part("wan", document(row("sos", 3, mbps_total=9.0, reorder_peak_mb=4.0), row("plain", 3, mbps_total=8.0)))
    assert text.splitlines()[-2:] == ["| **sos** | 3 | 9 (8-10) | 4 |", "| plain | 3 | 8 (7-9) |  |"]


def comparison(ours: str, against: str, rates: tuple[float, float], interval: tuple[float, float]) -> dict[str, Any]:
    ratio = {"value": rates[0] / rates[1], "low": interval[0], "high": interval[1]}
    return {"ours": ours, "against": against, "ours_mbps": rates[0], "best_mbps": rates[1], "runs": [5, 4], "ratio": ratio}


def test_each_case_of_the_matrix_is_a_line_with_ratios_and_intervals(figures: ModuleType) -> None:
    beside_plain = [comparison("sos first", "plain", (80.0, 5.0), (14.2, 18.0)), comparison("sos", "plain", (90.0, 5.0), (17.5, 18.4))]
    beside_path = [
        comparison("sos first", "own path", (80.0, 40.0), (1.9, 2.1)),
        comparison("sos", "own path", (90.0, 100.0), (0.85, 0.95)),
    ]
    case = {"wire_limit_mbps": 188.3, "title": "100 Mbit/s", "verdict": "holds"}
    cases = [
        {**case, "name": "one", "comparisons": beside_plain},
        {**case, "name": "two", "comparisons": beside_plain + beside_path, "verdict": "below"},
    ]
    text = figures.page_part("matrix", document() | {"least_ratio": 0.97, "confidence": 0.95, "cases": cases})
    assert text.splitlines()[1].endswith("Rates in Mbit/s; ratios with 95% confidence intervals; below 0.97 counts as worse.")
    assert text.splitlines()[-2:] == [
        "| `one`: 100 Mbit/s | 4 | 188.3 | 5 | 80 | 90 | 16 (14-18) | 18 (18-18) |  |  | holds |",
        "| `two`: 100 Mbit/s | 4 | 188.3 | 5 | 80 | 90 | 16 (14-18) | 18 (18-18) | 2.000 (1.900-2.100) | 0.900 (0.850-0.950) | below |",
    ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (document(row("sos", 5, mbps_total=1.0), settings="48d57a2c+changes, 20 s"), "not committed"),
        (document(row("sos", 5, mbps_total=1.0), row("plain", 2, mbps_total=1.0)), "less than 3 runs of 59ms plain"),
        (document(), "nothing was measured"),
        (document(row("sos", 5, mbps_total=1.0)) | {"cases": [{"name": "equal", "missing": 2}]}, "not everything was measured of equal"),
    ],
)
def test_incomplete_or_uncommitted_figures_are_not_kept(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept")
    (tmp_path / "wan.json").write_text(json.dumps(wrong))
    with pytest.raises(figures.NotKept, match=why):
        figures.take(tmp_path)
    assert not (tmp_path / "kept" / "wan.json").exists()


def test_page_has_a_section_for_every_benchmark(figures: ModuleType) -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    assert [name for name in (*figures.NAMES, *figures.SUMMARIES) if f"<!-- generated: {name} -->\n" not in page] == []


def test_summary_of_a_long_path_includes_the_fastest_alternative(figures: ModuleType) -> None:
    ours = [row("sos first", 5, mbps_total=901, retransmits_per_gb=11912), row("sos", 5, mbps_total=918, retransmits_per_gb=126)]
    others = [row("plain", 5, mbps_total=132, retransmits_per_gb=0), row("iperf3-32", 5, mbps_total=903, retransmits_per_gb=752)]
    text = figures.long_paths(document(*ours, *others, row("gridftp-8", 0)))
    assert text.splitlines()[-1] == "| 59 ms | 942 | 901 | 918 | 97 % | 903, iperf3, 32 streams | 11,912 / 126 / 752 |"


def test_a_short_request_is_a_row_of_percentiles(figures: ModuleType) -> None:
    medians = {"first_byte_p50_ms": 101.4, "first_byte_p99_ms": 104.7, "p50_ms": 102.0, "p99_ms": 1210.4}
    text = figures.short_requests(document(row("sos", 5, **medians), row("haproxy", 0)))
    assert text.splitlines()[-1] == "| 59ms | **sos** | 101 | 105 | 102 | 1,210 |"


def test_kept_figures_equal_the_measured_figures(figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept")
    measured = document(row("sos", 5, mbps_total=929.0))
    (tmp_path / "wan.json").write_text(json.dumps(measured))
    assert figures.take(tmp_path) == ["wan"]
    assert json.loads((tmp_path / "kept" / "wan.json").read_text()) == measured
    assert list(figures.parts()) == ["wan"]


def test_sizing_has_cores_per_gbit_and_memory_per_number_of_sessions(figures: ModuleType) -> None:
    relay = {**row("sos-tls", 5, mbps_total=998, cpu_sender_s_per_gb=0.8, cpu_receiver_s_per_gb=0.96), "scenario": "1gbit"}
    text = figures.relay_cores(document(relay, {**relay, "scheme": "haproxy"}))
    assert text.splitlines()[3:] == ["| 1 Gbit/s, no delay | TCP with TLS | 998 | 0.10 | 0.12 |"]
    path = row("sos", 5, mbps_total=930, cpu_sender_s_per_gb=0.4, cpu_receiver_s_per_gb=0.8, reorder_peak_mb=3.9)
    assert figures.path_cores(document(path)).splitlines()[3:] == ["| 59 ms | 930 | 0.05 | 0.10 | 4 |"]
    idle = {**row("sos", 5, rss_sender_kb_per_session=10.4, rss_receiver_kb_per_session=12.0), "scenario": "idle"}
    assert figures.session_memory(document(idle)).splitlines()[4] == "| receiver's agent | 12.0 | 12 | 49 | 120 |"
    burst = {**row("sos", 5, connections_per_cpu_s=20_000), "scenario": "connections"}
    assert figures.connection_cores(document(burst)).splitlines()[3] == "| busier agent | 20,000 | 0.005 | 0.050 |"


def test_sizing_page_has_every_table(figures: ModuleType) -> None:
    page = (ROOT / "docs" / "sizing.md").read_text()
    assert list(figures.sizing()) == list(figures.SIZING)
    assert [name for name in figures.SIZING if f"<!-- generated: {name} -->\n" not in page] == []
