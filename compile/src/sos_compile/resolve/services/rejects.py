"""Connections that a node's switch rejects, because their service requires more than plain TCP (docs/adr/0054).

The reject entries are in the base table, with a lower priority than the controller's entries that accelerate, so they work even if no
controller, agent or `sos-node` runs. As everywhere, the first service that covers a connection decides: a connection is not rejected if an
earlier service without requirements covers it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import MAX_REJECTS, PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.resolve.services import regions
from sos_compile.resolve.services.regions import Interval, Region
from sos_compile.resolve.services.shadows import MAX_PIECES, SLICES, meeting, region

REJECT_PORT = ("sosrej0", "sosrej1")
"""The port on the bridge, and its peer device, at which the kernel answers with a reset."""


@dataclass(frozen=True)
class Rejected:
    """The part of one service that is rejected at the site of its clients."""

    service: PlacedService
    pieces: tuple[Region, ...]

    @property
    def count(self) -> int:
        """Number of matches, computed before building them, because there may be too many."""
        return sum(
            len(regions.prefixes(piece.clients)) * len(regions.prefixes(piece.servers)) * sum(len(_ports(each)) for each in piece.ports)
            for piece in self.pieces
        )

    @cached_property
    def matches(self) -> tuple[str, ...]:
        """Addresses and ports in the syntax of ovs-ofctl(8), without protocol and flags."""
        found: dict[str, None] = {}
        for piece in self.pieces:
            clients, servers = regions.prefixes(piece.clients), regions.prefixes(piece.servers)
            ports = [port for each in piece.ports for port in _ports(each)]
            found |= dict.fromkeys(f"nw_src={c},nw_dst={s}{p}" for c in clients for s in servers for p in ports)
        return tuple(found)


def tried(services: Iterable[PlacedService], site: str, controllers: Mapping[str, int]) -> list[PlacedService]:
    """Return the services of a site's clients in the order in which they are tried there, over all controllers."""
    return sorted((each for each in services if each.source == site), key=lambda each: -(controllers.get(each.controller, 0) % SLICES))


def rejected(ordered: Sequence[PlacedService]) -> list[Rejected]:
    """Return the rejected parts of services with requirements; `ordered`: the services as `tried` returns them. If there are too many
    overlaps or regions to compare, connections of earlier services are rejected as well, rather than forwarded without the requirement.
    """
    covered = [region(each) for each in ordered]
    earlier: dict[int, list[int]] = {}
    for one, other in meeting(covered) or ():
        first, last = sorted((one, other))
        if ordered[last].service.require and not ordered[first].service.require:
            earlier.setdefault(last, []).append(first)
    return [Rejected(each, _left(covered, i, earlier.get(i, []))) for i, each in enumerate(ordered) if each.service.require]


def _left(covered: Sequence[Region], i: int, earlier: Iterable[int]) -> tuple[Region, ...]:
    """Return the connections of service `i` that the `earlier` services do not cover."""
    pieces = [covered[i]]
    for j in sorted(earlier):
        smaller = [part for piece in pieces for part in regions.difference(piece, covered[j])]
        if len(smaller) > MAX_PIECES:
            break
        pieces = smaller
    return tuple(pieces)


def build(
    services: Iterable[PlacedService], controllers: Mapping[str, int]
) -> dict[str, tuple[tuple[PlacedService, tuple[str, ...]], ...]]:
    """Return the rejected services and their matches at each site."""
    accepted = list(services)
    names = sorted({each.source for each in accepted if each.service.require})
    return {name: tuple((each.service, each.matches) for each in rejected(tried(accepted, name, controllers))) for name in names}


def limited(
    services: list[PlacedService], sites: Mapping[str, PlacedSite], controllers: Mapping[str, int], verdicts: Verdicts
) -> list[PlacedService]:
    """Return the services, except those whose requirement the switches of their clients' site cannot enforce."""
    refused: set[str] = set()
    for name in sorted({each.source for each in services if each.service.require}):
        left = MAX_REJECTS
        for each in rejected(tried(services, name, controllers)):
            problem = _problem(each, sites[name], left)
            if problem is None:
                left -= _cost(each, sites[name])
                continue
            refused.add(each.service.service.id)
            verdicts.reject(each.service.service.origin, "spec.require", *problem)
    return [each for each in services if each.service.id not in refused]


def _problem(each: Rejected, placed: PlacedSite, left: int) -> tuple[Reason, str, str] | None:
    site = placed.site
    if site.switches:
        message = f"SosSite {site.name} has external switches, which forward plainly while no controller is there"
        return Reason.INVALID, message, "leave out spec.require, or name a site whose hosts are all at its nodes"
    if (cost := _cost(each, placed)) > left:
        message = f"it takes {cost} entries at a node of SosSite {site.name}, and {left} of {MAX_REJECTS} are left"
        return Reason.LIMIT_EXCEEDED, message, "name fewer prefixes and ports"
    return None


def _cost(each: Rejected, placed: PlacedSite) -> int:
    """Return the maximum number of entries that a node needs: one set for all hosts, and one for each of its agents."""
    agents = Counter(agent.node for agent in placed.agents)
    return each.count * (1 + max(agents.values(), default=0))


def _ports(interval: Interval) -> list[str]:
    """Return a port range as a minimum number of masked matches. No connection uses port 0, so a range that starts at 1 is extended to port
    0, which needs fewer matches."""
    first, last = (0 if interval[0] == 1 else interval[0]), interval[1]
    found: list[str] = []
    while first <= last:
        size = first & -first or 0x10000
        while size > last - first + 1:
            size >>= 1
        mask = 0xFFFF & ~(size - 1)
        found.append(f",tp_dst={first}" if size == 1 else f",tp_dst={first:#x}/{mask:#x}" if mask else "")
        first += size
    return found
