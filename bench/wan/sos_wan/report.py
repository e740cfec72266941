"""Terminal table and chart of the `wan` benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from sos_harness.results.figures import Summary, best_peer
from sos_harness.results.tables import block, cell, runs

from sos_wan.cases import SCENARIOS

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
    """Table with one block of rows per scenario, and ratios of SOS to the wire limit and to the best peer."""
    lines: list[str] = []
    for scenario, group in groupby(found, key=lambda each: each.scenario):
        rows = list(group)
        lines += ["", f"{_TITLES.get(scenario, scenario)}: wire {rows[0].wire_limit_mbps:.0f} Mbit/s"]
        lines += block([HEAD, *(_cells(each) for each in rows)], rows)
        lines += ["  " + line for line in ratios(rows)]
        if lost := sum(int(each.figures["emulator_lost"].most) for each in rows if "emulator_lost" in each.figures):
            lines.append(f"  the link emulator lost {lost} packets unintentionally: inaccurate emulation, see emulator_lost")
    return lines


def _cells(each: Summary) -> tuple[str, ...]:
    total = each.figures.get("mbps_total")
    share = "-" if total is None else f"{total.median / each.wire_limit_mbps:.0%}"
    rates = ("-", "-", "-") if total is None else tuple(f"{value:.0f}" for value in (total.median, total.least, total.most))
    rest = (
        *(("mbps_steady", ".0f"), ("mbps_first8", ".0f"), ("retransmits_per_gb", ".0f"), ("cpu_s_per_gb", ".2f")),
        *(("cpu_sender_s_per_gb", ".2f"), ("cpu_receiver_s_per_gb", ".2f"), ("reorder_peak_mb", ".1f"), ("competitor_mbps_total", ".0f")),
    )
    return (each.scheme, runs(each), *rates, share, *(cell(each.median(name), form) for name, form in rest))


def ratios(rows: Sequence[Summary]) -> list[str]:
    """Ratios of the medians of SOS to the wire limit and to the best peer, with and without start-up."""
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
    """Draw a PNG: for each scenario, one bar per scheme with minimum and maximum, and the wire limit."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # import after the selection of a backend that needs no screen

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
        axes.set_ylim(0, 1.15 * rows[0].wire_limit_mbps)  # space for the figures above the bars
        axes.set_xticks(range(len(rows)), [each.scheme for each in rows], rotation=60, ha="right", fontsize=8)
        axes.set_title(_TITLES.get(name, name), fontsize=8)
    places[0][0].set_ylabel("goodput with start-up, Mbit/s: median, least, most")
    figure.tight_layout()
    figure.savefig(into, bbox_inches="tight")
    plt.close(figure)
