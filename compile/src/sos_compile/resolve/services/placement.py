"""Accept services: the two sites and the controller of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model import addresses
from sos_compile.model.label_selectors import selects
from sos_compile.model.network import PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import ALL_PORTS, End, Rule, Service, Site
from sos_compile.model.world import Claim, Namespace, ObjectKey
from sos_compile.resolve.services import regions
from sos_compile.resolve.services.client_pods import PodJudge
from sos_compile.resolve.services.destinations import Destinations

MAX_SERVICES = 4096  # spec/controller-config.md clause 4
NO_RULE = Rule()
NAME_LABEL = "kubernetes.io/metadata.name"  # Kubernetes puts this label on every namespace

Resolved = tuple[Site, tuple[IPv4Network, ...]]
"""One end of a service: its site and the prefixes there."""
Ports = tuple[tuple[int, int], ...]
Ruled = tuple[str, Site, End]
"""One end of a service, bounded by rules of its site: `from` or `to`, the site, and the end as declared."""


def labels_of(namespaces: Iterable[Namespace]) -> dict[str, dict[str, str]]:
    """Return the labels of each namespace."""
    return {each.name: {NAME_LABEL: each.name, **each.labels} for each in namespaces}


def place(objects: Objects, judge: Judge) -> list[PlacedService]:
    """Return the services whose sites exist and permit them, in no particular order."""
    found = (judge.verdicts.attempt(each.origin, judge.place, each) for each in objects.services if each.balance is None)
    return [placed for placed in found if placed is not None]


def limited(services: Iterable[PlacedService], claims: Mapping[str, Claim], verdicts: Verdicts) -> list[PlacedService]:
    """Return the services that fit the limit: the first in order if all belong to one namespace, otherwise those with the oldest claims."""
    ordered = list(services)
    if len(ordered) <= MAX_SERVICES:
        return ordered
    several = len({each.service.origin.key.namespace for each in ordered}) > 1
    ranked = sorted(range(len(ordered)), key=lambda i: claims[ordered[i].service.id].number if several else i)
    for i in ranked[MAX_SERVICES:]:
        message = f"there are already {MAX_SERVICES} services"
        verdicts.reject(ordered[i].service.origin, "", Reason.LIMIT_EXCEEDED, message, "remove some")
    return [ordered[i] for i in sorted(ranked[:MAX_SERVICES])]


@dataclass(frozen=True)
class Judge:
    """Checks of a service's two ends; problems go to `verdicts`."""

    objects: Objects
    sites: Mapping[str, PlacedSite]
    release_namespace: str
    namespaces: Mapping[str, dict[str, str]]
    """Labels of each namespace (labels_of)."""
    pods: PodJudge
    destinations: Destinations
    verdicts: Verdicts

    def place(self, service: Service) -> PlacedService | None:
        """Return an accelerated service with its sites, None for a rejected service."""
        resolved = self._resolved(service)
        return None if resolved is None else self._place(resolved)

    def _resolved(self, service: Service) -> Service | None:
        """Return a service with the addresses of the Kubernetes Service that it names, None for a rejected service."""
        if service.target.service is None:
            return service
        site = self._site_of(service, "to", service.target)
        return None if site is None else self.destinations.resolve(service, self.sites[site.name])

    def _place(self, service: Service) -> PlacedService | None:
        source, target = self.end(service, "from", service.source), self.end(service, "to", service.target)
        if source is None or target is None:
            return None
        if source[0].name == target[0].name:
            message = f"from and to are the same site, {source[0].name}"
            self.verdicts.reject(service.origin, "spec.to", Reason.INVALID, message, "within one site there is nothing to speed up")
            return None
        if not self.pods.permits(service, self.sites[source[0].name], self.rule(service.origin.key.namespace, source[0])):
            return None
        if source[0].routed or target[0].routed:
            return self._place_routed(service, source, target)
        return self._place_bridged(service, source, target)

    def _place_bridged(self, service: Service, source: Resolved, target: Resolved) -> PlacedService | None:
        """Return a service between two sites with bridges, None for a rejected service."""
        if service.target.service is not None:
            message = f"SosSites {source[0].name} and {target[0].name} have bridges, which carry no connections to Kubernetes Services"
            remedy = "select the servers by spec.to.prefixes, or use sites with wan.type: Routed"
            self.verdicts.reject(service.origin, "spec.to.service", Reason.INVALID, message, remedy)
            return None
        if service.connect_from == "Agent":
            message = f"SosSites {source[0].name} and {target[0].name} have bridges, whose switches preserve the client's address"
            remedy = "remove spec.to.source and spec.to.proxyProtocol, or use sites with wan.type: Routed"
            self.verdicts.reject(service.origin, "spec.to.source", Reason.INVALID, message, remedy)
            return None
        permitted = [self.permitted(service, end[0], name) for name, end in (("from", source), ("to", target))]
        controller = self.controller(service, source[0], target[0])
        if controller is None or not all(permitted):
            return None
        return self._covering(service, source[0], target[0], controller)

    def _place_routed(self, service: Service, source: Resolved, target: Resolved) -> PlacedService | None:
        """Return a service between two sites without bridges, None for a rejected service."""
        between = [source[0], target[0]]
        if all(site.peer for site in between):
            message = f"SosSites {source[0].name} and {target[0].name} both belong to peers"
            self.verdicts.reject(service.origin, "spec", Reason.INVALID, message, "name a site of this cluster at one of the two ends")
            return None
        if not all(site.routed for site in between):
            routed, bridged = sorted(between, key=lambda site: not site.routed)
            message = f"SosSite {routed.name} has no bridge (wan.type: Routed) and SosSite {bridged.name} has one"
            self.verdicts.reject(
                service.origin, "spec", Reason.INVALID, message, "connect two sites without bridges, or two sites with bridges"
            )
            return None
        if all(site.inbound == "Blocked" for site in between):
            message = f"SosSites {source[0].name} and {target[0].name} are both Blocked (wan.inbound)"
            self.verdicts.reject(service.origin, "spec", Reason.INVALID, message, "let one of the two accept streams, and set Open there")
            return None
        if problem := _needs_controller(service):
            path, what = problem
            names = f"SosSites {source[0].name} and {target[0].name}"
            message = f"{what} needs a controller, and {names} have none (wan.type: Routed)"
            self.verdicts.reject(service.origin, path, Reason.INVALID, message, "remove it, or give both sites bridges")
            return None
        ends = (("from", source[0]), ("to", target[0]))
        # A list, because `all` stops at the first False of a generator, and the problem of the other end would not be reported.
        permitted = [self.permitted(service, site, name) for name, site in ends]
        if not all(permitted):
            return None
        return self._covering(service, source[0], target[0], "")

    def _covering(self, service: Service, source: Site, target: Site, controller: str) -> PlacedService | None:
        """Return a permitted service with the connections that it covers, None if the sites' rules do not grant any."""
        ports = self.granted(service, ("from", source, service.source), ("to", target, service.target))
        if ports is None:
            return None
        clients, servers = self.covered(service, source, service.source), self.covered(service, target, service.target)
        pods = self.pods.select(service, self.sites[source.name], self.rule(service.origin.key.namespace, source), clients)
        return PlacedService(service, source.name, clients, target.name, servers, ports, controller, service.transport, pods)

    def controller(self, service: Service, *sites: Site) -> str | None:
        """Return the controller that the service names, or else the first controller that its sites have in common; None for a rejected
        service."""
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
        """Return the site and prefixes of one end (`name` is from or to), None for a rejected service."""
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
        remedy = "check its status" if exists else "create it, or name another"
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
                allowed = selects(site.services_selector or {}, self._labels(namespace))
                remedy = "label the namespace to match its spec.services.selector"
        if not allowed:
            message = f"SosSite {site.name} does not allow services of namespace {namespace}"
            self.verdicts.reject(service.origin, f"spec.{end}.site", Reason.NOT_PERMITTED, message, remedy)
        return allowed

    def rule(self, namespace: str, site: Site) -> Rule:
        """Return the first of a site's rules that names or selects a namespace; if no rule matches, a rule that allows everything."""
        labels = self._labels(namespace) if any(rule.selector is not None for rule in site.rules) else {}
        named = (r for r in site.rules if namespace in r.namespaces or (r.selector is not None and selects(r.selector, labels)))
        return next(named, NO_RULE)

    def covered(self, service: Service, site: Site, end: End) -> tuple[IPv4Network, ...]:
        """Return the prefixes of an end of a service: those that the service names, else those of the rule, else all prefixes of the
        site."""
        rule = self.rule(service.origin.key.namespace, site)
        if end.prefixes or not rule.prefixes:
            return end.prefixes or site.prefixes
        return tuple(prefix for prefix in rule.prefixes if any(prefix.subnet_of(own) for own in site.prefixes))

    def granted(self, service: Service, *ends: Ruled) -> Ports | None:
        """Return the ports of a service that conforms to the rules of its sites, None for a rejected service."""
        namespace = service.origin.key.namespace
        allowed: regions.Intervals = ALL_PORTS
        for name, site, end in ends:
            rule = self.rule(namespace, site)
            if problem := _beyond(service, rule, name, end) or self._nobody(service, site, name, end):
                path, what = problem
                path = "spec.to.service" if path == "spec.to.prefixes" and end.service else path
                message = f"spec.services.rules of SosSite {site.name} do not allow services of namespace {namespace} {what}"
                self.verdicts.reject(service.origin, path, Reason.NOT_PERMITTED, message, "keep to the rule, or ask the site's owner")
                return None
            allowed = regions.common(allowed, rule.ports)
        ports = service.ports or allowed
        if ports and not regions.without(ports, allowed):
            return ports
        which = f"ports {addresses.ports(regions.without(ports, allowed))}" if ports else "any port at both sites"
        message = f"spec.services.rules of its sites do not allow services of namespace {namespace} {which}"
        self.verdicts.reject(service.origin, "spec.ports", Reason.NOT_PERMITTED, message, "keep to the rules, or ask the sites' owner")
        return None

    def _nobody(self, service: Service, site: Site, name: str, end: End) -> tuple[str, str] | None:
        return None if self.covered(service, site, end) else (f"spec.{name}.prefixes", "for any of its hosts")

    def _labels(self, namespace: str) -> dict[str, str]:
        return self.namespaces.get(namespace, {NAME_LABEL: namespace})


