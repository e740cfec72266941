"""Gain: speed of a service's connections with and without acceleration, and their ratio (docs/adr/0015).

A hash of addresses and ports assigns each connection to a group, so the groups differ only in acceleration. Yet each group contains short
and long transfers, and may have few samples. So connections are compared within size classes, and each class is weighted by the numbers of
samples in both groups. Old samples count less. Only sums are kept: memory is bounded for any number of connections.
"""

from __future__ import annotations

import math
from typing import NamedTuple

HALF_LIFE_S = 1_800.0
"""Half-life of a connection's weight: networks change by the time of day."""
SMALLEST_BYTES = 16_384
"""Minimum size of a transfer: shorter transfers fit into an initial window or two, so their goodput reflects their hosts' think time."""
CLASSES = 12
"""Number of size classes, each four times the previous class: from 16 KiB to 64 GiB."""
ENOUGH = 3.0
"""Minimum number of connections in each group before a gain is reported."""

ACCELERATED, PLAIN = "accelerated", "plain"


class Summary(NamedTuple):
    """Summary of a group: connections since start, bytes per second (geometric mean), seconds until the server's answer; None = unknown."""

    connections: int
    goodput: float | None
    round_trip: float | None


class _Aged:
    """A weighted mean in which old samples count less."""

    __slots__ = ("_at", "total", "weight")

    def __init__(self) -> None:
        self.weight = self.total = self._at = 0.0

    def add(self, value: float, now: float) -> None:
        self._age(now)
        self.weight += 1.0
        self.total += value

    def mean(self, now: float) -> tuple[float, float]:
        """Return mean and weight; (0, 0) while empty."""
        self._age(now)
        return (self.total / self.weight, self.weight) if self.weight > 1e-6 else (0.0, 0.0)

    def _age(self, now: float) -> None:
        factor = 0.5 ** (max(0.0, now - self._at) / HALF_LIFE_S)
        self.weight, self.total, self._at = self.weight * factor, self.total * factor, max(now, self._at)


class _Group:
    __slots__ = ("connections", "round_trip", "speeds")

    def __init__(self) -> None:
        self.connections = 0
        self.round_trip = _Aged()
        self.speeds = [_Aged() for _ in range(CLASSES)]


class Gain:
    """Measured connections of one service, in two groups: accelerated and plain."""

    def __init__(self) -> None:
        self._groups = {ACCELERATED: _Group(), PLAIN: _Group()}

    def begun(self, group: str) -> None:
        """Count a connection that was opened."""
        self._groups[group].connections += 1

    def answered(self, group: str, seconds: float, now: float) -> None:
        """Record a server's answer to a connection's first packet."""
        self._groups[group].round_trip.add(seconds, now)

    def ended(self, group: str, moved: int, seconds: float, now: float) -> None:
        """Record the end of a connection that carried `moved` bytes and ended `seconds` after its first packet."""
        if moved >= SMALLEST_BYTES and seconds > 0:
            self._groups[group].speeds[size_class(moved)].add(math.log(moved / seconds), now)

    def summary(self, group: str, now: float) -> Summary:
        """Return the summary of a group."""
        found = self._groups[group]
        means = [speed.mean(now) for speed in found.speeds]
        weight = sum(weight for _, weight in means)
        goodput = math.exp(sum(mean * weight for mean, weight in means) / weight) if weight else None
        round_trip, seen = found.round_trip.mean(now)
        return Summary(found.connections, goodput, round_trip if seen else None)

    def gain(self, now: float) -> float | None:
        """Return the ratio of accelerated to plain speed, None while there are too few connections."""
        pairs = [
            (with_it.mean(now), without.mean(now))
            for with_it, without in zip(self._groups[ACCELERATED].speeds, self._groups[PLAIN].speeds, strict=True)
        ]
        common = [(one, other) for one, other in pairs if one[1] and other[1]]
        # a connection counts only a quarter after an hour: the threshold applies to the remaining weight
        if min(sum(one[1] for one, _ in common), sum(other[1] for _, other in common)) < ENOUGH:
            return None
        weights = [one[1] * other[1] / (one[1] + other[1]) for one, other in common]
        logs = sum(weight * (one[0] - other[0]) for weight, (one, other) in zip(weights, common, strict=True))
        return math.exp(logs / math.fsum(weights))


def size_class(moved: int) -> int:
    """Return the size class of a number of bytes."""
    return min(CLASSES - 1, max(0, (moved // SMALLEST_BYTES).bit_length() - 1) // 2)
