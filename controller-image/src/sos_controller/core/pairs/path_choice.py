"""Choice of the disjoint path that a new session takes, for services whose sessions take one path each (docs/adr/0015).

RoundRobin: in turn. LeastLoaded: the path with the lowest load, relative to its capacity if declared. Measured: the path with the shortest
measured round trip; among about equally short round trips, the least loaded path. Without any measurement, LeastLoaded and Measured choose
like Shortest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sos_controller.core.pairs.agent_pairs import PairKey
from sos_controller.core.topology.path_stats import PathMeasure

ASSUMED_LOAD = 1_250_000.0
"""Bytes per second assumed for a session that is in no report yet: 10 Mbit/s. Otherwise all sessions begun between two reports would take
one path."""
SAME_RTT = 1.1
SAME_RTT_US = 2_000
"""Round trips within 10 % or 2 ms of the shortest, whichever is more, are equal: agents' measurements jitter by that much."""
MAX_ASSIGNMENTS = 16_384
"""Maximum number of services and pairs whose turns are remembered; beyond it, turns start over."""


class Choice(NamedTuple):
    """A candidate path."""

    label: int
    measure: PathMeasure | None
    capacity: float
    """Bytes per second, 0 = not declared."""
    given: int
    """Number of sessions assigned to this path since its last measurement."""

    @property
    def load(self) -> float:
        """Return the measured and assumed load, as a share of the capacity if the capacity is declared."""
        carried = (self.measure.load if self.measure is not None else 0.0) + self.given * ASSUMED_LOAD
        return carried / self.capacity if self.capacity else carried


def least_loaded(choices: Sequence[Choice]) -> int:
    """Return the least loaded label. Capacities count only if all are declared: a share cannot be compared with a rate."""
    comparable = choices if all(c.capacity for c in choices) else [c._replace(capacity=0.0) for c in choices]
    return min(comparable, key=lambda c: (c.load, c.label)).label


def pick(mode: str, choices: Sequence[Choice], turn: int) -> int:
    """Return the label for a new session; `choices` is not empty and sorted by label, `turn` counts the sessions before it."""
    if mode == "RoundRobin":
        return choices[turn % len(choices)].label
    if mode == "LeastLoaded":
        known = [c for c in choices if c.measure is not None]
        return least_loaded(known) if known else choices[0].label
    timed = [c for c in choices if c.measure is not None and c.measure.rtt_us]
    if mode != "Measured" or not timed:
        return choices[0].label
    shortest = min(c.measure.rtt_us for c in timed if c.measure is not None)
    limit = max(shortest * SAME_RTT, shortest + SAME_RTT_US)
    return least_loaded([c for c in timed if c.measure is not None and c.measure.rtt_us <= limit])


class PathAssignments:
    """Numbers of sessions assigned to paths: in total, for round robin, and since the last measurement of a path."""

    def __init__(self, limit: int = MAX_ASSIGNMENTS) -> None:
        self._limit = limit
        self._turns: dict[tuple[str, PairKey], int] = {}
        self._given: dict[tuple[PairKey, int], tuple[float, int]] = {}

    def turn(self, service: str, pair: PairKey) -> int:
        """Return the number of earlier sessions of a service between two agents, and count a new session."""
        if (service, pair) not in self._turns and len(self._turns) >= self._limit:
            self._turns.clear()
        turn = self._turns.get((service, pair), 0)
        self._turns[service, pair] = turn + 1
        return turn

    def given(self, pair: PairKey, label: int, heard_at: float) -> int:
        """Return the number of sessions assigned to a path since its measurement at `heard_at`."""
        since, count = self._given.get((pair, label), (heard_at, 0))
        return count if since >= heard_at else 0

    def give(self, pair: PairKey, label: int, heard_at: float) -> None:
        """Assign a session to a path."""
        if (pair, label) not in self._given and len(self._given) >= self._limit:
            self._given.clear()
        self._given[pair, label] = (heard_at, self.given(pair, label, heard_at) + 1)