def _needs_controller(service: Service) -> tuple[str, str] | None:
    """Return the path of a setting that only controllers carry out, and the setting in words."""
    settings = (
        (service.controller is not None, "spec.controller.name", "spec.controller"),
        (service.reactive, "spec.setup", "setup: Reactive"),
        (service.mode != "Accelerate", "spec.mode", f"mode: {service.mode}"),
        (service.percent != 100, "spec.percent", "percent below 100"),
        (service.paths_mode not in {"Shortest", "Disjoint"}, "spec.paths.mode", f"paths.mode: {service.paths_mode}"),
        (bool(service.require), "spec.require", "spec.require"),
    )
    return next(((path, what) for wanted, path, what in settings if wanted), None)


def _beyond(service: Service, rule: Rule, name: str, end: End) -> tuple[str, str] | None:
    """Return the path of a field other than `ports` that a rule does not allow, and the end of the error message; None if there is none."""
    outside = [prefix for prefix in end.prefixes if rule.prefixes and not any(prefix.subnet_of(own) for own in rule.prefixes)]
    if outside:
        return f"spec.{name}.prefixes", f"for {outside[0]}"
    mode = "Balance" if service.balance is not None else service.mode
    if rule.modes is not None and mode not in rule.modes:
        return ("spec.balance", "with spec.balance") if mode == "Balance" else ("spec.mode", f"with mode {mode}")
    fields = sorted(service.transport.named - rule.transport) if rule.transport is not None else []
    return (f"spec.transport.{fields[0]}", f"to set {fields[0]}") if fields else None


def _holds(site: Site, prefixes: tuple[IPv4Network, ...]) -> bool:
    return all(any(prefix.subnet_of(own) for own in site.prefixes) for prefix in prefixes)
