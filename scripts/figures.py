"""Convert measured figures to tables of docs/performance.md and docs/sizing.md.

docs/figures/NAME.json is the file out/bench/NAME.json of one complete benchmark run, with the commit at which it was measured.
`python scripts/figures.py [DIR]` copies the files of DIR (out/bench) and rewrites the page. It accepts only figures of committed
sources with at least three runs of every scheme and scenario: a table of chance results is worse than an old table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
KEPT = TOP / "docs" / "figures"
LEAST_RUNS = 3
Json = dict[str, Any]


class NotKept(Exception):  # noqa: N818 - the name describes the error
    """Figures are unfit for the page."""


@dataclass(frozen=True)
class Column:
    """A column of a table: name of the figure in the .json, heading, decimal places."""

    figure: str
    head: str
    places: int = 0
    spread: bool = False
    """True to add the minimum and maximum of all runs."""


CPU = (Column("cpu_sender_s_per_gb", "CPU s/GB, sender", 2, spread=True), Column("cpu_receiver_s_per_gb", "receiver", 2, spread=True))
COLUMNS: dict[str, tuple[Column, ...]] = {
    "wan": (
        Column("mbps_total", "Mbit/s", spread=True),
        Column("mbps_steady", "steady"),
        Column("mbps_first8", "first 8 s"),
        Column("retransmits_per_gb", "retransmits per GB"),
        Column("cpu_sender_s_per_gb", "CPU s/GB, sender", 2),
        Column("cpu_receiver_s_per_gb", "receiver", 2),
        Column("reorder_peak_mb", "reorder buffer, MB"),
        Column("competitor_mbps_total", "competing flow"),
    ),
    "relay": (Column("mbps_total", "Mbit/s"), *CPU, Column("retransmits_per_gb", "retransmits per GB")),
    "short": (
        Column("first_byte_p50_ms", "first byte, ms", 1, spread=True),
        Column("first_byte_p99_ms", "p99", 1),
        Column("p50_ms", "last byte, ms", 1),
        Column("p99_ms", "p99", 1),
        Column("connections_per_s", "connections/s"),
        Column("connections_per_cpu_s", "per CPU s, busier relay"),
        Column("failed", "failed"),
    ),
    "sessions": (
        Column("connections", "connections"),
        Column("failed", "failed"),
        Column("connections_per_s", "opened per s"),
        Column("rss_sender_kb_per_session", "kB per session, sender", 1),
        Column("rss_receiver_kb_per_session", "receiver", 1),
        Column("others_slowed_percent", "other readers slower by, %", 1, spread=True),
        Column("p50_ms", "p50, ms", 1),
        Column("p99_ms", "p99, ms", 1),
        Column("idle_p99_ms", "p99 without bulk, ms", 1),
    ),
}
MATRIX = "matrix"
NAMES = (*COLUMNS, MATRIX)
SIDES = (("sos first", "plain"), ("sos", "plain"), ("sos first", "own path"), ("sos", "own path"))
"""Comparisons in a case of the matrix: scheme of SOS, and the group of schemes compared with it (bench/matrix/sos_matrix/verdicts.py)."""
PATHS = {
    "59ms": "59 ms", "164ms": "164 ms", "20ms-loss": "20 ms, 1 % loss", "59ms-1mb": "59 ms, queue of 1 MB",
    "200+200": "200 + 200 Mbit/s, 54 and 160 ms", "500+100": "500 + 100 Mbit/s, 100 ms",
}  # fmt: skip
"""Scenarios of bench-wan without competing traffic, with their names in the summary."""
SCHEMES = {
    "plain": "plain TCP", "plain-64m": "plain TCP, 64 MB buffers",
    "plain-bbr": "plain TCP, BBR", "plain-bbr-64m": "BBR on both hosts, 64 MB buffers",
    "iperf3-16": "iperf3, 16 streams", "iperf3-32": "iperf3, 32 streams",
    "mptcp": "MPTCP", "mptcp-64m": "MPTCP, 64 MB buffers", "haproxy": "haproxy with BBR",
}  # fmt: skip
"""Names of bench-wan's schemes in words; other schemes keep their own names."""


def cell(row: Json, column: Column) -> str:
    """Format one figure; empty if it was not measured."""
    found = row.get(column.figure)
    if found is None:
        return ""
    median, least, most = (f"{found[name]:,.{column.places}f}" for name in ("median", "least", "most"))
    return f"{median} ({least}-{most})" if column.spread and row["runs"] > 1 else median


def lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    for line in (head, tuple("---" for _ in head), *rows):
        yield f"| {' | '.join(line)} |"


def scenario_table(name: str, scenario: str, rows: list[Json]) -> str:
    """Table of one scenario: the available schemes, with schemes of SOS in bold."""
    there = [column for column in COLUMNS[name] if any(column.figure in row for row in rows)]
    measured = [row for row in rows if row["runs"]]
    limit = rows[0]["wire_limit_mbps"]
    title = f"**{scenario}**" + (f", wire {limit:,.0f} Mbit/s" if limit else "")
    body = [(bold(row["scheme"]), str(row["runs"]), *(cell(row, column) for column in there)) for row in measured]
    absent = [f"\n{row['scheme']}: {row['status']}." for row in rows if not row["runs"]]
    return "\n".join((title, "", *lines(("", "runs", *(column.head for column in there)), body), *absent, ""))


