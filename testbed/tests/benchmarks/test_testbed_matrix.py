"""bench/matrix: cases, statistics, verdicts and result files, without measurements."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_harness import agents, network
from sos_harness.loop import Log
from sos_harness.loop import write as write_files
from sos_harness.results import figures, parse, run_log
from sos_harness.results.figures import Found, Row, Summary
from sos_harness.scenario import Scenario
from sos_harness.transfer import WAYS
from sos_matrix import cases, report, verdicts
from sos_matrix.bench import BENCH, judged
from sos_matrix.verdicts import Ratio, Verdict
from sos_testbed.core.model import bdp_bytes

SETTINGS = "0123456789ab, 10 s"
CASES = {case.name: case for case in cases.CASES}
EMULATOR_BYTES = 512 << 20
"""The link emulator's default memory per direction."""
RATES = st.lists(st.floats(0.01, 1000), min_size=2, max_size=8)


def rows(scenario: Scenario, rates: dict[str, list[float | None]]) -> list[Row]:
    """One row for each run of each scheme; a rate of None is a failed run."""
    found = []
    for unit in run_log.units([scenario], [], max(map(len, rates.values()))):
        for label in set(unit.scheme.labels) & set(rates):
            rate = dict(enumerate(rates[label], 1)).get(unit.run)
            failed = Found(status="failed: timed out after 3.0 s") if rate is None else Found(values={"mbps_total": rate})
            found.append(figures.row(unit.blank(label, SETTINGS), failed))
    return found


def summaries(scenario: str, rates: dict[str, list[float | None]]) -> list[Summary]:
    return figures.summaries(rows(CASES[scenario], rates))


def only(scenario: str, rates: dict[str, list[float | None]]) -> verdicts.Case:
    [found] = verdicts.cases(cases.CASES, summaries(scenario, rates))
    return found


def test_there_are_thirty_cases_of_which_ten_have_two_paths() -> None:
    assert len(CASES) == len(cases.CASES) == 30
    assert sum(len(case.paths) == 2 for case in cases.CASES) == 10
    assert sum(len(case.paths) == 1 for case in cases.CASES) == 20


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_every_case_is_within_its_bounds_and_the_emulators_capacity(case: Scenario) -> None:
    assert sum(path.rate_bps for path in case.paths) <= cases.MOST_MBIT * 1e6
    for path in case.paths:
        assert 10e6 <= path.rate_bps <= 1e9
        assert 1_000 <= path.rtt_us <= 400_000
        assert 0 <= path.loss <= 0.03
        product = path.rate_bps * path.rtt_us / 8e6
        queue = path.shape().queue_bytes
        assert queue == cases.LEAST_QUEUE_BYTES or 0.1 * product <= queue <= 2 * product
        assert queue >= cases.LEAST_QUEUE_BYTES
        assert queue + product <= EMULATOR_BYTES / 2  # super-frames in the emulator use more memory than their size
    assert case.drain_s < 1.3


def test_corners_are_complete_without_loss_and_partial_with_loss() -> None:
    ends = [(rate, ms, queue) for rate in (10, 1000) for ms in (1, 400) for queue in (0.1, 2)]
    without = {corner[:3] for corner in cases.CORNERS if corner[3] == 0}
    assert without == set(ends) - {(10, 1, 2)}
    assert bdp_bytes(10_000_000, 1_000) > 2 * 1_250  # twice the product of 1,250 bytes is below the smallest queue: omitted
    assert {corner[3] for corner in cases.CORNERS} == {0, 3}
    assert len(set(cases.CORNERS)) == 10


@pytest.mark.parametrize(("column", "least", "most"), [(0, 10, 1000), (1, 1, 400), (2, 0.1, 2)])
def test_spread_has_one_point_in_each_tenth_of_every_scale(column: int, least: float, most: float) -> None:
    tenths = [int(10 * math.log(point[column] / least) / math.log(most / least)) for point in cases.SPREAD]
    assert sorted(tenths) == list(range(10))


def test_half_of_the_spread_has_no_loss_and_half_covers_the_loss_scale() -> None:
    lost = [point[3] for point in cases.SPREAD if point[3]]
    assert sorted(int(5 * math.log(percent / 0.01) / math.log(300)) for percent in lost) == list(range(5))
    assert len(cases.SPREAD) == 10


def test_name_and_title_match_the_emulators_settings() -> None:
    case = CASES["52m-14ms-0.2q-1.4l"]
    assert case.title == "52 Mbit/s, 14 ms, queue of 18 kB, 1.4 % loss"
    assert case.paths[0].shape().queue_bytes == 18_200
    assert CASES["10m-1ms-0.1q"].title == "10 Mbit/s, 1 ms, queue of 15 kB"


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_every_compared_scheme_is_measured(case: Scenario) -> None:
    labels = {label for scheme in case.schemes for label in scheme.labels}
    compared = [(ours, others) for ours, _, others in verdicts.wanted(case)]
    assert {name for ours, others in compared for name in (ours, *others)} == labels
    assert len(compared) == (2 if len(case.paths) == 1 else 4)
    assert {scheme.kind for scheme in case.schemes} <= set(WAYS)
    assert {scheme.only_path for scheme in case.schemes} <= {None, *range(len(case.paths))}


