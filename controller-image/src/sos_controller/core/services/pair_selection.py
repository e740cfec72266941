"""Which pair of agents serves a flow: the nearest, of these the least busy, of these the one with fewest sessions (thesis 3.3).

What agents do (processor, bytes) is measured and moves all the time: pairs that differ by less than `EQUALLY_BUSY` are alike, and their
sessions decide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sos_controller.core.types import AgentId


class Candidate(NamedTuple):
    """A pair that could serve. `cost` = client to near agent + near to far + far to server, in link costs."""

    cost: int
    near: AgentId
    far: AgentId


EQUALLY_BUSY: Final = 0.1
"""A tenth of a core, or of a capacity: means over a second differ by this between agents that do the same."""


class Loaded(NamedTuple):
    """A candidate, the shares of their session limits that its two agents have in use, and how busy they are, together."""

    candidate: Candidate
    load: float
    busy: float = 0.0


def nearest(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates of the lowest cost, sorted."""
    ranked = sorted(set(candidates))
    return tuple(c for c in ranked if c.cost == ranked[0].cost)


def least_loaded(candidates: Iterable[Loaded]) -> Candidate | None:
    """Of the candidates that are least busy the one with the lowest load, the first in order among equals; None when there is none."""
    listed = list(candidates)
    least = min((c.busy for c in listed), default=0.0)
    idle = (c for c in listed if c.busy <= least + EQUALLY_BUSY)
    best = min(idle, key=lambda c: (c.load, c.candidate), default=None)
    return None if best is None else best.candidate


def choose(candidates: Iterable[Loaded]) -> Candidate | None:
    """Nearest, then least loaded. Total and deterministic; load never makes a farther pair win or a loaded pair preferred."""
    listed = list(candidates)
    near = set(nearest(c.candidate for c in listed))
    return least_loaded(c for c in listed if c.candidate in near)
