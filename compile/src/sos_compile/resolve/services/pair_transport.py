"""Transport of the streams between two sites, declared once for the pair (docs/adr/0061).

The SosPeer declares the transport between this cluster's sites and those of a peer, a SosLink without uplinks the transport between two
sites of this cluster. Where a declaration exists, the same fields of services have no effect; elsewhere, they are deprecated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import PAIR_FIELDS, PairTransport, Peer, SitePair, Transport
from sos_compile.resolve.peers import peer_of

Problem = tuple[str, Reason, str, str]
"""Path, reason, message and remedy."""


def accept(pairs: Iterable[SitePair], sites: Mapping[str, PlacedSite], verdicts: Verdicts) -> dict[frozenset[str], SitePair]:
    """Return the accepted declarations by their sites; `pairs`: oldest first."""
    accepted: dict[frozenset[str], SitePair] = {}
    for pair in pairs:
        problem = _ends_problem(pair, sites)
        if problem is None and pair.key in accepted:
            message = f"SosLink {accepted[pair.key].origin.name} declares the transport between SosSites {' and '.join(pair.sites)}"
            problem = "spec", Reason.DUPLICATE, message, "a pair of sites has one transport: remove one of the two"
        if problem is None:
            accepted[pair.key] = pair
        else:
            verdicts.reject(pair.origin, *problem)
    return accepted


def _ends_problem(pair: SitePair, sites: Mapping[str, PlacedSite]) -> Problem | None:
    for end, name in zip("ab", pair.sites, strict=True):
        path = f"spec.{end}.site"
        if name not in sites:
            return path, Reason.SITE_NOT_FOUND, f"there is no accepted SosSite {name}", "create it, or name another"
        site = sites[name].site
        if site.remote:
            message = f"site {name} belongs to SosPeer {site.peer}"
            return path, Reason.INVALID, message, "set spec.transport of the SosPeer, and delete this SosLink"
        if site.transit:
            return path, Reason.INVALID, f"SosSite {name} is a transit site: it has no agents", "name a site with prefixes"
    return None


@dataclass(frozen=True)
class Transports:
    """Declared transports of all pairs of sites."""

    pairs: Mapping[frozenset[str], SitePair]
    peers: Mapping[str, Peer]
    sites: Mapping[str, PlacedSite]

    def declared(self, service: PlacedService) -> PairTransport | None:
        """Return the declared transport of a service's pair of sites, None if there is none."""
        if peer := self.peer(service):
            return self.peers[peer].transport
        pair = self.pairs.get(service.pair)
        return pair.transport if pair else None

    def peer(self, service: PlacedService) -> str:
        """Return the SosPeer of one of the service's sites, "" for a service of this cluster alone."""
        return peer_of(service, self.sites.__getitem__)

    def declaring(self, service: PlacedService) -> str:
        """Return the object that declares the transport of a service's pair of sites, or that would declare it."""
        if peer := self.peer(service):
            return f"SosPeer {peer}"
        pair = self.pairs.get(service.pair)
        return f"SosLink {pair.origin.name}" if pair else f"a SosLink with the sites {service.source} and {service.target}"

    def in_force(self, service: PlacedService) -> Transport:
        """Return the transport that applies to a service. Streams to a peer are encrypted unless its SosPeer declares otherwise."""
        own, declared = service.service.transport, self.declared(service)
        if declared is not None:
            return declared.applied(own)
        return replace(own, encryption="TLS") if self.peer(service) else own


def apply(services: Iterable[PlacedService], transports: Transports, verdicts: Verdicts) -> list[PlacedService]:
    """Return the services with the transport in force; report services that set fields of their pair, or require more than it has."""
    applied = [replace(each, transport=transports.in_force(each)) for each in services]
    for each in applied:
        _warn_about_pair_fields(each, transports, verdicts)
        if each.unencrypted:
            message = f"the streams between SosSites {each.source} and {each.target} are not encrypted: all connections are refused"
            remedy = f"set spec.transport.encryption of {transports.declaring(each)} to TLS"
            verdicts.reject(each.service.origin, "spec.require", Reason.NOT_ENCRYPTED, message, remedy)
    return applied


def _warn_about_pair_fields(service: PlacedService, transports: Transports, verdicts: Verdicts) -> None:
    fields = [field for field in PAIR_FIELDS if field in service.service.transport.named]
    if not fields:
        return
    between, place = f"SosSites {service.source} and {service.target}", transports.declaring(service)
    names = ", ".join(fields)
    if transports.declared(service) is not None:
        reason, message = Reason.OVERRIDDEN, f"{place} sets the transport between {between}: {names} of this service have no effect"
    else:
        message = f"{names} apply to all services between {between}, and are deprecated here: set them in spec.transport of {place}"
        reason = Reason.DEPRECATED
    path = f"spec.transport.{fields[0]}" if len(fields) == 1 else "spec.transport"
    verdicts.warn(service.service.origin, path, reason, message, "remove them from the service")