def test_interval_equals_a_hand_calculated_welch_interval() -> None:
    # The logarithms 0, 0.1, 0.2 have the mean 0.1, and -1, -0.8, -0.6 have the mean -0.8. The variances of the means are 0.01/3 and 0.04/3.
    # So the difference is 0.9, its standard error sqrt(0.05/3), and the degrees of freedom are
    # (0.05/3)^2 / ((0.01/3)^2/2 + (0.04/3)^2/2) = 2.94, rounded down to 2.
    found = verdicts.ratio([math.exp(x) for x in (0, 0.1, 0.2)], [math.exp(x) for x in (-1, -0.8, -0.6)])
    reach = 4.303 * math.sqrt(0.05 / 3)
    assert found.value == pytest.approx(math.exp(0.9))
    assert (found.low, found.high) == (pytest.approx(math.exp(0.9 - reach)), pytest.approx(math.exp(0.9 + reach)))


@given(RATES, RATES, st.floats(0.1, 10))
def test_ratio_inverts_and_scales_and_lies_within_its_interval(ours: list[float], theirs: list[float], factor: float) -> None:
    found, back = verdicts.ratio(ours, theirs), verdicts.ratio(theirs, ours)
    scaled = verdicts.ratio([factor * rate for rate in ours], theirs)
    assert found.low is not None
    assert found.high is not None
    assert back.high is not None
    assert found.low <= found.value <= found.high
    assert found.low * back.high == pytest.approx(1, rel=1e-6)
    assert scaled.value == pytest.approx(factor * found.value, rel=1e-6)


@pytest.mark.parametrize("spread", [(0.05, 0.05), (0.02, 0.5)])
def test_intervals_of_five_runs_cover_the_true_ratio_in_95_percent(spread: tuple[float, float]) -> None:
    drawn, tries, inside = random.Random(1), 2_000, 0
    for _ in range(tries):
        found = verdicts.ratio(*([math.exp(drawn.gauss(0, width)) for _ in range(5)] for width in spread))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 1 <= found.high
    assert 0.94 <= inside / tries <= 0.98


def test_equal_runs_give_a_point_interval_and_one_run_gives_none() -> None:
    assert verdicts.ratio([9.4, 9.4], [9.4, 9.4]) == Ratio(value=1, low=1, high=1)
    assert verdicts.ratio([9.4], [4.7, 4.7]) == Ratio(value=2)


@pytest.mark.parametrize(
    ("low", "high", "failed", "verdict"),
    [
        (0.97, 1.2, 0, Verdict.HOLDS),
        (0.9699, 1.2, 0, Verdict.OPEN),
        (0.5, 0.97, 0, Verdict.OPEN),
        (0.5, 0.9699, 0, Verdict.BELOW),
        (1.5, 2.0, 1, Verdict.OPEN),
        (0.5, 0.6, 1, Verdict.BELOW),
        (None, None, 0, Verdict.OPEN),
    ],
)
def test_verdict_follows_the_interval_and_failed_runs(low: float | None, high: float | None, failed: int, verdict: Verdict) -> None:
    assert verdicts.judge(Ratio(value=1, low=low, high=high), failed) is verdict


GOOD: dict[str, list[float | None]] = {
    "sos first": [190, 191, 189],
    "sos": [191, 192, 190],
    "plain": [90, 91, 92],
    "plain-b": [93, 94, 95],
    "sos-a first": [91, 92, 93],
    "sos-b first": [90, 91, 92],
    "sos-a": [92, 93, 94],
    "sos-b": [93, 93, 94],
}


def test_two_paths_are_compared_with_the_better_single_path() -> None:
    case = only("equal", GOOD)
    assert [(each.ours, each.against, each.best, each.verdict) for each in case.comparisons] == [
        ("sos first", "plain", "plain-b", "holds"),
        ("sos first", "own path", "sos-a first", "holds"),
        ("sos", "plain", "plain-b", "holds"),
        ("sos", "own path", "sos-b", "holds"),
    ]
    assert (case.verdict, case.missing) == (Verdict.HOLDS, 0)
    assert case.comparisons[0].ratio.value == pytest.approx(190 / 94, rel=1e-3)


def test_case_has_the_verdict_of_its_worst_comparison() -> None:
    assert only("equal", {**GOOD, "sos-b": [195, 190, 185]}).verdict is Verdict.OPEN
    assert only("equal", {**GOOD, "sos-b": [298, 299, 300]}).verdict is Verdict.BELOW
    assert only("equal", {**GOOD, "sos": [191, None, 190]}).verdict is Verdict.OPEN
    assert only("equal", {**GOOD, "plain": [90, None, 92]}).verdict is Verdict.HOLDS


