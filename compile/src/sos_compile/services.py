"""Which services are accepted, between which sites, under which controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from sos_compile.model import End, Service, Site, selects
from sos_compile.network import PlacedService, PlacedSite
from sos_compile.objects import Objects
from sos_compile.problem import Reason
from sos_compile.verdicts import Verdicts
from sos_compile.world import ObjectKey

MAX_SERVICES = 4096  # spec/controller-config.md clause 4

Resolved = tuple[Site, tuple[IPv4Network, ...]]
"""One end of a service: its site and the prefixes there."""


def accept(objects: Objects, sites: Mapping[str, PlacedSite], release_namespace: str, verdicts: Verdicts) -> list[PlacedService]:
    """Return the services whose sites exist and permit them, in the order in which they are tried: highest priority, then oldest."""
    judge = Judge(objects, sites, release_namespace, verdicts)
    found: list[PlacedService] = []
    for service in in_order(each for each in objects.services if each.balance is None):
        if len(found) >= MAX_SERVICES:
            verdicts.reject(service.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_SERVICES} before it", "remove some")
        elif (placed := verdicts.attempt(service.origin, judge.place, service)) is not None:
            found.append(placed)
    return found


def in_order(services: Iterable[Service]) -> list[Service]:
    """Return services in the order in which they are tried: highest priority first, then the oldest."""
    return sorted(services, key=lambda each: (-each.priority, each.origin.age))


@dataclass(frozen=True)
class Judge:
    """What may be said about the ends of a service; what is wrong is told to `verdicts`."""

    objects: Objects
    sites: Mapping[str, PlacedSite]
    release_namespace: str
    verdicts: Verdicts

    def place(self, service: Service) -> PlacedService | None:
        """Return an accelerated service with its sites, None for one that is rejected."""
        source, target = self.end(service, "from", service.source), self.end(service, "to", service.target)
        if source is None or target is None:
            return None
        if source[0].name == target[0].name:
            message = f"from and to are the same site, {source[0].name}"
            self.verdicts.reject(service.origin, "spec.to", Reason.INVALID, message, "within one site there is nothing to speed up")
            return None
        permitted = [self.permitted(service, end[0], name) for name, end in (("from", source), ("to", target))]
        controller = self.controller(service, source[0], target[0])
        if controller is None or not all(permitted):
            return None
        return PlacedService(service, source[0].name, source[1], target[0].name, target[1], service.ports, controller)

    def controller(self, service: Service, *sites: Site) -> str | None:
        """Return the controller that the service names, or else the first that its sites have in common; None for one that is rejected."""
        common = [name for name in sites[0].controllers if all(name in site.controllers for site in sites)]
        wanted = service.controller
        if wanted is not None and wanted not in common:
            lacking = next(site.name for site in sites if wanted not in site.controllers)
            message = f"SosSite {lacking} does not connect to SosController {wanted}"
            remedy = "name it in the site's spec.controllers, or another one here"
            self.verdicts.reject(service.origin, "spec.controller.name", Reason.CONTROLLER_NOT_FOUND, message, remedy)
            return None
        if not common:
            if len(sites) == 1:
                message, remedy = f"SosSite {sites[0].name} has no controller", "name a SosController in its spec.controllers"
            else:
                message = f"SosSites {' and '.join(site.name for site in sites)} have no controller in common"
                remedy = "name the same SosController in spec.controllers of both"
            self.verdicts.reject(service.origin, "spec", Reason.CONTROLLER_NOT_FOUND, message, remedy)
            return None
        return wanted or common[0]

    def end(self, service: Service, name: str, end: End) -> Resolved | None:
        """Return the site and prefixes of one end (`name` is from or to), None for one that is rejected."""
        site = self._site_of(service, name, end)
        if site is None:
            return None
        if site.transit:
            message = f"SosSite {site.name} is a transit site: it has no hosts"
            self.verdicts.reject(service.origin, f"spec.{name}.site", Reason.INVALID, message, "name a site with prefixes")
            return None
        outside = next((prefix for prefix in end.prefixes if not any(prefix.subnet_of(own) for own in site.prefixes)), None)
        if outside is not None:
            message = f"{outside} is not inside the prefixes of SosSite {site.name}"
            path = f"spec.{name}.prefixes"
            self.verdicts.reject(service.origin, path, Reason.PREFIX_OUTSIDE_SITE, message, "narrow it, or extend the site")
            return None
        return site, end.prefixes or site.prefixes

    def _site_of(self, service: Service, name: str, end: End) -> Site | None:
        if end.site is None:
            holding = [placed.site for placed in self.sites.values() if _holds(placed.site, end.prefixes)]
            if len(holding) == 1:
                return holding[0]
            path = f"spec.{name}.prefixes"
            self.verdicts.reject(service.origin, path, Reason.SITE_NOT_FOUND, "no site holds all of these prefixes", "name the site")
            return None
        if end.site in self.sites:
            return self.sites[end.site].site
        exists = ObjectKey("SosSite", "", end.site) in self.objects.keys
        message = f"SosSite {end.site} is not accepted" if exists else f"there is no SosSite {end.site}"
        remedy = "see what is wrong with it" if exists else "create it, or name another"
        self.verdicts.reject(service.origin, f"spec.{name}.site", Reason.SITE_NOT_FOUND, message, remedy)
        return None

    def permitted(self, service: Service, site: Site, end: str) -> bool:
        """Return whether a site allows services of this namespace."""
        namespace = service.origin.key.namespace
        match site.namespaces:
            case "All":
                return True
            case "Release":
                allowed = namespace == self.release_namespace
                remedy = f"set its spec.services.namespaces, or create the service in namespace {self.release_namespace}"
            case _:
                labels = next((dict(each.labels) for each in self.objects.namespaces if each.name == namespace), {})
                # Kubernetes puts this label on every namespace.
                allowed = selects(site.services_selector or {}, {"kubernetes.io/metadata.name": namespace, **labels})
                remedy = "label the namespace as its spec.services.selector asks"
        if not allowed:
            message = f"SosSite {site.name} does not allow services of namespace {namespace}"
            self.verdicts.reject(service.origin, f"spec.{end}.site", Reason.NOT_PERMITTED, message, remedy)
        return allowed


def _holds(site: Site, prefixes: tuple[IPv4Network, ...]) -> bool:
    return all(any(prefix.subnet_of(own) for own in site.prefixes) for prefix in prefixes)
