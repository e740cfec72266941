"""Each namespace's share of a site's sessions (docs/adr/0049)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sos_compile.model.network import PlacedService
from sos_compile.model.world import Claim

ALL = 100
RESERVED = 50
"""Percent of a site's sessions reserved for its namespaces, in equal parts; the other half is first come, first served."""

Share = tuple[str, int, bool]
"""A namespace, its maximum percentage of sessions, and True if its services may be proactive (have standing entries) in spite of this
limit."""


def build(
    services: Iterable[PlacedService], claims: Mapping[str, Claim], percent: Callable[[str, str], int | None]
) -> dict[str, tuple[Share, ...]]:
    """Return the shares at each site. `percent` maps a namespace and a site to the percentage in the site's rule for the namespace, None if
    the rule sets none. A switch's standing entries cannot limit the number of sessions, so services of a namespace with a limit get no
    standing entries. An exception is the namespace with the oldest claim, if the site's rule sets no percentage for it: it keeps the
    standing entries that it had while it was alone.
    """
    first: dict[str, dict[str, int]] = {}
    for each in services:
        if each.service.mode == "Accelerate":
            namespace, number = each.service.origin.key.namespace, claims[each.service.id].number
            for site in (each.source, each.target):
                there = first.setdefault(site, {})
                there[namespace] = min(number, there.get(namespace, number))
    return {site: _at(there, {namespace: percent(namespace, site) for namespace in there}) for site, there in first.items()}


def _at(first: Mapping[str, int], percent: Mapping[str, int | None]) -> tuple[Share, ...]:
    kept_for_each = RESERVED // len(first)
    oldest = min(first, key=lambda namespace: first[namespace])
    found = []
    for namespace in sorted(first):
        said = percent[namespace]
        if said is not None:
            found.append((namespace, said, said == ALL))
        elif len(first) > 1:
            found.append((namespace, ALL - kept_for_each * (len(first) - 1), namespace == oldest))
    return tuple(share for share in found if share[1] < ALL)