def test_no_case_holds_before_all_schemes_are_measured() -> None:
    case = only("equal", {name: rates for name, rates in GOOD.items() if name != "plain-b"})
    assert [each.against for each in case.comparisons] == ["own path", "own path"]
    assert (case.missing, case.verdict) == (2, Verdict.OPEN)
    assert only("equal", {"sos": [190, 191], "plain": [90, 91]}).comparisons == ()
    below = only("equal", {**{name: GOOD[name] for name in ("sos", "sos-a", "sos-b")}, "sos": [50, 51, 52]})
    assert (below.missing, below.verdict) == (3, Verdict.BELOW)


def test_table_lists_all_cases_then_cases_below_and_failures() -> None:
    found = [
        *summaries("10m-1ms-0.1q", {"sos first": [9.0, 9.01, 9.02], "sos": [9.4, 9.41, 9.42], "plain": [9.4, 9.41, 9.42]}),
        *summaries("equal", {**GOOD, "sos first": [190, 191, None]}),
    ]
    text = report.table(found)
    assert text[-1] == "2 of 30 cases: 0 holds, 1 open, 1 below"
    cells = next(line for line in text if line.startswith("  10m-1ms-0.1q ")).split("  ")
    assert [cell.strip() for cell in cells if cell] == [
        *("10m-1ms-0.1q", "9.4", "9.41", "9.01", "9.41", "0.957 (0.955-0.960)", "1.000 (0.998-1.002)", "-", "-", "below")
    ]
    assert any("below: 10m-1ms-0.1q (10 Mbit/s, 1 ms, queue of 15 kB), sos first 9.01 Mbit/s, plain 9.41: 0.957" in line for line in text)
    assert "  equal sos first: 1 failed" in text


def test_the_json_has_verdicts_and_the_chart_is_drawn(tmp_path: Path) -> None:
    wanted = run_log.units([CASES["equal"]], [], 3)
    log = Log(tmp_path / "matrix.jsonl", SETTINGS, fresh=True)
    for row in rows(CASES["equal"], GOOD):
        log.append(row)
    _, files = write_files(BENCH, tmp_path, wanted, log)
    document = json.loads(files[1].read_text())
    assert (document["least_ratio"], document["confidence"], document["figure"]) == (0.97, 0.95, "mbps_total")
    [case] = document["cases"]
    assert (case["name"], case["verdict"], case["missing"]) == ("equal", "holds", 0)
    assert case["comparisons"][0]["ratio"]["low"] < case["comparisons"][0]["ratio"]["value"]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert judged([])["cases"] == []


def test_chart_draws_values_beyond_its_range_at_the_edge() -> None:
    assert report.drawn(Ratio(value=80, low=60, high=100)) == (4, 4, 4)
    assert report.drawn(Ratio(value=0.1)) == (0.5, 0.5, 0.5)
    assert report.drawn(Ratio(value=1, low=0.9, high=9)) == (1, 0.9, 4)


def test_round_of_all_cases_takes_half_an_hour() -> None:
    round_s = sum(unit.takes_s(BENCH.seconds) for unit in run_log.units(cases.CASES, [], 1))
    assert 28 <= round_s / 60 <= 31


def test_single_path_scheme_replaces_the_routes_of_both_sites() -> None:
    assert network.lead_over(1) == [
        ("west", ("ip", "route", "replace", "10.0.0.128/25", "via", "10.9.1.2", "dev", "wan1")),
        ("east", ("ip", "route", "replace", "10.0.0.0/25", "via", "10.9.1.1", "dev", "wan1")),
    ]
    assert agents.agents(agents.documents(1)) == agents.agents(agents.documents(2))  # the agents are equal, but their files differ
    plan = network.Plan(prefix="wan1", root=PurePosixPath("/x"), linkemu="/emu", agents=agents.agents(agents.documents(2)))
    own, shared = (set(agents.files(agents.documents(1), root)) for root in (plan.alone, plan.root))
    assert not own & shared


def test_traffic_on_an_unintended_path_is_reported() -> None:
    def stats(*carried: int) -> str:
        ways = [{"stats": {"delivered": {"bytes": size}}} for size in carried]
        return json.dumps(
            {"links": [{"name": f"wan{n}", "a2b": way, "b2a": {"stats": {"delivered": {"bytes": 1}}}} for n, way in enumerate(ways)]}
        )

    before, after = parse.emulator_carried(stats(5_000, 7_000)), parse.emulator_carried(stats(5_100, 9_000))
    assert before == {"wan0": 5_001, "wan1": 7_001}
    assert parse.strays(before, after, "wan1") == []
    assert parse.strays(before, after, "wan0") == ["wan1"]
    with pytest.raises(parse.ParseError):
        parse.emulator_carried('{"ok":false}')


def test_drain_time_is_a_full_queue_plus_a_round_trip() -> None:
    assert CASES["1000m-400ms-2q"].drain_s == pytest.approx(0.4 + 0.8)
    assert CASES["rates"].drain_s == pytest.approx(0.1)