def bold(scheme: str) -> str:
    """A scheme's name, in bold for a scheme of SOS."""
    return f"**{scheme}**" if scheme.startswith("sos") else scheme


def ratio(found: Json) -> str:
    """A ratio and its interval; values from 10 have no decimal places."""
    value, low, high = (f"{each:.3f}" if each < 10 else f"{each:.0f}" for each in (found[name] for name in ("value", "low", "high")))
    return f"{value} ({low}-{high})"


def case_line(case: Json) -> tuple[str, ...]:
    """Row of one network of the matrix: rates, all ratios, and the worst verdict."""
    sides = {(each["ours"], each["against"]): each for each in case["comparisons"]}
    runs = min(min(each["runs"]) for each in case["comparisons"])
    rates = (case["wire_limit_mbps"], sides[SIDES[0]]["best_mbps"], *(sides[side]["ours_mbps"] for side in SIDES[:2]))
    ratios = (ratio(sides[side]["ratio"]) if side in sides else "" for side in SIDES)
    return (f"`{case['name']}`: {case['title']}", str(runs), *(f"{rate:.4g}" for rate in rates), *ratios, case["verdict"])


def matrix_part(document: Json) -> str:
    """Table of the matrix, one row per network."""
    interval, least = f"{document['confidence']:.0%}", f"{document['least_ratio']:g}"
    words = f"Rates in Mbit/s; ratios with {interval} confidence intervals; below {least} counts as worse."
    head = ("", "runs", "wire", "plain TCP", "first", "next", "first : plain", "next : plain", "first : own path", "next : own path", "")
    table = lines(head, map(case_line, document["cases"]))
    return "\n".join((f"Geometric means of {measured_with(MATRIX, document)} {words}", "", *table, ""))


def measured_with(name: str, document: Json) -> str:
    """Command, commit and machine of a measurement."""
    machine, commit = document["machine"], document["settings"]
    return f"`make bench-{name}` at {commit} per measurement, {machine['cpus']} cores, Linux {machine['kernel']}."


def page_part(name: str, document: Json) -> str:
    """All tables of a benchmark under a line with command, commit and machine."""
    if name == MATRIX:
        return f"\n{matrix_part(document)}"
    groups = groupby(document["rows"], key=lambda row: row["scenario"])
    tables = "\n".join(scenario_table(name, scenario, list(rows)) for scenario, rows in groups)
    return f"\nMedian (min-max) of {measured_with(name, document)}\n\n{tables}"


def median(row: Json, figure: str) -> float:
    """The median of one figure of a row."""
    return float(row[figure]["median"])


def long_path_line(scenario: str, rows: list[Json]) -> tuple[str, ...]:
    """Row of one path: the first and the next transfer of SOS, and the fastest of the other schemes."""
    found = {row["scheme"]: row for row in rows if row["runs"]}
    best = max((row for name, row in found.items() if not name.startswith("sos")), key=lambda row: median(row, "mbps_total"))
    ours, wire = (found["sos first"], found["sos"]), rows[0]["wire_limit_mbps"]
    rates = [f"{median(row, 'mbps_total'):,.0f}" for row in (*ours, best)]
    lost = " / ".join(f"{median(row, 'retransmits_per_gb'):,.0f}" for row in (*ours, best))
    share = f"{median(ours[1], 'mbps_total') / wire:.0%}".replace("%", " %")
    other = f"{rates[2]}, {SCHEMES.get(best['scheme'], best['scheme'])}"
    return PATHS[scenario], f"{wire:,.0f}", rates[0], rates[1], share, other, lost


def long_paths(document: Json) -> str:
    """Summary of bench-wan: one row per path without competing traffic."""
    groups = groupby((row for row in document["rows"] if row["scenario"] in PATHS), key=lambda row: row["scenario"])
    head = ("path", "wire", "SOS, first", "SOS, next", "next, of the wire", "best alternative", "retransmits per GB")
    return "\n".join(("", *lines(head, (long_path_line(name, list(rows)) for name, rows in groups)), ""))


def short_requests(document: Json) -> str:
    """Summary of bench-short: first and last byte of each request, one row per scheme."""
    rows = [row for row in document["rows"] if row["runs"] and row["wire_limit_mbps"]]
    figures = ("first_byte_p50_ms", "first_byte_p99_ms", "p50_ms", "p99_ms")
    head = ("answer", "scheme", "first byte, p50", "p99", "last byte, p50", "p99")
    body = ((row["scenario"], bold(row["scheme"]), *(f"{median(row, figure):,.0f}" for figure in figures)) for row in rows)
    return "\n".join(("", *lines(head, body), ""))


