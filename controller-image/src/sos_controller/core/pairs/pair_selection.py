"""Selection of the pair of agents for a flow: first the nearest pairs, then the least busy of them, then the pair with the lowest load
(thesis 3.3).

Busyness of agents (processor, bytes) is measured and fluctuates: pairs that differ by at most `EQUALLY_BUSY` are equal, and their load
(sessions) decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sos_controller.core.types import AgentId


class Candidate(NamedTuple):
    """A pair that could serve. `cost` = client to ingress agent + ingress to egress + egress to server, in link costs."""

    cost: int
    ingress: AgentId
    egress: AgentId


EQUALLY_BUSY: Final = 0.1
"""Difference of busyness that is ignored: a tenth of a core, or of a capacity. One-second means of equally loaded agents differ by as
much."""


class Loaded(NamedTuple):
    """A candidate, with its two agents' load (fraction of the session limit in use) and busyness, each summed."""

    candidate: Candidate
    load: float
    busy: float = 0.0


def nearest(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates of the lowest cost, sorted."""
    ranked = sorted(set(candidates))
    return tuple(c for c in ranked if c.cost == ranked[0].cost)


def least_loaded(candidates: Iterable[Loaded]) -> Candidate | None:
    """Return the candidate with the lowest load among the least busy candidates, the first in order if equal; None without candidates."""
    listed = list(candidates)
    least = min((c.busy for c in listed), default=0.0)
    idle = (c for c in listed if c.busy <= least + EQUALLY_BUSY)
    best = min(idle, key=lambda c: (c.load, c.candidate), default=None)
    return None if best is None else best.candidate


def choose(candidates: Iterable[Loaded]) -> Candidate | None:
    """Choose the least loaded of the nearest pairs. Total and deterministic: load never makes a farther pair win, and a higher load never
    makes a pair preferred."""
    listed = list(candidates)
    ingress = set(nearest(c.candidate for c in listed))
    return least_loaded(c for c in listed if c.candidate in ingress)
