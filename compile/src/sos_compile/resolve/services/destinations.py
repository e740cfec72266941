"""Resolve the destinations of services that name a Kubernetes Service (`spec.to.service`, docs/adr/0066)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.addresses import is_ipv4, merge_ports
from sos_compile.model.network import PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Service, Site
from sos_compile.model.site_card import CardDestination, SiteCard
from sos_compile.model.world import KubernetesService

PATH = "spec.to.service"
MAX_PREFIXES = 64  # spec/node-config.md clause 34
MAX_PORTS = 64
SHOWN = 3

Ports = tuple[tuple[int, int], ...]
Destination = tuple[tuple[IPv4Network, ...], Ports]
"""Prefixes and ports of a Service."""


class Refusal(NamedTuple):
    """Why a service with this destination is rejected."""

    reason: Reason
    message: str
    remedy: str


@dataclass(frozen=True)
class Destinations:
    """Addresses and ports of Kubernetes Services; problems go to `verdicts`. `problem`: reason why this cluster's Services are unknown.

    A Service of a peer's cluster is known by the peer's card, under the id of the SosService, which both clusters have.
    """

    services: Mapping[tuple[str, str], KubernetesService]
    problem: str
    announced: Mapping[str, Mapping[str, CardDestination]]
    """Destinations in the cards of peers, by SosPeer and id of the SosService."""
    verdicts: Verdicts

    def resolve(self, service: Service, placed: PlacedSite) -> Service | None:
        """Return a service with the addresses of the Service that it names, and with the Service's ports if it lists none. None for a
        rejected service. `placed`: the site of the servers."""
        if service.target.service is None:
            return service
        found = self._of_peer(service, placed) if placed.remote else self._own(service, placed.site)
        if isinstance(found, Refusal):
            self.verdicts.reject(service.origin, PATH, *found)
            return None
        prefixes, ports = found
        return replace(service, target=replace(service.target, prefixes=prefixes), ports=service.ports or ports)

    def _of_peer(self, service: Service, placed: PlacedSite) -> Destination | Refusal:
        if placed.machine:
            message = f"SosSite {placed.site.name} is a machine outside Kubernetes, which has no Services"
            return Refusal(Reason.INVALID, message, "select the servers by spec.to.prefixes")
        known = self.announced.get(placed.site.peer, {}).get(service.id)
        if known is None:
            message = f"SosPeer {placed.site.peer} has not announced the addresses of {_name(service)}"
            remedy = "apply the same SosService in the peer's cluster, and read its status there"
            return Refusal(Reason.WAITING_FOR_PEER, message, remedy)
        prefixes = (IPv4Network(text) for text in known.prefixes)
        return _inside(service, placed.site, prefixes, merge_ports(tuple((each.first, each.last) for each in known.ports)))

    def _own(self, service: Service, site: Site) -> Destination | Refusal:
        if self.problem:
            return Refusal(Reason.DESTINATION_UNKNOWN, f"the Services of the cluster are unknown: {self.problem}", "")
        known = self.services.get(service.target.service or ("", ""))
        if known is None:
            return Refusal(Reason.DESTINATION_UNKNOWN, f"there is no {_name(service)}", "create it, or name another")
        if not known.headless and service.connect_from == "Preserve":
            message = f"{_name(service)} has addresses of its own, which agents reach only from their own address"
            remedy = "set spec.to.source to Agent, or name a headless Service (clusterIP: None)"
            return Refusal(Reason.INVALID, message, remedy)
        if not known.ports:
            return Refusal(Reason.DESTINATION_UNKNOWN, f"{_name(service)} has no TCP port", "add one, or name another")
        addresses = sorted(IPv4Address(text) for text in known.addresses if is_ipv4(text))
        if not addresses:
            message = f"{_name(service)} has no {'ready pod with an ' if known.headless else ''}IPv4 address"
            return Refusal(Reason.DESTINATION_UNKNOWN, message, "")
        prefixes = map(IPv4Network, addresses)
        return _inside(service, site, prefixes, merge_ports(tuple((port, port) for port in known.ports)))


def _inside(service: Service, site: Site, prefixes: Iterable[IPv4Network], ports: Ports) -> Destination | Refusal:
    """Return the part of a destination that belongs to the site."""
    every = tuple(prefixes)
    inside = tuple(collapse_addresses(prefix for prefix in every if any(prefix.subnet_of(own) for own in site.prefixes)))
    if not inside:
        message = f"no address of {_name(service)} is inside the prefixes of SosSite {site.name}: {_listed(every)}"
        return Refusal(Reason.PREFIX_OUTSIDE_SITE, message, "add them to spec.prefixes of the site")
    if len(inside) > MAX_PREFIXES or len(ports) > MAX_PORTS:
        message = f"{_name(service)} has {len(inside)} prefixes of addresses and {len(ports)} ranges of ports"
        remedy = f"select the servers by spec.to.prefixes and spec.ports, at most {MAX_PREFIXES} of each"
        return Refusal(Reason.LIMIT_EXCEEDED, message, remedy)
    return inside, ports


def announced(cards: Mapping[str, SiteCard]) -> dict[str, dict[str, CardDestination]]:
    """Return the destinations in the cards of peers."""
    return {peer: {each.service: each for each in card.destinations} for peer, card in cards.items()}


def _name(service: Service) -> str:
    return "Service " + "/".join(service.target.service or ())


def _listed(prefixes: tuple[IPv4Network, ...]) -> str:
    return ", ".join(str(each.network_address) for each in prefixes[:SHOWN]) + (", ..." if len(prefixes) > SHOWN else "")
