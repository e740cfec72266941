"""Which services are accepted, between which sites, under which controller."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network

from sos_compile.model import End, Service, Site, selects
from sos_compile.network import PlacedService, PlacedSite
from sos_compile.objects import Objects
from sos_compile.problem import Reason
from sos_compile.verdicts import Verdicts
from sos_compile.world import ObjectKey

MAX_SERVICES = 4096  # spec/controller-config.md clause 4


def accept(objects: Objects, sites: Mapping[str, PlacedSite], release_namespace: str, verdicts: Verdicts) -> list[PlacedService]:
    """Return the services whose sites exist and permit them, in the order in which they are tried: highest priority, then oldest."""
    namespaces = {namespace.name: dict(namespace.labels) for namespace in objects.namespaces}
    found: list[PlacedService] = []
    for service in sorted(objects.services, key=lambda each: (-each.priority, each.origin.age)):
        if len(found) >= MAX_SERVICES:
            verdicts.reject(service.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_SERVICES} before it", "remove some")
            continue
        ends = [_end(service, name, end, sites, objects, verdicts) for name, end in (("from", service.source), ("to", service.target))]
        if ends[0] is None or ends[1] is None:
            continue
        placed = _placed(service, ends[0], ends[1], verdicts)
        if placed and all(
            [
                _permitted(service, end[0], name, namespaces, release_namespace, verdicts)
                for name, end in (("from", ends[0]), ("to", ends[1]))
            ]
        ):
            found.append(placed)
    return found


def _end(
    service: Service, name: str, end: End, sites: Mapping[str, PlacedSite], objects: Objects, verdicts: Verdicts
) -> tuple[Site, tuple[IPv4Network, ...]] | None:
    site = _site_of(service, name, end, sites, objects, verdicts)
    if site is None:
        return None
    if site.transit:
        message = f"SosSite {site.name} is a transit site: it has no hosts"
        verdicts.reject(service.origin, f"spec.{name}.site", Reason.INVALID, message, "name a site with prefixes")
        return None
    outside = next((prefix for prefix in end.prefixes if not any(prefix.subnet_of(own) for own in site.prefixes)), None)
    if outside is not None:
        message = f"{outside} is not inside the prefixes of SosSite {site.name}"
        verdicts.reject(service.origin, f"spec.{name}.prefixes", Reason.PREFIX_OUTSIDE_SITE, message, "narrow it, or extend the site")
        return None
    return site, end.prefixes or site.prefixes


def _site_of(service: Service, name: str, end: End, sites: Mapping[str, PlacedSite], objects: Objects, verdicts: Verdicts) -> Site | None:
    if end.site is not None:
        if end.site in sites:
            return sites[end.site].site
        exists = ObjectKey("SosSite", "", end.site) in objects.keys
        message = f"SosSite {end.site} is not accepted" if exists else f"there is no SosSite {end.site}"
        remedy = "see its own problem" if exists else "create it, or name another"
        verdicts.reject(service.origin, f"spec.{name}.site", Reason.SITE_NOT_FOUND, message, remedy)
        return None
    holding = [each.site for each in sites.values() if all(any(p.subnet_of(own) for own in each.site.prefixes) for p in end.prefixes)]
    if len(holding) == 1:
        return holding[0]
    verdicts.reject(service.origin, f"spec.{name}.prefixes", Reason.SITE_NOT_FOUND, "no site holds all of these prefixes", "name the site")
    return None


def _placed(
    service: Service, source: tuple[Site, tuple[IPv4Network, ...]], target: tuple[Site, tuple[IPv4Network, ...]], verdicts: Verdicts
) -> PlacedService | None:
    if source[0].name == target[0].name:
        message = f"from and to are the same site, {source[0].name}"
        verdicts.reject(service.origin, "spec.to", Reason.INVALID, message, "within one site there is nothing to speed up")
        return None
    common = [name for name in source[0].controllers if name in target[0].controllers]
    if not common:
        message = f"SosSites {source[0].name} and {target[0].name} have no controller in common"
        verdicts.reject(
            service.origin, "spec", Reason.CONTROLLER_NOT_FOUND, message, "name the same SosController in both sites' spec.controllers"
        )
        return None
    return PlacedService(service, source[0].name, source[1], target[0].name, target[1], common[0])


def _permitted(
    service: Service, site: Site, end: str, namespaces: Mapping[str, dict[str, str]], release_namespace: str, verdicts: Verdicts
) -> bool:
    namespace = service.origin.key.namespace
    match site.namespaces:
        case "All":
            return True
        case "Release":
            allowed = namespace == release_namespace
            remedy = f"set spec.services.namespaces of SosSite {site.name}, or create the service in namespace {release_namespace}"
        case _:
            allowed = selects(site.services_selector or {}, {"kubernetes.io/metadata.name": namespace, **namespaces.get(namespace, {})})
            remedy = f"label the namespace as spec.services.selector of SosSite {site.name} asks"
    if not allowed:
        message = f"SosSite {site.name} does not allow services of namespace {namespace}"
        verdicts.reject(service.origin, f"spec.{end}.site", Reason.NOT_PERMITTED, message, remedy)
    return allowed
