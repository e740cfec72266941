"""Sites of peers, from their site cards (spec/card.md): a card grants nothing that this cluster's SosPeer does not allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import DEFAULT_MTU, Intake, Origin, Peer, Site
from sos_compile.model.site_card import CardSite, SiteCard
from sos_compile.model.world import ObjectKey

MAX_PEERS = 64  # spec/card.md clause 8
MAX_NAME = 63


def accept(peers: Iterable[Peer], verdicts: Verdicts) -> dict[str, Peer]:
    """Return the accepted peers by name, oldest first."""
    accepted: dict[str, Peer] = {}
    for peer in peers:
        if len(accepted) >= MAX_PEERS:
            verdicts.reject(peer.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_PEERS} older peers", "remove some")
            continue
        accepted[peer.name] = peer
    return accepted


def site_ids(peers: Mapping[str, Peer], cards: Mapping[str, SiteCard]) -> set[int]:
    """Return the ids that peers' sites have: this cluster gives them to no site of its own."""
    return {site.id for name in peers if name in cards for site in cards[name].sites}


def place(
    peers: Mapping[str, Peer], cards: Mapping[str, SiteCard], own: Collection[PlacedSite], names: Collection[str], verdicts: Verdicts
) -> list[PlacedSite]:
    """Return the usable sites of peers. `own`: this cluster's sites; `names`: the names of all its SosSites, also of refused ones.

    A site that cannot be used is a problem of its SosPeer; the peer's other sites are used.
    """
    taken = _Taken(set(names), {each.id: f"SosSite {each.site.name}" for each in own})
    for each in own:
        taken.prefixes += [(prefix, f"SosSite {each.site.name}") for prefix in each.site.prefixes]
    placed = []
    for peer in peers.values():
        for site in cards[peer.name].sites if peer.name in cards else ():
            problem = _problem(peer, site, taken)
            if problem is not None:
                reason, message, remedy = problem
                verdicts.reject(peer.origin, "spec.prefixes" if reason is Reason.PREFIX_OUTSIDE_SITE else "", reason, message, remedy)
                continue
            taken.add(peer, site)
            placed.append(_placed(peer, site))
    return placed


@dataclass
class _Taken:
    names: set[str]
    ids: dict[int, str]
    prefixes: list[tuple[IPv4Network, str]] = field(default_factory=list)

    def add(self, peer: Peer, site: CardSite) -> None:
        self.names.add(site.name)
        self.ids[site.id] = f"site {site.name} of SosPeer {peer.name}"
        self.prefixes += [(IPv4Network(text), f"site {site.name} of SosPeer {peer.name}") for text in site.prefixes]


def _problem(peer: Peer, site: CardSite, taken: _Taken) -> tuple[Reason, str, str] | None:
    """Return why a site of a card cannot be used: reason, message and remedy."""
    if site.name in taken.names:
        message = f"the peer's site {site.name} has the name of another site"
        return Reason.DUPLICATE, message, "sites of two clusters need different names: make one of the two again under another name"
    if site.id in taken.ids:
        message = f"the peer's site {site.name} has the id {site.id} of {taken.ids[site.id]}"
        return Reason.DUPLICATE_SITE_ID, message, "set different numbers in spec.siteID when the two SosSites are made"
    for text in site.prefixes:
        prefix = IPv4Network(text)
        if not any(prefix.subnet_of(allowed) for allowed in peer.prefixes):
            message = f"the peer's site {site.name} has {prefix}, which is not inside spec.prefixes"
            return Reason.PREFIX_OUTSIDE_SITE, message, "add it to spec.prefixes if the peer may serve these addresses"
        clash = next(((other, owner) for other, owner in taken.prefixes if other.overlaps(prefix)), None)
        if clash is not None:
            message = f"{prefix} of the peer's site {site.name} overlaps {clash[0]} of {clash[1]}"
            return Reason.OVERLAPPING_PREFIXES, message, "an address belongs to one site: narrow one of the two"
    return None


def _placed(peer: Peer, site: CardSite) -> PlacedSite:
    agents = tuple(sorted(site.agents, key=lambda agent: (agent.first_stream_port, agent.node)))
    return PlacedSite(_site(peer, site), site.id, remote_agents=agents)


def _site(peer: Peer, site: CardSite) -> Site:
    """Return a peer's site as a site without a bridge whose services every namespace may use: the other end has this cluster's rules."""
    key = ObjectKey("SosSite", "", site.name)
    return Site(
        origin=Origin(key, peer.origin.file, peer.origin.uid, peer.origin.created, ()),
        site_id=site.id,
        selector=None,
        switches=(),
        prefixes=tuple(sorted(IPv4Network(text) for text in site.prefixes)),
        wan="Routed",
        uplinks=(),
        gateway=None,
        subnet=None,
        mtu=DEFAULT_MTU,
        ipam=None,
        routes=(),
        agent_range=None,
        rewrite="Transparent",
        datapath_type="Auto",
        namespaces="All",
        services_selector=None,
        rules=(),
        controllers=(),
        intake=Intake("Routed"),
        peer=peer.name,
    )


def in_force(
    services: Iterable[PlacedService], sites: Mapping[str, PlacedSite], cards: Mapping[str, SiteCard], verdicts: Verdicts
) -> tuple[list[PlacedService], dict[str, tuple[str, ...]]]:
    """Return the services that are in force, and the ids of all services with each peer.

    A service with a peer is in force if the peer has accepted it, too: what a peer's clients may reach is what both clusters say.
    """
    kept: list[PlacedService] = []
    offered: dict[str, list[str]] = {}
    for each in services:
        peer = peer_of(each, sites.__getitem__)
        if not peer:
            kept.append(each)
            continue
        offered.setdefault(peer, []).append(each.service.id)
        if each.service.id in cards[peer].services:
            kept.append(each)
            continue
        message = f"SosPeer {peer} has not accepted a SosService {each.service.id}"
        verdicts.reject(each.service.origin, "", Reason.WAITING_FOR_PEER, message, "apply the same SosService in the peer's cluster")
    return kept, {peer: tuple(sorted(ids)) for peer, ids in offered.items()}


def peer_of(service: PlacedService, site: Callable[[str], PlacedSite]) -> str:
    """Return the SosPeer of one of a service's sites, "" for a service of this cluster alone."""
    return site(service.source).site.peer or site(service.target).site.peer
