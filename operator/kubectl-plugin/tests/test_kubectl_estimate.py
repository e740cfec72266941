"""`kubectl sos estimate` compared with measurements, and its command line."""

from __future__ import annotations

import json
from pathlib import Path as File

import pytest
from click.testing import CliRunner
from sos_kubectl.__main__ import app
from sos_kubectl.views.estimate import DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES, Path, accelerated, plain

FIGURES = File(__file__).resolve().parents[3] / "docs" / "figures" / "wan.json"
TRANSFER_S = 20
TOLERANCE = 1 / 6
PATHS = {"59ms": Path(0.059, 0.0, 1e9), "164ms": Path(0.164, 0.0, 1e9), "20ms-loss": Path(0.02, 0.01, 1e9)}


def average_mbps(path: Path, scheme: str, measured_mbps: float) -> float:
    """The estimated mean rate of a transfer as large as the measured one."""
    size = measured_mbps * 1e6 / 8 * TRANSFER_S
    if scheme.startswith("sos"):
        found = accelerated(path, size)
    else:
        found = plain(path, size, TUNED_WINDOW_BYTES if scheme.endswith("64m") else DEFAULT_WINDOW_BYTES, scheme)
    return size * 8 / found.duration_s / 1e6


@pytest.mark.parametrize("scenario", PATHS)
@pytest.mark.parametrize("scheme", ["sos first", "sos", "plain", "plain-64m"])
def test_estimates_are_near_measurements(scenario: str, scheme: str) -> None:
    rows = json.loads(FIGURES.read_text())["rows"]
    (row,) = [row for row in rows if (row["scenario"], row["scheme"]) == (scenario, scheme)]
    measured = row["mbps_total"]["median"]
    assert PATHS[scenario].wire_bps / 1e6 == pytest.approx(row["wire_limit_mbps"], rel=0.001)
    assert average_mbps(PATHS[scenario], scheme, measured) == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("scenario", PATHS)
def test_the_first_byte_takes_one_round_trip_instead_of_two(scenario: str) -> None:
    rows = {row["scheme"]: row for row in json.loads(FIGURES.read_text())["rows"] if row["scenario"] == scenario}
    path = PATHS[scenario]
    assert accelerated(path, 1e9).first_byte_s == pytest.approx(rows["sos"]["first_byte_s"]["median"], rel=0.25)
    assert plain(path, 1e9, DEFAULT_WINDOW_BYTES, "").first_byte_s == pytest.approx(rows["plain"]["first_byte_s"]["median"], rel=0.1)


def test_more_round_trip_loss_or_bytes_never_help() -> None:
    for window in (DEFAULT_WINDOW_BYTES, TUNED_WINDOW_BYTES):
        for worse, better in (
            (Path(0.2, 0, 1e9), Path(0.1, 0, 1e9)),
            (Path(0.1, 0.01, 1e9), Path(0.1, 0.001, 1e9)),
            (Path(0.1, 0, 1e8), Path(0.1, 0, 1e9)),
        ):
            assert plain(worse, 1e8, window, "").duration_s > plain(better, 1e8, window, "").duration_s
            assert accelerated(worse, 1e8).duration_s > accelerated(better, 1e8).duration_s
        assert plain(worse, 1e9, window, "").duration_s > plain(worse, 1e8, window, "").duration_s


def test_the_command_prints_the_limit_and_the_gain() -> None:
    done = CliRunner().invoke(app, ["estimate", "20ms", "1%", "1gbit", "--size", "1GB"])
    assert done.exit_code == 0, done.output
    assert "loss" in done.output and "times as fast" in done.output
    short = CliRunner().invoke(app, ["estimate", "1ms", "0%", "1gbit"])
    assert "gains little" in short.output
    document = json.loads(CliRunner().invoke(app, ["estimate", "164ms", "0%", "1gbit", "-o", "json"]).output)
    assert [row["limit"] for row in document["estimates"]][1:] == ["the link", "the link"]


WRONG = [("160 0% 1gbit", "RTT"), ("1ms 11% 1gbit", "LOSS"), ("1ms 0.01 1gbit", "LOSS"), ("1ms 0% 1gb", "RATE")]


@pytest.mark.parametrize(("words", "named"), WRONG)
def test_a_wrong_quantity_is_named_with_an_example(words: str, named: str) -> None:
    done = CliRunner().invoke(app, ["estimate", *words.split()])
    assert done.exit_code == 2 and f"Invalid value for '{named}'" in done.output
