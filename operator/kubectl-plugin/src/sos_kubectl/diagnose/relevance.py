"""Relevance of rejected objects to the connection: part of it, on its path, or another team's object. Pure."""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Network
from typing import Any

from sos_kubectl.diagnose.facts import Facts

Json = dict[str, Any]


class Concern(Enum):
    """Relevance of an object to the connection."""

    OWN = "own"
    """One of the connection's two sites, their agents, controllers or peers, or a service that would cover the connection."""
    WAY = "way"
    """On the path: transit sites and links."""
    NONE = "none"
    """Another team's object: `kubectl sos status` lists it."""


def of_object(obj: Json, facts: Facts, *, served: bool) -> Concern:
    """Return an object's relevance to the two sites. `served`: True if an accepted service covers the connection; rejected services
    then do not matter."""
    kind, name, spec = obj["kind"], obj["metadata"]["name"], obj.get("spec") or {}
    ends = (facts.asked.from_site, facts.asked.to_site)
    match kind:
        case "SosSite":
            return Concern.OWN if name in ends else Concern.NONE if spec.get("prefixes") else Concern.WAY
        case "SosAgent":
            return _own(any(_serves(spec, site) for site in _sites(facts)))
        case "SosController":
            return _own(name in _controllers(facts))
        case "SosPeer":
            announced = str((obj.get("status") or {}).get("siteNames") or "").split(",")
            return _own(any(site in announced for site in ends))
        case "SosLink":
            between = {*ends, *(o["metadata"]["name"] for o in facts.objects if _is_transit(o))}
            return Concern.WAY if all((spec.get(end) or {}).get("site") in between for end in ("a", "b")) else Concern.NONE
        case _:
            return _own(_service(obj, facts, served=served))


def _own(so: bool) -> Concern:
    return Concern.OWN if so else Concern.NONE


def _sites(facts: Facts) -> list[Json]:
    ends = (facts.asked.from_site, facts.asked.to_site)
    return [obj for obj in facts.objects if obj["kind"] == "SosSite" and obj["metadata"]["name"] in ends]


def _is_transit(obj: Json) -> bool:
    return obj["kind"] == "SosSite" and not (obj.get("spec") or {}).get("prefixes")


def _serves(pool: Json, site: Json) -> bool:
    from sos_compile.model.label_selectors import selects

    return selects(pool.get("siteSelector") or {}, site["metadata"].get("labels") or {})


def _controllers(facts: Facts) -> set[str]:
    listed = [(site.get("spec") or {}).get("controllers") or [{"name": "default"}] for site in _sites(facts)]
    return {controller["name"] for names in listed for controller in names}


def _service(obj: Json, facts: Facts, *, served: bool) -> bool:
    """With a requested service, true for that service only. Without one, true if no accepted service covers the connection and this
    service's two ends are at the connection's two sites."""
    asked, meta, spec = facts.asked, obj["metadata"], obj.get("spec") or {}
    if asked.service:
        return f"{meta.get('namespace', '')}/{meta['name']}" == asked.service
    wanted = (("from", asked.from_site), ("to", asked.to_site))
    return not served and all(_at(spec.get(end) or {}, site, facts) for end, site in wanted)


def _at(end: Json, site: str, facts: Facts) -> bool:
    """True if one end of a service is at a site: by the site's name, or by its prefixes."""
    if "site" in end:
        return bool(end["site"] == site)
    own = [IPv4Network(prefix) for known in facts.config.get("sites", ()) if known["name"] == site for prefix in known["prefixes"]]
    return any(IPv4Network(prefix, strict=False).overlaps(other) for prefix in end.get("prefixes") or () for other in own)
