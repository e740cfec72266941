"""Detection of leaks in a series of measurements: a leak grows without bound, caches and allocators only to the size that they need.

The first third of a series is ignored, because pools fill and interpreters warm up. The rest is a leak if two conditions hold:

1. The trend is significant. The Mann-Kendall test compares the values of all pairs of samples; a series without a trend passes
   for a rising series by chance once in a thousand times.
2. The growth is large enough. The Theil-Sen slope (median slope of all pairs, robust against outliers), multiplied by the judged
   time, exceeds both a fixed limit and a fraction of the series' median.

A single step counts as a leak if it exceeds these limits. Too few samples are an error, never a pass.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
WARM_UP = 1 / 3
LEAST = 8
"""Minimum number of judged samples: with fewer samples the test cannot reach a significance of one in a thousand."""
ACCIDENT_Z = 3.09  # standard score that a series without a trend exceeds by chance once in a thousand times (one-sided)
SHARE = 0.10
ALLOWED = {"memory": 8.0 * MIB, "entries": 10.0, "sockets": 5.0, "files": 5.0}
"""Permitted growth in the judged time, by kind (memory in bytes). A soak of one hour opens 14,000 connections in this time, so a leak of
600 bytes per connection is found."""

Sample = tuple[float, float]  # seconds, value


class TooFewError(AssertionError):
    """Too few samples for a verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Verdict on the judged part of a series."""

    samples: int
    median: float
    growth: float  # over the judged time
    z: float
    allowed: float

    @property
    def leaks(self) -> bool:
        """True if the series grows without bound."""
        return self.z > ACCIDENT_Z and self.growth > self.allowed


def judged(series: Sequence[Sample]) -> Sequence[Sample]:
    """The series without its warm-up."""
    rest = series[math.ceil(len(series) * WARM_UP) :]
    if len(rest) < LEAST:
        raise TooFewError(f"{len(series)} samples leave {len(rest)} to be judged, {LEAST} are needed: let it run for longer")
    return rest


def trend(series: Sequence[Sample], allowed: float) -> Trend:
    """Judge one series, in the order of time; raises TooFewError."""
    rest = judged(series)
    median = statistics.median(value for _, value in rest)
    slope = statistics.median((later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.combinations(rest, 2))
    return Trend(
        samples=len(rest),
        median=median,
        growth=slope * (rest[-1][0] - rest[0][0]),
        z=_mann_kendall([value for _, value in rest]),
        allowed=max(allowed, SHARE * median),
    )


def _mann_kendall(values: Sequence[float]) -> float:
    """Standard score of rising minus falling pairs, with the variance corrected for ties."""
    score = sum((later > earlier) - (later < earlier) for earlier, later in itertools.combinations(values, 2))
    ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(values).values())
    n = len(values)
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return 0.0 if variance == 0 else (score - (score > 0) + (score < 0)) / math.sqrt(variance)


def leaks(series: Mapping[str, Sequence[Sample]]) -> list[str]:
    """One sentence per leaking series `KIND of WHAT`; raises TooFewError."""
    said = []
    for name, samples in sorted(series.items()):
        found = trend(samples, ALLOWED[name.split()[0]])
        if found.leaks:
            said.append(
                f"{name}: grew by {found.growth:,.0f} in {samples[-1][0] - judged(samples)[0][0]:,.0f} s, {found.allowed:,.0f} are allowed "
                f"(median {found.median:,.0f}, z {found.z:.1f}, {found.samples} samples)"
            )
    return said