GB_PER_GBIT = 0.125
STREAMS = {"sos": "TCP", "sos-tls": "TCP with TLS", "sos-quic": "QUIC", "sos-zstd": "TCP, compressed"}
"""Schemes of SOS, with their streams in words."""
LOADS = {
    "1gbit": "1 Gbit/s, no delay", "flat": "no rate limit, no delay",
    "100mbit-text": "100 Mbit/s, 20 ms, source code", "1000mbit-text": "1 Gbit/s, 20 ms, source code", **PATHS,
}  # fmt: skip
"""Scenarios of bench-relay and bench-wan for sizing, with their names."""
SESSION_COUNTS = (1_000, 4_096, 10_000)
"""Numbers of sessions in the table of memory; 4,096 is the default limit of an agent."""


def cores(row: Json) -> tuple[str, str]:
    """Cores per Gbit/s of user data at the sender's and the receiver's agent."""
    sides = (median(row, f"cpu_{side}_s_per_gb") * GB_PER_GBIT for side in ("sender", "receiver"))
    sender, receiver = (f"{side:.2f}" for side in sides)
    return sender, receiver


def relay_cores(document: Json) -> str:
    """Cores per Gbit/s in bench-relay: one row per load and kind of streams."""
    rows = [row for row in document["rows"] if row["scheme"] in STREAMS and row["scenario"] in LOADS and row["runs"]]
    head = ("load", "streams", "rate, Mbit/s", "sender's agent", "receiver's agent")
    body = ((LOADS[row["scenario"]], STREAMS[row["scheme"]], f"{median(row, 'mbps_total'):,.0f}", *cores(row)) for row in rows)
    return "\n".join(("", *lines(head, body), ""))


def path_cores(document: Json) -> str:
    """Cores per Gbit/s, and buffered data, of one transfer in bench-wan over each path without competing traffic."""
    rows = [row for row in document["rows"] if row["scheme"] == "sos" and row["scenario"] in PATHS and row["runs"]]
    head = ("path", "rate, Mbit/s", "sender's agent", "receiver's agent", "reorder buffer, MB")
    figures = (("mbps_total", ",.0f"), ("reorder_peak_mb", ".0f"))
    found = ((PATHS[row["scenario"]], cores(row), [f"{median(row, name):{form}}" for name, form in figures]) for row in rows)
    return "\n".join(("", *lines(head, ((path, rate, *both, buffered) for path, both, (rate, buffered) in found)), ""))


def session_memory(document: Json) -> str:
    """Memory of idle sessions in bench-sessions: measured per session, and multiplied by SESSION_COUNTS."""
    row = next(row for row in document["rows"] if row["scenario"] == "idle" and row["scheme"] == "sos")
    head = ("idle sessions", "kB per session", *(f"{count:,} sessions, MB" for count in SESSION_COUNTS))
    body = []
    for side in ("sender", "receiver"):
        each = median(row, f"rss_{side}_kb_per_session")
        body.append((f"{side}'s agent", f"{each:.1f}", *(f"{each * count / 1000:.0f}" for count in SESSION_COUNTS)))
    return "\n".join(("", *lines(head, body), ""))


def connection_cores(document: Json) -> str:
    """Connections per CPU second of the busier agent in bench-short, and cores at two rates."""
    row = next(row for row in document["rows"] if row["scenario"] == "connections" and row["scheme"] == "sos")
    per_core = median(row, "connections_per_cpu_s")
    head = ("", "connections per CPU second", "cores at 100 connections/s", "cores at 1,000 connections/s")
    body = [("busier agent", f"{per_core:,.0f}", *(f"{rate / per_core:.3f}" for rate in (100, 1_000)))]
    return "\n".join(("", *lines(head, body), ""))


SIZING = {
    "relay_cores": ("relay", relay_cores), "path_cores": ("wan", path_cores),
    "session_memory": ("sessions", session_memory), "connection_cores": ("short", connection_cores),
}  # fmt: skip
"""Tables of docs/sizing.md, each with its benchmark."""
SUMMARIES = {"long_paths": ("wan", long_paths), "short_requests": ("short", short_requests)}


def kept(name: str) -> Json:
    """Kept figures of one benchmark."""
    return dict(json.loads((KEPT / f"{name}.json").read_text()))


def parts() -> dict[str, str]:
    """Parts of the page, by name."""
    return {name: page_part(name, kept(name)) for name in NAMES if (KEPT / f"{name}.json").exists()}


def summaries() -> dict[str, str]:
    """Summaries of docs/performance.md, by name."""
    return _made(SUMMARIES)


def sizing() -> dict[str, str]:
    """Tables of docs/sizing.md, by name."""
    return _made(SIZING)


def _made(tables: Mapping[str, tuple[str, Callable[[Json], str]]]) -> dict[str, str]:
    return {name: make(kept(source)) for name, (source, make) in tables.items() if (KEPT / f"{source}.json").exists()}


def check(name: str, document: Json) -> None:
    """Raise NotKept for figures that cannot be reproduced, are incomplete, or come from too few runs."""
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
    """Copy the figures of a folder to KEPT; return the names of their benchmarks."""
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
    """Keep figures; exit status 1 if some are unfit for the page."""
    parser = argparse.ArgumentParser(description="Keep measured figures and write the tables of the pages from them.")
    parser.add_argument("folder", nargs="?", type=Path, default=TOP / "out" / "bench", help="output folder of the benchmarks (out/bench)")
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
