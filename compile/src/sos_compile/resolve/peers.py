"""Sites of peers, from their site cards (spec/card.md): a card grants nothing that this cluster's SosPeer does not allow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from pydantic import ValidationError

from sos_compile import keys
from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.addresses import is_ipv4
from sos_compile.model.network import AgentPlace, PlacedService, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import DEFAULT_MTU, Intake, Machine, Origin, Peer, Site
from sos_compile.model.site_card import CARD_PORT, CardAgent, CardSite, SiteCard, first_problem
from sos_compile.model.world import ObjectKey
from sos_compile.resolve.card_bounds import CardRoom

MAX_PEERS = 64  # spec/card.md clause 8
MACHINE_POOL = "machine"  # pool in the agent-config of a machine, which belongs to no SosAgent


def accept(peers: Iterable[Peer], verdicts: Verdicts) -> dict[str, Peer]:
    """Return the accepted peers by name, oldest first."""
    accepted: dict[str, Peer] = {}
    for peer in peers:
        if len(accepted) >= MAX_PEERS:
            verdicts.reject(peer.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_PEERS} older peers", "remove some")
            continue
        accepted[peer.name] = peer
    return accepted


def with_machines(peers: Mapping[str, Peer], received: Mapping[str, SiteCard], verdicts: Verdicts) -> dict[str, SiteCard]:
    """Return the cards of all peers: those received from clusters, and for each machine the card that its SosPeer amounts to."""
    cards = {name: card for name, card in received.items() if name in peers and peers[name].machine is None}
    for name, peer in peers.items():
        if peer.machine is None:
            continue
        try:
            cards[name] = _machine_card(peer, peer.machine)
        except ValidationError as error:
            message = f"the machine cannot be described: {first_problem(error)}"
            verdicts.reject(peer.origin, "spec.machine", Reason.INVALID, message, "write addresses that other machines can reach")
    return cards


def _machine_card(peer: Peer, machine: Machine) -> SiteCard:
    place = _machine_place(peer, machine)
    agent = CardAgent(
        id=place.id,
        node=place.node,
        addresses=machine.addresses,
        first_stream_port=place.first_stream_port,
        card_port=CARD_PORT,
    )
    site = CardSite(name=peer.name, id=machine.site_id, prefixes=tuple(map(str, peer.prefixes)), agents=(agent,), inbound=machine.inbound)
    return SiteCard(software="", sites=(site,), services=())


def _machine_place(peer: Peer, machine: Machine) -> AgentPlace:
    first, *more = map(IPv4Address, machine.addresses)
    identity = keys.agent_id(peer.name, MACHINE_POOL, peer.name).hex()
    return AgentPlace(MACHINE_POOL, peer.name, peer.name, identity, first, 0, tuple(more))


def site_ids(peers: Mapping[str, Peer], cards: Mapping[str, SiteCard]) -> set[int]:
    """Return the ids of peers' sites, which this cluster does not allocate to its own sites."""
    return {site.id for name in peers if name in cards for site in cards[name].sites}


def place(
    peers: Mapping[str, Peer], cards: Mapping[str, SiteCard], own: Sequence[PlacedSite], objects: Objects, verdicts: Verdicts
) -> list[PlacedSite]:
    """Return the usable sites of peers. `own`: this cluster's placed sites.

    A site that cannot be used is reported as a problem of its SosPeer; the peer's other sites remain usable.
    """
    taken = _taken(own, objects)
    placed = []
    for peer in peers.values():
        allowed = _Ranges()
        for prefix in collapse_addresses(peer.prefixes):
            allowed.add(prefix, "")
        for site in cards[peer.name].sites if peer.name in cards else ():
            problem = _problem(site, allowed, taken)
            if problem is not None:
                reason, message, remedy = problem
                verdicts.reject(peer.origin, "spec.prefixes" if reason is Reason.PREFIX_OUTSIDE_SITE else "", reason, message, remedy)
                continue
            taken.add(site, f"site {site.name} of SosPeer {peer.name}")
            placed.append(_placed(peer, site))
    return placed


