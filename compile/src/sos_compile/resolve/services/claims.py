"""Precedence between services of several namespaces that cover the same connections (docs/adr/0049).

Within a namespace, priority decides, then age. Between namespaces, no field of the services counts: the band that the rules of the clients'
site give to a namespace decides, then the order of arrival. A service's claim is a number, kept in its status: a new service gets the next
number, as does a service that is changed to cover other connections. Numbers only grow, so a namespace cannot overtake another one by
changing its services.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedBalance, PlacedService
from sos_compile.model.problem import Reason
from sos_compile.model.resources import PAIR_FIELDS, End, Service
from sos_compile.model.world import Claim
from sos_compile.resolve.services.shadows import meeting, region

SCOPE_DIGITS = 16  # hex digits kept of a SHA-256; if the digests of a service before and after a change collide, it only keeps its number
CHOOSING_MODES = frozenset({"RoundRobin", "LeastLoaded", "Measured"})

Placed = PlacedService | PlacedBalance
Rank = tuple[int, int, tuple[int, tuple[str, str, str]]]


@dataclass(frozen=True)
class Ordered:
    """Services in the order in which they are tried, and the claims to be kept, by `namespace/name`."""

    services: tuple[Placed, ...]
    claims: Mapping[str, Claim]


def scope(service: Service) -> str:
    """Return a digest of the fields on which a service's claim depends: the connections it covers, and settings that affect other services'
    set-up and streams. All other fields may change."""
    stands = service.setup == "Proactive" and service.mode == "Accelerate" and service.percent == 100
    stands = stands and service.paths_mode not in CHOOSING_MODES
    shared = service.transport.named & frozenset(PAIR_FIELDS)
    streams = [service.transport.streams, service.transport.congestion_control, sorted(shared)] if shared else []
    covers = [_end(service.source), _end(service.target), service.ports]
    parts = [*covers, service.controller, stands, service.balance is not None, streams]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:SCOPE_DIGITS]


def _end(end: End) -> list[object]:
    selected = [[end.pods.selector, end.pods.namespace_selector]] if end.pods else []
    named = [list(end.service)] if end.service else []
    return [end.site, [str(prefix) for prefix in end.prefixes], *selected, *named]


def by_priority(placed: Placed) -> tuple[int, tuple[str, str, str]]:
    """Sort key within a namespace: highest priority, then oldest."""
    return (-placed.service.priority, placed.service.origin.age)


def order(
    placed: Iterable[Placed], band: Callable[[Placed], int], before: Mapping[str, Claim], known: Iterable[Service], verdicts: Verdicts
) -> Ordered:
    """Return the accepted services in the order in which they are tried. `before`: the claims of the last compilation; claims of `known`
    services that are not placed at the moment are kept."""
    ordered = sorted(placed, key=by_priority)
    numbers = _numbered(ordered, before)
    by_site: dict[str, list[Placed]] = {}
    for each in ordered:
        by_site.setdefault(client_site(each), []).append(each)
    kept: dict[str, list[Placed]] = {}
    for site, theirs in by_site.items():
        kept[site] = _between_namespaces(theirs, numbers, band, verdicts) if len({namespace(each) for each in theirs}) > 1 else theirs
    held = {service.id: before[service.id] for service in known if _keeps(service, before)}
    claims = {each.service.id: Claim(numbers[each.service.id], scope(each.service)) for each in ordered}
    return Ordered(_merged(ordered, kept), {**held, **claims})


def _merged(ordered: Sequence[Placed], kept: Mapping[str, list[Placed]]) -> tuple[Placed, ...]:
    """Return every site's services in that site's order; the order between sites, which has no effect, is unchanged."""
    lists = {site: iter(theirs) for site, theirs in kept.items()}
    found = (next(lists[client_site(each)], None) for each in ordered)
    return tuple(each for each in found if each is not None)


def client_site(placed: Placed) -> str:
    """Return the site of a service's clients, where the first packet of its connections arrives."""
    return placed.site if isinstance(placed, PlacedBalance) else placed.source


def namespace(placed: Placed) -> str:
    """Return a service's namespace."""
    return placed.service.origin.key.namespace


def _keeps(service: Service, before: Mapping[str, Claim]) -> bool:
    return service.id in before and before[service.id].scope == scope(service)


def _numbered(ordered: Sequence[Placed], before: Mapping[str, Claim]) -> dict[str, int]:
    numbers = {each.service.id: before[each.service.id].number for each in ordered if _keeps(each.service, before)}
    following = max((claim.number for claim in before.values()), default=0) + 1
    new = [each.service for each in ordered if each.service.id not in numbers]
    new.sort(key=lambda service: service.origin.age)
    return numbers | {service.id: following + i for i, service in enumerate(new)}


def _between_namespaces(
    theirs: Sequence[Placed], numbers: dict[str, int], band: Callable[[Placed], int], verdicts: Verdicts
) -> list[Placed]:
    """Return the services of a site with several namespaces in the order in which they are tried. Services that would overrule an earlier
    service of another namespace regardless of this order are rejected."""
    pairs = meeting([region(each) for each in theirs])
    # If there are too many overlaps to compare (None), assume that all services overlap. Then services may lose precedence or be rejected
    # without need, but no service takes connections from an earlier one of another namespace.
    everything = ((i, j) for i in range(len(theirs)) for j in range(i))
    earlier: dict[int, list[int]] = {}
    for i, j in everything if pairs is None else pairs:
        earlier.setdefault(max(i, j), []).append(min(i, j))
    for i, before in sorted(earlier.items()):
        # Services of the same namespace with higher priority come first, even if this service has an older claim.
        own = [numbers[theirs[j].service.id] for j in before if namespace(theirs[j]) == namespace(theirs[i])]
        numbers[theirs[i].service.id] = max([numbers[theirs[i].service.id], *own])
    rank = {id(each): (-band(each), numbers[each.service.id], by_priority(each)) for each in theirs}
    meets = {i: set[int]() for i in range(len(theirs))}
    for i, before in earlier.items():
        for j in before:
            meets[i].add(j)
            meets[j].add(i)
    return _apart(theirs, rank, meets, verdicts)


def _apart(theirs: Sequence[Placed], rank: Mapping[int, Rank], meets: Mapping[int, set[int]], verdicts: Verdicts) -> list[Placed]:
    """Return the services by rank; reject each service that would take connections from an earlier service of another namespace. This
    happens if the two have different controllers, because a switch prefers the entries of one controller regardless of rank, or if only the
    earlier service is balanced, because entries for balancing have the lowest priority."""
    indexes = sorted(range(len(theirs)), key=lambda i: rank[id(theirs[i])])
    kept: dict[int, None] = {}
    for i in indexes:
        mine = theirs[i]
        first = next(
            (j for j in sorted(meets[i] & kept.keys()) if namespace(theirs[j]) != namespace(mine) and _overrules(mine, theirs[j])), None
        )
        if first is None:
            kept[i] = None
            continue
        message = "another namespace's service covers some of its connections, and came first"
        remedy = "cover others, or ask the site's owner for a rule"
        verdicts.reject(mine.service.origin, "spec", Reason.SHADOWED, message, remedy)
    return [theirs[i] for i in kept]


def _overrules(later: Placed, first: Placed) -> bool:
    """True if a later service would take connections of an earlier one."""
    return later.controller != first.controller or (isinstance(first, PlacedBalance) and not isinstance(later, PlacedBalance))
