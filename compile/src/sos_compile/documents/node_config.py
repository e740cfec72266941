"""Network -> node-config (spec/node-config.md section 1)."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping

from sos_compile.documents.base_flows import NAMES_OTHERS, Rejects, build_base_flows, group_flows
from sos_compile.model.formats import node as doc
from sos_compile.model.formats import shared
from sos_compile.model.memo import ByIdentity
from sos_compile.model.network import (
    AGENT_OFPORT,
    LAN_OFPORT,
    REJECT_OFPORT,
    TUNNEL_OFPORT,
    UPLINK_OFPORT,
    AgentPlace,
    Network,
    NodePlace,
    PlacedSite,
)
from sos_compile.model.resources import DEFAULT_MTU, Site
from sos_compile.model.world import Json, Settings
from sos_compile.resolve.services.rejects import REJECT_PORT

BRIDGE = "br-sos"
MAX_TUNNELS = 1024
ENDPOINT = re.compile(r"^tcp:[0-9]{1,3}(\.[0-9]{1,3}){3}:[0-9]{1,5}\Z")  # a bridge accepts no other endpoints
MAX_CONTROLLERS = 16
MESH_LIMIT = MAX_TUNNELS + 1  # maximum number of nodes of one mesh

__all__ = ["AGENT_OFPORT", "BRIDGE", "DEFAULT_MTU", "build_node_config", "vni"]


def vni(a: int, b: int) -> int:
    """Return the VXLAN network identifier of the tunnel between two nodes: the same at both ends, and unique to the pair. Two VXLAN devices
    of a machine need different identifiers, because the kernel distinguishes devices by identifier and port only. 4,095 nodes need
    8,382,465 of the 2^24 identifiers.
    """
    low, high = min(a, b), max(a, b)
    return high * (high - 1) // 2 + low


def build_node_config(
    network: Network, placed: PlacedSite, node: NodePlace, endpoints: Mapping[str, tuple[str, ...]], settings: Settings
) -> Json:
    """Return the document of one node."""
    tunnels = _tunnels(network, placed, node, settings)
    agents = [agent.host_port for agent in placed.agents if agent.node == node.node.name]
    flows = _base_flows(network, placed, [port.ofport for port in tunnels], agents)
    own = _own_members(network, placed, node, endpoints, settings)
    return shared.encode(doc.NodeConfig.model_validate({**own, "tunnels": tunnels, "baseFlows": flows}))


def build_own_config(
    network: Network, placed: PlacedSite, node: NodePlace, endpoints: Mapping[str, tuple[str, ...]], settings: Settings
) -> Json:
    """Return the document of one node without the tunnels and base entries that are in the site's parts (`build_parts`), but with the
    node's number, by which sos-node finds its own tunnels among those of the mesh."""
    own = _own_members(network, placed, node, endpoints, settings)
    return shared.encode(doc.NodeConfig.model_validate({**own, "tunnels": [], "baseFlows": [], "number": node.number}))


def _own_members(
    network: Network, placed: PlacedSite, node: NodePlace, endpoints: Mapping[str, tuple[str, ...]], settings: Settings
) -> Json:
    site = placed.site
    own_agents = [agent for agent in placed.agents if agent.node == node.node.name]
    reject = doc.RejectPort(name=REJECT_PORT[0], peer=REJECT_PORT[1], ofport=REJECT_OFPORT) if network.rejects.get(site.name) else None
    return {
        "generation": settings.generation,
        "node": node.node.name,
        "site": site.name,
        "siteID": placed.id,
        "state": "Present",
        "bridge": _bridge(site, node.dpid),
        "uplinks": _uplinks(site),
        "agentPorts": [
            # sos-node does not create the ports that a CNI plugin creates: it finds them by the number that their network requests.
            doc.AgentPort(name=agent.host_name, ofport=agent.host_port)
            for agent in sorted(own_agents, key=lambda a: a.slot)
            if network.pools[agent.pool].attach == "Host"
        ],
        "controllers": _controllers(network, site, endpoints),
        "lan": _lan(site, node.node.name),
        "bond": doc.Bond(mode=site.bond.mode, up_delay_seconds=site.bond.up_delay_s) if site.bond else None,
        "rejectPort": reject,
    }


def build_parts(network: Network, placed: PlacedSite, settings: Settings) -> list[Json]:
    """Return the parts of all documents of a site (spec/node-config.md clauses 46 and 47): the base entries that follow from the site's own
    settings, then the mesh and the base entries that name other nodes and agents.

    The guard of a port that a node does not have (its own tunnel, an agent of another node) matches no packet.
    """
    mesh = [other for other in network.mesh_of(placed)[:MESH_LIMIT] if other.node.address]
    tunnels = [TUNNEL_OFPORT + other.number for other in mesh]
    flows = _base_flows(network, placed, tunnels, sorted({agent.host_port for agent in placed.agents}))
    named = [flow for flow in flows if NAMES_OTHERS.search(flow.match)]
    nodes = {str(other.number): other.node.address for other in mesh}
    joined = {"mesh": doc.Mesh(udp_port=settings.ports.tunnels, nodes=nodes).model_dump(mode="json", by_alias=True)} if mesh else {}
    return [
        {"baseFlows": [flow.model_dump(mode="json") for flow in flows if not NAMES_OTHERS.search(flow.match)]},
        {**joined, "flowGroups": [group.model_dump(mode="json") for group in group_flows(named)]},
    ]


