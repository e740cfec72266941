"""Status of services that cover the same connections: the shadowed service, the service that shadows it, and their common site.

Every reader of a namespace can read the status of its services, so this status does not name services of other namespaces. The status of
the site, for readers of sites, names both services.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sos_compile import Facts, ObjectKey, Overlap, Shadow

from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.kinds import SERVICE

SHOWN = 3
SHADOWED = "Shadowed"
TOO_MANY = "its site has too many overlapping services to compare: use fewer or narrower services"


def service_verdicts(key: ObjectKey, shadow: Shadow | None) -> list[Verdict]:
    """Conditions of a service that shares connections with other services; none for any other service."""
    if shadow is None:
        return []
    if not shadow.compared:
        return [Verdict(SHADOWED, "Unknown", "TooManyOverlaps", TOO_MANY)]
    found = []
    if shadow.hidden_by:
        reason = "WhollyShadowed" if shadow.wholly else "PartlyShadowed"
        what = "all its connections are" if shadow.wholly else "connections are"
        message = f"{what} another service's, which comes first: {_listed(key, shadow.hidden_by, shadow.hidden_by_count)}"
        found.append(Verdict(SHADOWED, "True", reason, message))
    if shadow.hides:
        message = f"it comes before others and has connections that they cover: {_listed(key, shadow.hides, shadow.hides_count)}"
        found.append(Verdict("ShadowsOthers", "True", "ShadowsOthers", message))
    return found


def unready(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdict for a service that is not Ready because it is wholly shadowed."""
    return [Verdict(v.type, "False", v.reason, v.message) for v in verdicts if v.reason == "WhollyShadowed"]


def overlaps_by_site(facts: Mapping[ObjectKey, Facts]) -> dict[str, list[str]]:
    """Sentences about overlapping services of different namespaces, by the site of their clients."""
    found: dict[str, list[str]] = {}
    for key, each in sorted(facts.items()):
        if key.kind != SERVICE.kind or each.shadow is None or not each.sites:
            continue
        for overlap in each.shadow.hidden_by:
            if overlap.other.namespace != key.namespace:
                said = f"{_full(overlap.other)} hides {_full(key)}: {overlap.connections}"
                found.setdefault(each.sites[0], []).append(said)
    return found


def site_verdicts(sentences: list[str]) -> list[Verdict]:
    """The condition of a site where services of different namespaces overlap."""
    if not sentences:
        return []
    remedy = "; spec.services.rules can assign connections to namespaces"
    return [Verdict("ServicesOverlap", "True", "ServicesOverlap", _short(sentences, len(sentences)) + remedy)]


def _listed(key: ObjectKey, overlaps: Iterable[Overlap], count: int) -> str:
    return _short([f"{overlap.connections} ({_named(key, overlap.other)})" for overlap in overlaps], count)


def _short(sentences: list[str], count: int) -> str:
    return "; ".join(sentences[:SHOWN]) + (f"; and {count - SHOWN} more" if count > SHOWN else "")


def _named(reader: ObjectKey, other: ObjectKey) -> str:
    return f"SosService {other.name}" if other.namespace == reader.namespace else "a service of another namespace"


def _full(key: ObjectKey) -> str:
    return f"{key.namespace}/{key.name}"
