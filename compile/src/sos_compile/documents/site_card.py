"""Network -> the site card for a peer (spec/card.md section 3)."""

from __future__ import annotations

from sos_compile.documents.agent_config import first_stream_port, pods_of
from sos_compile.model.network import AgentPlace, Network, PlacedSite
from sos_compile.model.site_card import CARD_PORT, CardAgent, CardSite, SiteCard

MAX_SITES = 64  # clause 11


def build_site_card(network: Network, peer: str, software: str) -> SiteCard:
    """Return the card for a SosPeer: this cluster's sites without bridges, and the services that it has accepted with the peer."""
    own = [placed for placed in network.sites.values() if placed.site.routed and not placed.remote]
    return SiteCard(
        software=software,
        sites=tuple(_site(placed) for placed in sorted(own, key=lambda each: each.site.name)[:MAX_SITES]),
        services=network.offered.get(peer, ()),
    )


def _site(placed: PlacedSite) -> CardSite:
    return CardSite(
        name=placed.site.name,
        id=placed.id,
        prefixes=tuple(str(prefix) for prefix in placed.site.prefixes),
        agents=tuple(_agent(placed, agent) for agent in placed.agents),
    )


def _agent(placed: PlacedSite, agent: AgentPlace) -> CardAgent:
    return CardAgent(
        id=agent.id,
        node=agent.node,
        addresses=(str(agent.address),),
        first_stream_port=first_stream_port(agent),
        card_port=CARD_PORT,
        prefixes=tuple(pods_of(placed, agent.node)),
    )
