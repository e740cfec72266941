"""Measured figures -> tables of docs/performance.md.

docs/figures/NAME.json is the out/bench/NAME.json of one whole run of a benchmark, kept with the commit that it was measured at.
`python scripts/figures.py [DIR]` takes over what DIR (out/bench) has and writes the page anew: only runs of committed sources, and of
each scenario at least three runs of every scheme, as a table of chance results is worse than an old one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
KEPT = TOP / "docs" / "figures"
LEAST_RUNS = 3
Json = dict[str, Any]


class NotKept(Exception):  # noqa: N818 - says what is wrong
    """Figures that do not belong into the page."""


@dataclass(frozen=True)
class Column:
    """A figure in a table: its name in the .json, the words above it, and how many places it has."""

    figure: str
    head: str
    places: int = 0
    spread: bool = False
    """With the least and the most of all runs."""


CPU = (Column("cpu_sender_s_per_gb", "CPU s/GB, sender", 2, spread=True), Column("cpu_receiver_s_per_gb", "receiver", 2, spread=True))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "wan": (
        Column("mbps_total", "Mbit/s", spread=True),
        Column("mbps_steady", "steady"),
        Column("mbps_first8", "first 8 s"),
        Column("retransmits_per_gb", "sent again per GB"),
        Column("cpu_sender_s_per_gb", "CPU s/GB, sender", 2),
        Column("cpu_receiver_s_per_gb", "receiver", 2),
        Column("reorder_peak_mb", "reorder MB"),
        Column("competitor_mbps_total", "the other flow"),
    ),
    "relay": (Column("mbps_total", "Mbit/s"), *CPU, Column("retransmits_per_gb", "sent again per GB")),
    "short": (
        Column("first_byte_p50_ms", "first byte, ms", 1, spread=True),
        Column("first_byte_p99_ms", "p99", 1),
        Column("p50_ms", "whole, ms", 1),
        Column("p99_ms", "p99", 1),
        Column("connections_per_s", "connections/s"),
        Column("connections_per_cpu_s", "per CPU s of the busier relay"),
        Column("failed", "failed"),
    ),
    "sessions": (
        Column("connections", "connections"),
        Column("failed", "failed"),
        Column("connections_per_s", "opened per s"),
        Column("rss_sender_kb_per_session", "kB each, sender", 1),
        Column("rss_receiver_kb_per_session", "receiver", 1),
        Column("others_slowed_percent", "others slower by, %", 1, spread=True),
        Column("p50_ms", "p50, ms", 1),
        Column("p99_ms", "p99, ms", 1),
        Column("idle_p99_ms", "p99 alone, ms", 1),
    ),
}
MATRIX = "matrix"
NAMES = (*COLUMNS, MATRIX)
SIDES = (("sos first", "plain"), ("sos", "plain"), ("sos first", "own path"), ("sos", "own path"))
"""What is compared in a case of the matrix: ours, and what the others are called together (bench/matrix/sos_matrix/verdicts.py)."""


def cell(row: Json, column: Column) -> str:
    """One figure, empty where it was not measured."""
    found = row.get(column.figure)
    if found is None:
        return ""
    median, least, most = (f"{found[name]:,.{column.places}f}" for name in ("median", "least", "most"))
    return f"{median} ({least}-{most})" if column.spread and row["runs"] > 1 else median


def lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table in Markdown."""
    for line in (head, tuple("---" for _ in head), *rows):
        yield f"| {' | '.join(line)} |"


def scenario_table(name: str, scenario: str, rows: list[Json]) -> str:
    """What was measured in one scenario: the schemes that could be had, those of SOS in bold."""
    there = [column for column in COLUMNS[name] if any(column.figure in row for row in rows)]
    measured = [row for row in rows if row["runs"]]
    limit = rows[0]["wire_limit_mbps"]
    title = f"**{scenario}**" + (f", wire {limit:,.0f} Mbit/s" if limit else "")
    body = [(bold(row["scheme"]), str(row["runs"]), *(cell(row, column) for column in there)) for row in measured]
    absent = [f"\n{row['scheme']}: {row['status']}." for row in rows if not row["runs"]]
    return "\n".join((title, "", *lines(("", "runs", *(column.head for column in there)), body), *absent, ""))


def bold(scheme: str) -> str:
    """Ours stand out."""
    return f"**{scheme}**" if scheme.startswith("sos") else scheme