class _Ranges:
    """Disjoint prefixes with their owners. A card can have thousands of prefixes, so look-ups use binary search."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._entries: list[tuple[IPv4Network, str]] = []

    def add(self, prefix: IPv4Network, owner: str) -> None:
        """Add a prefix that overlaps no other."""
        at = bisect_left(self._starts, int(prefix[0]))
        self._starts.insert(at, int(prefix[0]))
        self._entries.insert(at, (prefix, owner))

    def overlapping(self, prefix: IPv4Network) -> tuple[IPv4Network, str] | None:
        """Return an entry that overlaps the prefix."""
        at = bisect_left(self._starts, int(prefix[0]))
        return next((each for each in self._entries[max(0, at - 1) : at + 1] if each[0].overlaps(prefix)), None)

    def contains(self, prefix: IPv4Network) -> bool:
        """True if an entry contains the prefix."""
        found = self.overlapping(prefix)
        return found is not None and prefix.subnet_of(found[0])


@dataclass
class _Taken:
    """Names, ids, addresses and prefixes that a peer's site cannot have, with their owners."""

    names: set[str] = field(default_factory=set)
    ids: dict[int, str] = field(default_factory=dict)
    agents: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    prefixes: _Ranges = field(default_factory=_Ranges)

    def add(self, site: CardSite, owner: str) -> None:
        self.names.add(site.name)
        self.ids[site.id] = owner
        self.agents |= {agent.id: owner for agent in site.agents}
        for text in site.prefixes:
            self.prefixes.add(IPv4Network(text), owner)


def _taken(own: Sequence[PlacedSite], objects: Objects) -> _Taken:
    taken = _Taken(names={key.name for key in objects.keys if key.kind == "SosSite"})
    # Include sites that are refused at present: they may become valid later, and a peer must not take their prefixes in the meantime.
    owned = [(prefix, site.name) for site in objects.sites for prefix in (*site.prefixes, *filter(None, (site.agent_range,)))]
    for prefix, name in sorted(owned, key=lambda each: (each[0].prefixlen, each[0])):
        if taken.prefixes.overlapping(prefix) is None:
            taken.prefixes.add(prefix, f"SosSite {name}")
    for placed in own:
        owner = f"SosSite {placed.site.name}"
        taken.ids[placed.id] = owner
        taken.agents |= {agent.id: owner for agent in placed.agents}
        taken.addresses |= {str(address): owner for agent in placed.agents for address in agent.addresses}
        taken.addresses |= {node.node.address: owner for node in placed.nodes if is_ipv4(node.node.address)}
    return taken


Problem = tuple[Reason, str, str]
"""Reason, message and remedy."""


def _problem(site: CardSite, allowed: _Ranges, taken: _Taken) -> Problem | None:
    """Return the problem of a card's site; None if the site can be used."""
    if site.name in taken.names:
        message = f"the peer's site {site.name} has the name of another site"
        return Reason.DUPLICATE, message, "sites of two clusters need different names: delete one, and create it under another name"
    if site.id in taken.ids:
        message = f"the peer's site {site.name} has the id {site.id} of {taken.ids[site.id]}"
        return Reason.DUPLICATE_SITE_ID, message, "delete one of the two sites, and create it with another spec.siteID"
    return _agents_problem(site, taken) or _prefixes_problem(site, allowed, taken)


def _agents_problem(site: CardSite, taken: _Taken) -> Problem | None:
    seen: set[str] = set()
    for agent in site.agents:
        if agent.id in taken.agents or agent.id in seen:
            message = f"agent {agent.node} of the peer's site {site.name} has the id of another agent"
            return Reason.DUPLICATE, message, "the peer announces an agent that is not its own: ask the administrator of the peer's cluster"
        seen.add(agent.id)
        address = next((each for each in agent.addresses if each in taken.addresses), None)
        if address is not None:
            message = f"agent {agent.node} of the peer's site {site.name} has the address {address} of a node of {taken.addresses[address]}"
            return Reason.OVERLAPPING_NODES, message, "nodes of two clusters need different addresses"
    return None


