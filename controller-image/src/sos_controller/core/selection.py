"""Which pair of agents serves a flow: the nearest, then the least loaded, then the lower ids (thesis 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sos_controller.core.model import AgentId


class Candidate(NamedTuple):
    """A pair that could serve. `cost` = client to near agent + near to far + far to server, in link costs."""

    cost: int
    near: AgentId
    far: AgentId


class Loaded(NamedTuple):
    """A candidate and the loads of its two agents, 0 to 1."""

    candidate: Candidate
    load: float


def nearest(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates of the lowest cost, sorted."""
    ranked = sorted(set(candidates))
    return tuple(c for c in ranked if c.cost == ranked[0].cost)


def least_loaded(candidates: Iterable[Loaded]) -> Candidate | None:
    """The candidate with the lowest load, the first in order among equals; None when there is none."""
    best = min(candidates, key=lambda c: (c.load, c.candidate), default=None)
    return None if best is None else best.candidate


def choose(candidates: Iterable[Loaded]) -> Candidate | None:
    """Nearest, then least loaded. Total and deterministic; load never makes a farther pair win or a loaded pair preferred."""
    listed = list(candidates)
    near = set(nearest(c.candidate for c in listed))
    return least_loaded(c for c in listed if c.candidate in near)
