"""Network -> the site card for a peer (spec/card.md section 3)."""

from __future__ import annotations

from pydantic import ValidationError

from sos_compile.documents.agent_config import pods_of
from sos_compile.model.network import AgentPlace, Network, PlacedService, PlacedSite
from sos_compile.model.site_card import CARD_PORT, CardAgent, CardDestination, CardPorts, CardSite, SiteCard, first_problem, parse_card


def build_site_card(network: Network, peer: str, software: str) -> SiteCard:
    """Return the card for a SosPeer: this cluster's sites without bridges, and the services that it has accepted with the peer.

    Raises CardError if the sites cannot be described within the bounds of a card.
    """
    try:
        card = _build(network, peer, software)
    except ValidationError as error:
        raise first_problem(error) from error
    return parse_card(card.encode())  # checks the bounds of the whole card


def _build(network: Network, peer: str, software: str) -> SiteCard:
    own = [placed for placed in network.sites.values() if placed.site.routed and not placed.remote]
    return SiteCard(
        software=software,
        sites=tuple(_site(placed) for placed in sorted(own, key=lambda each: each.site.name)),
        services=tuple(each.service.id for each in network.offered.get(peer, ())),
        destinations=tuple(
            _destination(each)
            for each in network.offered.get(peer, ())
            if each.service.target.service and not network.sites[each.target].remote
        ),
    )


def _destination(placed: PlacedService) -> CardDestination:
    return CardDestination(
        service=placed.service.id,
        prefixes=tuple(map(str, placed.target_prefixes)),
        ports=tuple(CardPorts(first=first, last=last) for first, last in placed.ports),
    )


def _site(placed: PlacedSite) -> CardSite:
    return CardSite(
        name=placed.site.name,
        id=placed.id,
        prefixes=tuple(str(prefix) for prefix in placed.site.prefixes),
        agents=tuple(_agent(placed, agent) for agent in placed.agents),
        inbound=placed.site.inbound,
    )


def _agent(placed: PlacedSite, agent: AgentPlace) -> CardAgent:
    return CardAgent(
        id=agent.id,
        node=agent.node,
        addresses=tuple(map(str, agent.addresses)),
        first_stream_port=agent.first_stream_port,
        card_port=CARD_PORT,
        prefixes=tuple(pods_of(placed, agent.node)),
    )
