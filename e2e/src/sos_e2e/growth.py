"""Whether a series of measurements grows without end, as what leaks does, or only up to what it needs, as caches and allocators do.

The first third of a series is left out: pools fill, interpreters warm up. Of the rest two things must hold for it to be a leak:

1. The trend is no accident: Mann and Kendall's test counts for all pairs which of the two is larger; by chance alone a series of no
   trend looks like this once in a thousand times.
2. It matters: Theil and Sen's slope (the median of the slopes of all pairs, which outliers do not move) times the time that was judged
   is more than the larger of a number and a share of the series' median.

A single step is judged like a leak of its height. Too few samples are an error, never a pass.
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
"""Samples that are judged, at least: with fewer the test cannot come to one in a thousand."""
ACCIDENT_Z = 3.09  # one-sided, one in a thousand
SHARE = 0.10
ALLOWED = {"memory": 8.0 * MIB, "entries": 10.0, "sockets": 5.0, "files": 5.0}
"""By what is measured. In an hour of soak 14,000 connections are opened in the time that is judged: 600 bytes for each are found."""

Sample = tuple[float, float]  # seconds, value


class TooFewError(AssertionError):
    """Nothing can be said of so few samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """What the time that was judged says of a series."""

    samples: int
    median: float
    growth: float  # over that time
    z: float
    allowed: float

    @property
    def leaks(self) -> bool:
        """Whether it grows without end."""
        return self.z > ACCIDENT_Z and self.growth > self.allowed


def judged(series: Sequence[Sample]) -> Sequence[Sample]:
    """Without the warm-up."""
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
    """Standard score of the number of pairs that rise less those that fall, with the variance that ties leave."""
    score = sum((later > earlier) - (later < earlier) for earlier, later in itertools.combinations(values, 2))
    ties = sum(n * (n - 1) * (2 * n + 5) for n in Counter(values).values())
    n = len(values)
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return 0.0 if variance == 0 else (score - (score > 0) + (score < 0)) / math.sqrt(variance)


def leaks(series: Mapping[str, Sequence[Sample]]) -> list[str]:
    """A sentence for every series `KIND of WHAT` that leaks; raises TooFewError."""
    said = []
    for name, samples in sorted(series.items()):
        found = trend(samples, ALLOWED[name.split()[0]])
        if found.leaks:
            said.append(
                f"{name}: grew by {found.growth:,.0f} in {samples[-1][0] - judged(samples)[0][0]:,.0f} s, {found.allowed:,.0f} are allowed "
                f"(median {found.median:,.0f}, z {found.z:.1f}, {found.samples} samples)"
            )
    return said
