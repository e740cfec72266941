"""Network -> the node-configs of a site, which share a folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from sos_compile.documents import parts
from sos_compile.documents.node_config import (
    build_node_config,
    build_own_config,
    build_parts,
    depends_on,
    entries_per_node,
    own_depends_on,
    parts_depend_on,
)
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.memo import Memo
from sos_compile.model.network import Network, NodePlace, PlacedSite
from sos_compile.model.world import Json, Settings

ENTRY_BYTES = 100
"""About the size of a base entry; a tunnel takes twice as much."""


def build_node_configs(
    network: Network, placed: PlacedSite, endpoints: Mapping[str, tuple[str, ...]], settings: Settings, memo: Memo
) -> Iterator[tuple[NodePlace, Json, dict[str, Json]]]:
    """Yield each node of a site with its document, and with the parts of the document by hash.

    Tunnels and base entries are in parts if all documents of the site would otherwise take too much space: each node has a tunnel to every
    other node of the mesh, so that documents with all their tunnels grow with the square of the number of nodes.
    """
    if len(placed.nodes) * entries_per_node(network, placed) * ENTRY_BYTES <= settings.share_from_bytes:
        for node in placed.nodes:
            make = partial(build_node_config, network, placed, node, endpoints, settings)
            yield node, memo.documents.get(depends_on(network, placed, node, endpoints, settings), make), {}
        return
    made = memo.parts.get(parts_depend_on(network, placed, settings), partial(build_parts, network, placed, settings))
    shared = {content_hash(part): part for part in made}
    for node in placed.nodes:
        given = (network, placed, node, endpoints, settings)
        make = partial(lambda given: parts.include(build_own_config(*given), shared), given)
        yield node, memo.documents.get((own_depends_on(network, placed, node, endpoints), *shared), make), shared
