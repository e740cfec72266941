"""Rates of several runs -> ratios with intervals -> verdicts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from statistics import fmean, variance

from sos_harness.results.figures import Summary
from sos_harness.scenario import Scenario

LEAST_RATIO = 0.97
"""Ratios below this are worse. Smaller differences are noise, because the same machine emulates the network."""
FIGURE = "mbps_total"
CONFIDENCE = 0.95
_T975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for two-sided intervals of 95 %, with 1 to 30 degrees of freedom."""


class Verdict(StrEnum):
    """Verdict on an interval, compared with LEAST_RATIO."""

    HOLDS = "holds"
    OPEN = "open"
    BELOW = "below"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A ratio of geometric means with its 95 % interval; too few runs give no interval."""

    value: float
    low: float | None = None
    high: float | None = None


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ratio of geometric means with Welch's interval for the difference of mean logarithms.

    The alternatives are worse. A bootstrap of five runs gives intervals that are far too narrow. The median of five runs hides a stalled
    run, which `never worse` must detect. Logarithms are used because rates on lossy paths differ by factors. Runs are not paired, so a run
    counts even if its partner has failed, and a disturbance of both schemes at the same time only makes the interval too wide.
    """
    logs = [[math.log(value) for value in values] for values in (ours, theirs)]
    value = math.exp(fmean(logs[0]) - fmean(logs[1]))
    if min(map(len, logs)) < 2:
        return Ratio(value=value)
    errors = [variance(each) / len(each) for each in logs]
    reach = math.exp(_t(errors, [len(each) - 1 for each in logs]) * math.sqrt(sum(errors)))
    return Ratio(value=value, low=value / reach, high=value * reach)


def _t(errors: Sequence[float], freedoms: Sequence[int]) -> float:
    """Student's t for the degrees of freedom of Welch and Satterthwaite, rounded down so that the interval is never too narrow."""
    if not sum(errors):
        return 0.0
    freedom = sum(errors) ** 2 / sum(error**2 / own for error, own in zip(errors, freedoms, strict=True))
    return _T975[min(len(_T975), max(1, int(freedom))) - 1]


def judge(found: Ratio, failed: int) -> Verdict:
    """Verdict on a ratio; `failed` is the number of failed SOS runs, which the interval does not cover."""
    if found.low is None or found.high is None:
        return Verdict.OPEN
    if found.high < LEAST_RATIO:
        return Verdict.BELOW
    return Verdict.HOLDS if found.low >= LEAST_RATIO and not failed else Verdict.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of one SOS row with the best of its rivals; `against` is the name of the group of rivals."""

    ours: str
    against: str
    best: str
    ours_mbps: float
    best_mbps: float
    runs: tuple[int, int]
    failed: int
    ratio: Ratio
    verdict: Verdict


PLAIN, PATH = "plain", "own path"
PLAINS = ("plain", "plain-b")


def wanted(scenario: Scenario) -> list[tuple[str, str, tuple[str, ...]]]:
    """Comparisons of a case: SOS row, name of the group of rivals, and rows of the rivals."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for ours, which in (("sos first", " first"), ("sos", "")):
        if len(scenario.paths) == 1:
            found.append((ours, PLAIN, ("plain",)))
        else:
            found += [(ours, PLAIN, PLAINS), (ours, PATH, (f"sos-a{which}", f"sos-b{which}"))]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case with its comparisons; `missing` is the number of comparisons that have not been measured."""

    name: str
    title: str
    wire_limit_mbps: float
    comparisons: tuple[Comparison, ...]
    missing: int

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of all comparisons; not better than open while a comparison is missing."""
        found = {each.verdict for each in self.comparisons}
        if Verdict.BELOW in found:
            return Verdict.BELOW
        return Verdict.OPEN if Verdict.OPEN in found or self.missing else Verdict.HOLDS

    def encode(self) -> dict[str, object]:
        """Encode for the .json."""
        return {**asdict(self), "verdict": self.verdict}


def cases(scenarios: Iterable[Scenario], summaries: Sequence[Summary]) -> list[Case]:
    """All cases with measurements."""
    found = []
    for scenario in scenarios:
        rows = {each.scheme: each for each in summaries if each.scenario == scenario.name}
        if not rows:
            continue
        each = [_compare(rows, *words) for words in wanted(scenario)]
        there = tuple(comparison for comparison in each if comparison is not None)
        found.append(
            Case(
                name=scenario.name,
                title=scenario.title,
                wire_limit_mbps=round(scenario.wire_limit_mbps, 1),
                comparisons=there,
                missing=len(each) - len(there),
            )
        )
    return found


def _compare(rows: Mapping[str, Summary], ours: str, against: str, others: Sequence[str]) -> Comparison | None:
    """Compare with the best rival; None while any rival is missing, because it may be the best."""
    rates = {name: runs(rows.get(name)) for name in (ours, *others)}
    if not all(rates.values()):
        return None
    best = max(others, key=lambda name: mean(rates[name]))
    found, failed = ratio(rates[ours], rates[best]), rows[ours].runs_failed
    return Comparison(
        ours=ours,
        against=against,
        best=best,
        ours_mbps=round(mean(rates[ours]), 3),
        best_mbps=round(mean(rates[best]), 3),
        runs=(len(rates[ours]), len(rates[best])),
        failed=failed,
        ratio=found,
        verdict=judge(found, failed),
    )


def runs(summary: Summary | None) -> tuple[float, ...]:
    """Rates of all runs that count."""
    figure = None if summary is None else summary.figures.get(FIGURE)
    return () if figure is None else figure.values


def mean(rates: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(fmean(map(math.log, rates)))
