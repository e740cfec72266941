"""Network -> the agent-configs of a site's pool, which share a folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sos_compile.documents import parts
from sos_compile.documents.agent_config import build_agent_config, common, depends_on, own_depends_on
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.memo import Memo
from sos_compile.model.network import AgentPlace, Network, PlacedSite
from sos_compile.model.world import Json, Settings


def build_agent_configs(
    network: Network, placed: PlacedSite, agents: list[AgentPlace], settings: Settings, memo: Memo
) -> Iterator[tuple[AgentPlace, Json, dict[str, Json]]]:
    """Yield each agent of one pool at one site with its document, and with the parts of the document by hash.

    Services and peers are in a part if all documents of the folder would otherwise take too much space. Agents with different numbers of
    paths to the peers have different peers, and so a part each.
    """
    for paths in sorted({len(agent.addresses) for agent in agents}):
        alike = [agent for agent in agents if len(agent.addresses) == paths]
        first = _whole(network, placed, alike[0], settings, memo)
        part = parts.extract(first, common(placed))
        if not parts.worth_sharing(part, len(agents), settings):
            yield from ((agent, _whole(network, placed, agent, settings, memo), {}) for agent in alike)
            continue
        shared = {content_hash(part): part}
        for agent in alike:
            make = partial(_own, network, placed, agent, settings, shared)
            yield agent, memo.documents.get((own_depends_on(network, placed, agent, settings), *shared), make), shared


def _whole(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings, memo: Memo) -> Json:
    make = partial(build_agent_config, network, placed, agent, settings)
    return memo.documents.get(depends_on(network, placed, agent, settings), make)


def _own(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings, shared: dict[str, Json]) -> Json:
    return parts.include(build_agent_config(network, placed, agent, settings, own=True), shared)
