"""Services shadowed by other services: if several services cover a connection, one takes effect, and the status of the others reports this
(docs/adr/0049).

At each site, the services of the site's clients are compared in the order in which they are tried. Balanced services come after all others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sos_compile.model import addresses
from sos_compile.model.memo import ByIdentity, Memo
from sos_compile.model.network import PlacedBalance, PlacedService
from sos_compile.model.resources import ALL_PORTS
from sos_compile.model.world import ObjectKey, Overlap, Shadow
from sos_compile.resolve.services import regions
from sos_compile.resolve.services.regions import Region

MAX_COMPARED = 1_000_000
"""Maximum number of pairs of services that are compared at one site, in about a second."""
MAX_PAIRS = 50_000
"""Maximum number of pairs of services with common connections at one site; this number, too, takes about a second."""
MAX_PIECES = 256
"""Maximum number of regions that describe the connections of a service without those of earlier services. If more are needed, the service
counts as partly hidden."""
MAX_NAMED = 8
"""Maximum number of overlaps kept per service, so that the message stays readable."""
SHOWN = 3
SLICES = 1000
"""If two controllers serve one switch, entries of the controller with the larger number (modulo SLICES) win
(sos_controller.core.openflow.pipeline)."""

Placed = PlacedService | PlacedBalance


@dataclass
class _Found:
    """Overlaps of one service found so far."""

    hidden_by: list[Overlap] = field(default_factory=list)
    hides: list[Overlap] = field(default_factory=list)
    wholly: bool = False
    compared: bool = True

    def shadow(self) -> Shadow:
        """Return the overlaps as a Shadow."""
        counts = len(self.hidden_by), len(self.hides)
        return Shadow(tuple(self.hidden_by[:MAX_NAMED]), tuple(self.hides[:MAX_NAMED]), *counts, self.wholly, self.compared)


def region(placed: Placed) -> Region:
    """Return the connections that a service may cover. This region does not depend on the pods that a service selects at present."""
    if isinstance(placed, PlacedBalance):
        client = int(placed.client)
        return Region(((client, client),), regions.addresses(placed.service.target.prefixes), regions.joined(placed.ports))
    return Region(regions.addresses(placed.source_prefixes), regions.addresses(placed.target_prefixes), regions.joined(placed.ports))


def _selected(placed: Placed) -> Region:
    """Return the connections that a service covers at present."""
    if isinstance(placed, PlacedBalance) or placed.client_pods is None:
        return region(placed)
    return region(placed)._replace(clients=regions.addresses(prefix for node in placed.client_pods.values() for prefix in node))


def find(
    services: Iterable[PlacedService], balances: Iterable[PlacedBalance], controllers: Mapping[str, int], memo: Memo
) -> dict[ObjectKey, Shadow]:
    """Return the overlaps of each service that is hidden, or hides others, at least in part.

    `services` and `balances` are in the order in which they are tried; `controllers` are the controllers' numbers.
    """
    by_site: dict[str, list[Placed]] = {}
    for service in services:
        if service.client_pods != {}:  # a service without a client at present overlaps with none
            by_site.setdefault(service.source, []).append(service)
    for balance in balances:
        by_site.setdefault(balance.site, []).append(balance)
    found: dict[ObjectKey, Shadow] = {}
    for site, placed in sorted(by_site.items()):
        ordered = sorted(placed, key=lambda each: (isinstance(each, PlacedBalance), -(controllers.get(each.controller, 0) % SLICES)))
        key = (site, tuple((ByIdentity(each.service), _ends(each), each.controller) for each in ordered))
        found |= memo.shadows.get(key, partial(_compare, ordered))
    return found


def _ends(placed: Placed) -> Hashable:
    return (
        (placed.client, placed.ports)
        if isinstance(placed, PlacedBalance)
        else (placed.source_prefixes, placed.target_prefixes, placed.ports, pods_key(placed))
    )


def pods_key(placed: PlacedService) -> Hashable:
    """Return the client pods of a service as a hashable value."""
    return None if placed.client_pods is None else tuple(placed.client_pods.items())


def _compare(placed: Sequence[Placed]) -> dict[ObjectKey, Shadow]:
    covered = [_selected(each) for each in placed]
    pairs = meeting(covered)
    if pairs is None:
        return {_key(each): Shadow(compared=False) for each in placed}
    earlier: dict[int, list[int]] = {}
    for i, j in pairs:
        earlier.setdefault(max(i, j), []).append(min(i, j))
    found: dict[ObjectKey, _Found] = {}
    for i, before in sorted(earlier.items()):
        _hide(placed, covered, i, sorted(before), found)
    return {key: each.shadow() for key, each in found.items() if each.hidden_by or each.hides}


def _hide(placed: Sequence[Placed], covered: Sequence[Region], i: int, before: list[int], found: dict[ObjectKey, _Found]) -> None:
    mine = found.setdefault(_key(placed[i]), _Found())
    left = [covered[i]]
    for j in before:
        taken = [part for piece in left if not (part := regions.intersection(piece, covered[j])).empty]
        if not taken:
            continue
        shown = words(_bounds(taken))
        mine.hidden_by.append(Overlap(_key(placed[j]), shown))
        found.setdefault(_key(placed[j]), _Found()).hides.append(Overlap(_key(placed[i]), shown))
        smaller = [part for piece in left for part in regions.difference(piece, covered[j])]
        left = smaller if len(smaller) <= MAX_PIECES else left
    mine.wholly = not left


def _bounds(parts: Sequence[Region]) -> Region:
    """Return one region that contains all `parts`: the union of their clients, servers and ports."""
    return parts[0] if len(parts) == 1 else Region(*(regions.joined(each for part in parts for each in part[i]) for i in range(3)))


def words(covered: Region) -> str:
    """Return a description of a set of connections for a message."""
    clients, servers = (regions.prefixes(each) for each in (covered.clients, covered.servers))
    ports = "every port" if covered.ports == ALL_PORTS else f"ports {_listed(addresses.ports(covered.ports).split(','))}"
    return f"{_listed(map(str, clients))} to {_listed(map(str, servers))}, {ports}"


def _listed(items: Iterable[str]) -> str:
    listed = list(items)
    return ",".join(listed[:SHOWN]) + (f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else "")


def _key(placed: Placed) -> ObjectKey:
    return placed.service.origin.key


def meeting(covered: Sequence[Region]) -> list[tuple[int, int]] | None:
    """Return the pairs of regions that share connections; None if there are too many to compare. Sweep along the dimension (clients,
    servers or ports) with the fewest overlaps, so that a thousand services with one port each cost no more than a thousand with one prefix
    each.
    """
    bounds = [tuple((each[0][0], each[-1][1]) for each in one) for one in covered]
    crowds = [_crowd([each[axis] for each in bounds]) for axis in range(3)]
    if min(crowds) > MAX_COMPARED:
        return None
    axis = crowds.index(min(crowds))
    found: list[tuple[int, int]] = []
    active: list[int] = []
    for i in sorted(range(len(covered)), key=lambda k: (bounds[k][axis][0], k)):
        active = [j for j in active if bounds[j][axis][1] >= bounds[i][axis][0]]
        for j in active:
            near = all(a[0] <= b[1] and b[0] <= a[1] for a, b in zip(bounds[i], bounds[j], strict=True))
            if near and regions.overlap(covered[i], covered[j]):
                found.append((i, j))
        if len(found) > MAX_PAIRS:
            return None
        active.append(i)
    return found


def _crowd(spans: Sequence[regions.Interval]) -> int:
    """Count the pairs of spans that overlap."""
    starts, ends = sorted(first for first, _ in spans), sorted(last for _, last in spans)
    ordered = sum(bisect_right(starts, last) for last in ends) - sum(bisect_left(ends, first) for first in starts)
    return (ordered - len(spans)) // 2
