"""Durations counted in fixed buckets, for the metrics: bounded, whatever is observed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

SET_UP_S: Final[tuple[float, ...]] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Upper bounds of buckets for set-up (seconds): from switches and agents in one room to the time limit of set-up."""


class Histogram:
    """Observations by bucket; the last bucket has no upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value. Its bucket is the first whose upper bound is not smaller."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, int]]:
        """Return the cumulative counts by upper bound, as the Prometheus text format writes them."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