def entries_per_node(network: Network, placed: PlacedSite) -> int:
    """Return about how many tunnels and base entries of each node's document name other nodes and agents."""
    return 3 * len(network.mesh_of(placed)) + 2 * len(_agents_in_view(network, placed))


def _uplinks(site: Site) -> list[doc.UplinkPort]:
    return [doc.UplinkPort(name=up.name, ofport=UPLINK_OFPORT + i, base=up.base) for i, up in enumerate(site.uplinks)]


def _base_flows(network: Network, placed: PlacedSite, tunnels: list[int], agent_ports: list[int]) -> list[doc.BaseFlow]:
    uplinks = _uplinks(placed.site)
    required = network.rejects.get(placed.site.name, ())
    return build_base_flows(
        base_ports=[*(port.ofport for port in uplinks if port.base), *tunnels],
        other_ports=[port.ofport for port in uplinks if not port.base],
        agent_ports=agent_ports,
        agent_addresses=[agent.address for agent in _agents_in_view(network, placed)],
        rejects=[Rejects(match, whole=each.service.setup == "Reactive") for each, matches in required for match in matches],
    )


def depends_on(
    network: Network, placed: PlacedSite, node: NodePlace, endpoints: Mapping[str, tuple[str, ...]], settings: Settings
) -> Hashable:
    """Return all inputs of a node's document except its generation."""
    own = own_depends_on(network, placed, node, endpoints)
    attached = tuple(network.pools[agent.pool].attach for agent in placed.agents)
    return (own, parts_depend_on(network, placed, settings), attached)


def own_depends_on(network: Network, placed: PlacedSite, node: NodePlace, endpoints: Mapping[str, tuple[str, ...]]) -> Hashable:
    """Return all inputs of a node's own members (`build_node_config` with `own`) except its generation."""
    agents = tuple((agent, network.pools[agent.pool].attach) for agent in placed.agents if agent.node == node.node.name)
    identity = (node.node.name, node.number, node.dpid, node.node.address)
    controllers = tuple(_controllers(network, placed.site, endpoints))
    return (ByIdentity(placed.site), placed.id, identity, agents, controllers, bool(network.rejects.get(placed.site.name)))


def parts_depend_on(network: Network, placed: PlacedSite, settings: Settings) -> Hashable:
    """Return all inputs of a site's parts."""
    mesh = tuple((other.number, other.node.address) for other in network.mesh_of(placed))
    required = tuple((matches, each.service.setup) for each, matches in network.rejects.get(placed.site.name, ()))
    return (ByIdentity(placed.site), mesh, tuple(_agents_in_view(network, placed)), required, settings.ports.tunnels)


def rewrites(site: Site) -> bool:
    """Return whether the site's switches rewrite IP addresses or ports."""
    return site.rewrite != "Transparent" or site.translates


def _bridge(site: Site, dpid: str) -> Json:
    kind = {"Auto": "Auto", "System": "system", "Netdev": "netdev"}[site.datapath_type]
    # Segmentation offload in user space keeps checksums correct only if nothing but MAC addresses is rewritten.
    return {"name": BRIDGE, "datapathId": dpid, "datapathType": kind, "mtu": site.mtu, "userspaceTso": not rewrites(site)}


def _lan(site: Site, node: str) -> list[doc.LanPort]:
    """Return the LAN ports of a node. A number depends on the position in the site's list, so that it is the same at every node."""
    numbers: dict[str, int] = {}
    for i, each in enumerate(site.lan):
        if each.node in ("", node):
            numbers.setdefault(each.name, LAN_OFPORT + i)
    return [doc.LanPort(name=name, ofport=ofport) for name, ofport in numbers.items()]


def _tunnels(network: Network, placed: PlacedSite, node: NodePlace, settings: Settings) -> list[doc.TunnelPort]:
    mesh = network.mesh_of(placed)[:MESH_LIMIT]
    if node not in mesh or not node.node.address:
        return []
    return [
        doc.TunnelPort(
            name=f"sosvx{other.number}",
            ofport=TUNNEL_OFPORT + other.number,
            remote=other.node.address,
            vni=vni(node.number, other.number),
            udp_port=settings.ports.tunnels,
            base=True,
        )
        for other in mesh
        if other is not node and other.node.address
    ]


def _controllers(network: Network, site: Site, endpoints: Mapping[str, tuple[str, ...]]) -> list[str]:
    found: list[str] = []
    for name in site.controllers:
        controller = network.controllers[name]
        ends = (end for end in endpoints.get(name, ()) or controller.endpoints if ENDPOINT.match(end))
        found.extend(channel_target(end, controller.tls) for end in ends)
    return list(dict.fromkeys(found))[:MAX_CONTROLLERS]


def channel_target(endpoint: str, tls: str) -> str:
    """Return the target by which Open vSwitch connects to an endpoint (`tcp:A.B.C.D:PORT`): ovs-vsctl(8) calls TLS `ssl`."""
    return endpoint.replace("tcp:", "ssl:", 1) if tls == "Required" else endpoint


def _agents_in_view(network: Network, placed: PlacedSite) -> list[AgentPlace]:
    """Agents whose traffic must never be redirected here: agents of this site, and of sites that share a service with it."""
    name = placed.site.name
    near = {name}.union(*((service.source, service.target) for service in network.services_of[name]))
    return [agent for each in sorted(near) for agent in network.sites[each].agents]
