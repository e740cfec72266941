"""Table for a terminal, and chart, of all cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sos_harness.results.figures import OK, Summary
from sos_harness.results.tables import aligned

from sos_matrix.cases import CASES
from sos_matrix.verdicts import LEAST_RATIO, PATH, PLAIN, PLAINS, Case, Comparison, Ratio, Verdict, cases, mean, runs

HEAD = ("", "wire", "plain", "first", "next", "first : plain", "next : plain", "first : own path", "next : own path", "verdict")
SIDES = (("sos first", PLAIN), ("sos", PLAIN), ("sos first", PATH), ("sos", PATH))
COLOURS = {Verdict.HOLDS: "#2a9d3a", Verdict.OPEN: "#9aa5b1", Verdict.BELOW: "#c62828"}
MARKS = {("sos first", PLAIN): "o", ("sos", PLAIN): "s", ("sos first", PATH): "^", ("sos", PATH): "v"}
SHOWN = (0.5, 4.0)
"""Range of the chart. Ratios beyond the range are drawn at its edge: a factor of ten and of a hundred look the same."""


def table(found: Sequence[Summary]) -> list[str]:
    """Table with one line per case, then failures, comparisons below LEAST_RATIO, and the number of cases by verdict."""
    judged = cases(CASES, found)
    lines = [f"Mbit/s are geometric means; ratios have intervals of 95 %; below {LEAST_RATIO:g} is worse", ""]
    lines += aligned([HEAD, *(_cells(case, found) for case in judged)])
    lines += [f"  {each.scenario} {each.scheme}: {problem}" for each in found if (problem := _problem(each))]
    for case in judged:
        lines += [f"  below: {case.name} ({case.title}), {sentence(each)}" for each in case.comparisons if each.verdict is Verdict.BELOW]
    counts = ", ".join(f"{sum(case.verdict is verdict for case in judged)} {verdict}" for verdict in Verdict)
    return ["", *lines, "", f"{len(judged)} of {len(CASES)} cases: {counts}"]


def _cells(case: Case, found: Sequence[Summary]) -> tuple[str, ...]:
    by_side = {(each.ours, each.against): each for each in case.comparisons}
    ratios = tuple(_ratio(by_side[side].ratio) if side in by_side else "-" for side in SIDES)
    rates = {each.scheme: mean(values) for each in found if each.scenario == case.name and (values := runs(each))}
    plain = max((rates[name] for name in PLAINS if name in rates), default=None)
    shown = (case.wire_limit_mbps, plain, rates.get("sos first"), rates.get("sos"))
    return (case.name, *("-" if value is None else f"{value:.4g}" for value in shown), *ratios, case.verdict)


def _ratio(found: Ratio) -> str:
    interval = "" if found.low is None or found.high is None else f" ({_times(found.low)}-{_times(found.high)})"
    return _times(found.value) + interval


def _times(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _problem(each: Summary) -> str:
    """Failures of a scheme or of its network."""
    lost = each.figures.get("emulator_lost")
    if each.status != OK:
        return each.status
    if each.runs_failed:
        return f"{each.runs_failed} failed"
    return f"the link emulator lost {lost.most:.0f} packets unintentionally: inaccurate emulation" if lost and lost.most else ""


def sentence(each: Comparison) -> str:
    """Description of a comparison."""
    return f"{each.ours} {each.ours_mbps:.4g} Mbit/s, {each.best} {each.best_mbps:.4g}: {_ratio(each.ratio)}"


def chart(found: Sequence[Summary], into: Path) -> None:
    """Draw a PNG: one line per case with ratios and intervals of all comparisons, and LEAST_RATIO as a vertical line."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # import after the selection of a backend that needs no screen
    from matplotlib.lines import Line2D

    judged = cases(CASES, found)[::-1]  # the first case is at the top
    if not judged:
        return
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.34 * len(judged)), dpi=120, layout="constrained")
    for place, case in enumerate(judged):
        for each in case.comparisons:
            side = (each.ours, each.against)
            value, low, high = drawn(each.ratio)
            height, reach, colour = place + 0.3 - 0.2 * SIDES.index(side), [[value - low], [high - value]], COLOURS[each.verdict]
            axes.errorbar(value, height, xerr=reach, fmt=MARKS[side], markersize=4, capsize=2, linewidth=1, color=colour)
    axes.axvline(LEAST_RATIO, color="black", linestyle="dashed", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(SHOWN[0] * 0.96, SHOWN[1] * 1.04)
    axes.set_xticks((0.5, 0.7, LEAST_RATIO, 1.5, 2, 3, 4), ("0.5 or less", "0.7", f"{LEAST_RATIO:g}", "1.5", "2", "3", "4 or more"))
    axes.minorticks_off()
    axes.set_yticks(range(len(judged)), [f"{case.name}: {case.verdict}" for case in judged], fontsize=7)
    axes.set_xlabel("ratio of rates with start-up, interval of 95 %")
    keys = [Line2D([], [], marker=MARKS[side], linestyle="", color="black", label=f"{_label(side[0])} : {side[1]}") for side in SIDES]
    keys += [Line2D([], [], marker="o", linestyle="", color=colour, label=verdict) for verdict, colour in COLOURS.items()]
    figure.legend(handles=keys, fontsize=7, loc="outside upper center", ncols=len(keys), frameon=False)
    figure.savefig(into)
    plt.close(figure)


def _label(ours: str) -> str:
    return "first" if ours == "sos first" else "next"


def drawn(found: Ratio) -> tuple[float, float, float]:
    """Value, low and high, limited to the range of the chart."""
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    value, low, high = (min(max(each, SHOWN[0]), SHOWN[1]) for each in (found.value, low, high))
    return value, low, high