def _prefixes_problem(site: CardSite, allowed: _Ranges, taken: _Taken) -> Problem | None:
    own = _Ranges()
    for text in site.prefixes:
        prefix = IPv4Network(text)
        if not allowed.contains(prefix):
            message = f"the peer's site {site.name} has {prefix}, which is not inside spec.prefixes"
            return Reason.PREFIX_OUTSIDE_SITE, message, "add it to spec.prefixes if the peer may serve these addresses"
        clash = taken.prefixes.overlapping(prefix) or own.overlapping(prefix)
        if clash is not None:
            message = f"{prefix} of the peer's site {site.name} overlaps {clash[0]} of {clash[1] or 'the same site'}"
            return Reason.OVERLAPPING_PREFIXES, message, "an address belongs to one site: narrow one of the two"
        own.add(prefix, "")
    within = next((address for address in taken.addresses if own.contains(IPv4Network(address))), None)
    if within is not None:
        message = f"the prefixes of the peer's site {site.name} hold {within}, the address of a node of {taken.addresses[within]}"
        return Reason.OVERLAPPING_NODES, message, "narrow the peer's prefixes"
    return None


def _placed(peer: Peer, site: CardSite) -> PlacedSite:
    agents = tuple(sorted(site.agents, key=lambda agent: (agent.first_stream_port, agent.node)))
    machine = _machine_place(peer, peer.machine) if peer.machine else None
    return PlacedSite(_site(peer, site), site.id, remote_agents=agents, machine=machine)


def _site(peer: Peer, site: CardSite) -> Site:
    """Return a peer's site as a Site that has no bridge and admits every namespace: a service with a peer is subject to this cluster's
    namespace rules only at this cluster's own site."""
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
        intake=Intake("Routed", interface=peer.machine.interface if peer.machine else None),
        peer=peer.name,
        inbound=site.inbound,
    )


def in_force(
    services: Iterable[PlacedService], sites: Mapping[str, PlacedSite], cards: Mapping[str, SiteCard], verdicts: Verdicts
) -> tuple[list[PlacedService], dict[str, tuple[PlacedService, ...]]]:
    """Return the services that are in force, and all services with each peer cluster, by id.

    A service with a peer cluster is in force if that cluster has accepted it, too: clients of a peer reach only servers that both clusters
    permit. A machine has no services of its own: this cluster's services are in force there.
    """
    kept: list[PlacedService] = []
    offered: dict[str, list[PlacedService]] = {}
    rooms: dict[str, CardRoom] = {}
    for each in services:
        peer = peer_of(each, sites.__getitem__)
        if not peer or any(sites[name].machine for name in (each.source, each.target)):
            kept.append(each)
            continue
        announced = each.service.target.service is not None and not sites[each.target].remote
        if excess := rooms.setdefault(peer, CardRoom()).add(each, announced=announced):
            path = "spec.to.service" if announced else ""
            remedy = "select the servers by spec.to.prefixes" if announced else "remove services with this peer, or shorten their names"
            verdicts.reject(
                each.service.origin, path, Reason.LIMIT_EXCEEDED, f"the site card for SosPeer {peer} has no room for {excess}", remedy
            )
            continue
        offered.setdefault(peer, []).append(each)
        if each.service.id in cards[peer].services:
            kept.append(each)
            continue
        message = f"SosPeer {peer} has not accepted a SosService {each.service.id}"
        verdicts.reject(each.service.origin, "", Reason.WAITING_FOR_PEER, message, "apply the same SosService in the peer's cluster")
    return kept, {peer: tuple(sorted(found, key=lambda each: each.service.id)) for peer, found in offered.items()}


def peer_of(service: PlacedService, site: Callable[[str], PlacedSite]) -> str:
    """Return the SosPeer of one of a service's sites, "" for a service of this cluster alone."""
    return site(service.source).site.peer or site(service.target).site.peer