def ratio(found: Json) -> str:
    """A ratio and its interval. Ten times or more is what nobody reads places of."""
    value, low, high = (f"{each:.3f}" if each < 10 else f"{each:.0f}" for each in (found[name] for name in ("value", "low", "high")))
    return f"{value} ({low}-{high})"


def case_line(case: Json) -> tuple[str, ...]:
    """A network of the matrix: rates, every ratio, and the worst of their verdicts."""
    sides = {(each["ours"], each["against"]): each for each in case["comparisons"]}
    runs = min(min(each["runs"]) for each in case["comparisons"])
    rates = (case["wire_limit_mbps"], sides[SIDES[0]]["best_mbps"], *(sides[side]["ours_mbps"] for side in SIDES[:2]))
    ratios = (ratio(sides[side]["ratio"]) if side in sides else "" for side in SIDES)
    return (f"`{case['name']}`: {case['title']}", str(runs), *(f"{rate:.4g}" for rate in rates), *ratios, case["verdict"])


def matrix_part(document: Json) -> str:
    """All networks of the matrix, a line each."""
    words = f"Rates are in Mbit/s, ratios have intervals of {document['confidence']:.0%}; less than {document['least_ratio']:g} is worse."
    head = ("", "runs", "wire", "plain TCP", "first", "next", "first : plain", "next : plain", "first : own path", "next : own path", "")
    table = lines(head, map(case_line, document["cases"]))
    return "\n".join((f"Geometric means of {measured_with(MATRIX, document)} {words}", "", *table, ""))


def measured_with(name: str, document: Json) -> str:
    """What a benchmark was measured with."""
    machine, commit = document["machine"], document["settings"]
    return f"`make bench-{name}` at {commit} a measurement, {machine['cpus']} cores, Linux {machine['kernel']}."


def page_part(name: str, document: Json) -> str:
    """All tables of a benchmark, and what they were measured with."""
    if name == MATRIX:
        return f"\n{matrix_part(document)}"
    groups = groupby(document["rows"], key=lambda row: row["scenario"])
    tables = "\n".join(scenario_table(name, scenario, list(rows)) for scenario, rows in groups)
    return f"\nMedians (least-most) of {measured_with(name, document)}\n\n{tables}"


def parts() -> dict[str, str]:
    """Every part of the page by name."""
    return {name: page_part(name, json.loads((KEPT / f"{name}.json").read_text())) for name in NAMES if (KEPT / f"{name}.json").exists()}


def check(name: str, document: Json) -> None:
    """Raises NotKept for figures that nobody could measure again, or that are too few."""
    if "+changes" in document["settings"] or "no commit" in document["settings"]:
        raise NotKept(f"{name}: measured with sources that are not committed ({document['settings']})")
    few = [f"{row['scenario']} {row['scheme']}" for row in document["rows"] if row["status"] == "ok" and row["runs"] < LEAST_RUNS]
    if few:
        raise NotKept(f"{name}: less than {LEAST_RUNS} runs of {', '.join(few)}")
    if parts := [case["name"] for case in document.get("cases", ()) if case["missing"]]:
        raise NotKept(f"{name}: not everything was measured of {', '.join(parts)}")
    if not document["rows"]:
        raise NotKept(f"{name}: nothing was measured")


def take(folder: Path) -> list[str]:
    """Keep what a folder has; says of what."""
    KEPT.mkdir(exist_ok=True)
    taken = []
    for name in NAMES:
        source = folder / f"{name}.json"
        if not source.exists():
            continue
        document = json.loads(source.read_text())
        check(name, document)
        (KEPT / source.name).write_text(json.dumps(document, indent=1) + "\n")
        taken.append(name)
    return taken


def main() -> int:
    """Take figures over; 0 = done, 1 = some do not belong into the page."""
    parser = argparse.ArgumentParser(description="Keep measured figures, and write docs/performance.md from them.")
    parser.add_argument("folder", nargs="?", type=Path, default=TOP / "out" / "bench", help="where benchmarks have written (out/bench)")
    folder = parser.parse_args().folder
    try:
        taken = take(folder)
    except NotKept as error:
        print(f"figures: {error}")
        return 1
    print(f"figures: taken over from {folder}: {', '.join(taken) or 'nothing, there is none'}")
    return subprocess.run([sys.executable, str(TOP / "scripts" / "generate.py")], check=False).returncode if taken else 1


if __name__ == "__main__":
    sys.exit(main())
