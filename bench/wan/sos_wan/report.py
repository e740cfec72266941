"""Summaries -> a table for a terminal and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from sos_wan.figures import OK, Summary, best_peer
from sos_wan.scenarios import SCENARIOS

HEAD = (
    "",
    "runs",
    "Mbit/s",
    "least",
    "most",
    "of wire",
    "steady",
    "first 40 %",
    "retr/GB",
    "CPU s/GB",
    "snd",
    "rcv",
    "reorder MB",
    "other flow",
)
_TITLES = {scenario.name: scenario.title for scenario in SCENARIOS}


def table(found: Sequence[Summary]) -> list[str]:
    """For each scenario a block of rows, and what SOS is to the wire and to the best of the others."""
    lines: list[str] = []
    for scenario, group in groupby(found, key=lambda each: each.scenario):
        rows = list(group)
        lines += ["", f"{_TITLES.get(scenario, scenario)}: wire {rows[0].wire_limit_mbps:.0f} Mbit/s"]
        lines += _block([HEAD, *(_cells(each) for each in rows)], rows)
        lines += ["  " + line for line in ratios(rows)]
        if lost := sum(int(each.figures["emulator_lost"].most) for each in rows if "emulator_lost" in each.figures):
            lines.append(f"  the link emulator lost {lost} packets by itself: not a faithful network, see emulator_lost")
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A figure in a table; `ratio`: SOS's median is compared with that of each other scheme."""

    head: str
    figure: str
    form: str = ".2f"
    ratio: bool = False


def columns(found: Sequence[Summary], shown: Sequence[Column], titles: Mapping[str, str]) -> list[str]:
    """For each scenario a block of rows with the medians of those figures that it has, and the ratios."""
    lines: list[str] = []
    for scenario, group in groupby(found, key=lambda each: each.scenario):
        rows = list(group)
        there = [column for column in shown if any(each.median(column.figure) is not None for each in rows)]
        body = [("", "runs", *(column.head for column in there))]
        body += [(each.scheme, _runs(each), *(_cell(each.median(c.figure), c.form) for c in there)) for each in rows]
        lines += ["", titles.get(scenario, scenario), *_block(body, rows)]
        lines += ["  " + line for column in there if column.ratio for line in peers(rows, column)]
    return lines


def peers(rows: Sequence[Summary], column: Column) -> list[str]:
    """What SOS's median of a figure is to that of each other scheme."""
    ours = next((each.median(column.figure) for each in rows if each.scheme == "sos"), None)
    if ours is None:
        return []
    theirs = [(each.scheme, value) for each in rows if each.scheme != "sos" and (value := each.median(column.figure))]
    shares = ", ".join(f"{ours / value:.2f} x {scheme}" for scheme, value in theirs)
    return [f"{column.head}: sos is {shares}"] if shares else []


def aligned(body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns: the first to the left, figures to the right."""
    widths = [max(len(line[column]) for line in body) for column in range(len(body[0]))]
    return ["  " + "  ".join(_padded(line, widths)).rstrip() for line in body]


def _block(body: Sequence[Sequence[str]], rows: Sequence[Summary]) -> list[str]:
    return aligned(body) + [f"    {each.scheme}: {each.status}" for each in rows if each.status != OK or each.runs_failed]


def _padded(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(line, widths, strict=True))]


def _cells(each: Summary) -> tuple[str, ...]:
    total = each.figures.get("mbps_total")
    share = "-" if total is None else f"{total.median / each.wire_limit_mbps:.0%}"
    rates = ("-", "-", "-") if total is None else tuple(f"{value:.0f}" for value in (total.median, total.least, total.most))
    rest = (
        *(("mbps_steady", ".0f"), ("mbps_first8", ".0f"), ("retransmits_per_gb", ".0f"), ("cpu_s_per_gb", ".2f")),
        *(("cpu_sender_s_per_gb", ".2f"), ("cpu_receiver_s_per_gb", ".2f"), ("reorder_peak_mb", ".1f"), ("competitor_mbps_total", ".0f")),
    )
    return (each.scheme, _runs(each), *rates, share, *(_cell(each.median(name), form) for name, form in rest))


def _runs(each: Summary) -> str:
    return f"{each.runs}" + (f" (+{each.runs_failed} failed)" if each.runs_failed else "")


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def ratios(rows: Sequence[Summary]) -> list[str]:
    """What SOS's medians are to the wire and to the best peer, with start-up and without."""
    lines = []
    for each in rows:
        for figure, words in (("mbps_total", "with start-up"), ("mbps_steady", "steady")):
            ours, peer = each.median(figure), best_peer(rows, figure)
            if not each.scheme.startswith("sos") or ours is None:
                continue
            line = f"{each.scheme}, {words}: {ours / each.wire_limit_mbps:.1%} of the wire"
            if peer is not None and (theirs := peer.median(figure)):
                line += f", {ours / theirs:.3f} x {peer.scheme}"
            lines.append(line)
    return lines


def chart(found: Sequence[Summary], into: Path) -> None:
    """A PNG: for each scenario a bar per scheme, its least and most, and the wire."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # after the choice of a backend without a screen

    groups = [
        (name, [each for each in rows if each.figures])
        for name, rows in ((n, list(g)) for n, g in groupby(found, key=lambda e: e.scenario))
    ]
    groups = [(name, rows) for name, rows in groups if rows]
    if not groups:
        return
    figure, places = plt.subplots(1, len(groups), figsize=(3.6 * len(groups), 4.5), dpi=120, squeeze=False)
    for axes, (name, rows) in zip(places[0], groups, strict=True):
        totals = [each.figures["mbps_total"] for each in rows]
        medians = [total.median for total in totals]
        reach = [[total.median - total.least for total in totals], [total.most - total.median for total in totals]]
        colours = ["#1f77b4" if each.scheme.startswith("sos") else "#9aa5b1" for each in rows]
        axes.bar_label(axes.bar(range(len(rows)), medians, 0.8, color=colours, yerr=reach, capsize=2), fmt="%.0f", padding=2, fontsize=7)
        axes.axhline(rows[0].wire_limit_mbps, color="black", linestyle="dashed", linewidth=1)
        axes.set_ylim(0, 1.15 * rows[0].wire_limit_mbps)  # room for the figures above the bars
        axes.set_xticks(range(len(rows)), [each.scheme for each in rows], rotation=60, ha="right", fontsize=8)
        axes.set_title(_TITLES.get(name, name), fontsize=8)
    places[0][0].set_ylabel("goodput with start-up, Mbit/s: median, least, most")
    figure.tight_layout()
    figure.savefig(into, bbox_inches="tight")
    plt.close(figure)
