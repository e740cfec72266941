"""Network -> agent-config (spec/node-config.md section 3)."""

from __future__ import annotations

from collections.abc import Hashable

from sos_compile.documents.controller_config import build_ports, transport_values
from sos_compile.model.formats import agent as doc
from sos_compile.model.formats import shared
from sos_compile.model.memo import ByIdentity
from sos_compile.model.network import AgentPlace, Network, PlacedService, PlacedSite
from sos_compile.model.resources import Pool
from sos_compile.model.site_card import CardAgent
from sos_compile.model.world import Json, Settings

INTERFACE = "net0"
MAX_PEER_AGENTS = 1024
EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Prometheus scrapes the agents of a cluster


def build_agent_config(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings, *, own: bool = False) -> Json:
    """Return the document of one agent. Agents of several pools share their node's addresses, so each slot has its own port for metrics.

    Nodes have a NetworkPolicy or a firewall of the cluster in front of that port; a machine has not, so its metrics are local.

    `own`: without the services and peers that it has in common with the other agents of its pool (`common`).
    """
    pool, host = _pool(network, placed, agent), "127.0.0.1" if placed.machine else EVERY_ADDRESS
    services = _services(network, placed) if not own or _each_its_clients(placed) else []
    # Peers of services without a client on this node stay, so that streams are open when a pod starts.
    peers = sorted({_peer_of(placed, each) for each in services})
    served = [each for each in services if each.source != placed.site.name or each.clients_at(agent.node)]
    config = doc.AgentConfig.model_validate(
        {
            "generation": settings.generation,
            "node": agent.node,
            "pool": agent.pool,
            "agentId": agent.id,
            "site": {
                "name": placed.site.name,
                "id": placed.id,
                "prefixes": [str(prefix) for prefix in placed.site.prefixes],
                "rewrite": placed.site.rewrite,
            },
            **(_routed(placed, agent) if placed.site.routed else {"interface": _interface(placed, agent)}),
            "peers": [] if own else [_peer(placed, network.sites[name], len(agent.addresses)) for name in peers],
            "services": [_service(placed, each, agent) for each in served],
            "shares": _shares(network, placed),
            "limits": {"sessions": pool.sessions, "memoryMiB": pool.memory_mib, "sessionMemoryMiB": pool.session_memory_mib},
            "metricsAddress": f"{host}:{settings.ports.agents + agent.slot}",
            "drainSeconds": pool.drain_s,
        }
    )
    return shared.encode(config)


def common(placed: PlacedSite) -> frozenset[str]:
    """Return the members that are the same for all agents of a pool at a site, and grow with the numbers of services and peers."""
    return frozenset({"peers"} if _each_its_clients(placed) else {"peers", "services"})


def _each_its_clients(placed: PlacedSite) -> bool:
    """Return whether the services differ from agent to agent, because each agent serves the pods of its own node."""
    return placed.site.intake is not None and placed.site.intake.type == "Pods"


def depends_on(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings) -> Hashable:
    """Return all inputs of an agent's document except its generation."""
    services = _services(network, placed)
    peers = [network.sites[name] for name in sorted({_peer_of(placed, each) for each in services})]
    return (_agent_key(network, placed, agent, settings), _services_key(services, agent), tuple(_peer_key(peer) for peer in peers))


def own_depends_on(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings) -> Hashable:
    """Return all inputs of an agent's own members (`build_agent_config` with `own`) except its generation."""
    services = _services(network, placed) if _each_its_clients(placed) else []
    return (_agent_key(network, placed, agent, settings), _services_key(services, agent))


def _agent_key(network: Network, placed: PlacedSite, agent: AgentPlace, settings: Settings) -> Hashable:
    shares = network.shares.get(placed.site.name)
    return ByIdentity(_pool(network, placed, agent)), agent, _own_key(network, placed), placed.id, settings.ports.agents, shares


def _services_key(services: list[PlacedService], agent: AgentPlace) -> Hashable:
    return tuple(
        (
            *(ByIdentity(each.service), each.source, each.target, each.ports),
            *(each.source_prefixes, each.clients_at(agent.node), each.target_prefixes, each.transport),
        )
        for each in services
    )


def _shares(network: Network, placed: PlacedSite) -> list[Json]:
    """Return the shares that the agent itself applies. At a site with a bridge, the controller does."""
    shares = network.shares.get(placed.site.name, ()) if placed.site.routed else ()
    return [{"namespace": namespace, "percent": percent} for namespace, percent, _ in shares]


def _pool(network: Network, placed: PlacedSite, agent: AgentPlace) -> Pool:
    machine = network.peers[placed.site.peer].machine if placed.machine else None
    return machine.pool if machine else network.pools[agent.pool]


def _own_key(network: Network, placed: PlacedSite) -> Hashable:
    if placed.machine:
        return ByIdentity(network.peers[placed.site.peer])
    return ByIdentity(placed.site)


def _peer_key(peer: PlacedSite) -> Hashable:
    if peer.remote:
        # Each compilation creates new Site objects for peers: compare their content.
        return peer.site.name, peer.id, peer.site.prefixes, peer.site.inbound, peer.remote_agents
    return ByIdentity(peer.site), peer.id, peer.agents, _all_pods(peer)


def _all_pods(peer: PlacedSite) -> Hashable:
    return tuple((node.node.name, node.node.pod_prefixes) for node in peer.nodes) if peer.site.routed else ()


def _services(network: Network, placed: PlacedSite) -> list[PlacedService]:
    return [each for each in network.services_of[placed.site.name] if each.service.mode == "Accelerate" and not each.unencrypted]


def _peer_of(placed: PlacedSite, service: PlacedService) -> str:
    return service.target if service.source == placed.site.name else service.source


def _routed(placed: PlacedSite, agent: AgentPlace) -> Json:
    """Return the attachment of an agent without a bridge: its node's address, and the interception of connections."""
    intake = placed.site.intake
    if intake is None:
        raise AssertionError("a site without a bridge has an intake (the schema requires it)")
    given: Json = {"networkPolicies": intake.policies}
    if intake.type == "Routed":
        shared = intake.virtual_address
        given = {"interface": intake.interface, "virtualAddress": str(shared) if shared is not None else None}
    return {
        "discovery": None,
        "wan": list(map(str, agent.addresses)),
        "intake": {"type": intake.type, **given},
        "stream_ports": {"first": agent.first_stream_port, "count": len(agent.addresses)},
    }


def _interface(placed: PlacedSite, agent: AgentPlace) -> Json:
    site = placed.site
    if site.subnet is None:
        raise AssertionError("a site with agents has prefixes, and so a subnet (agents.serves)")
    return {
        "name": INTERFACE,
        "address": f"{agent.address}/{site.subnet.prefixlen}",
        "mac": agent.mac,
        "mtu": site.mtu,
        "gateway": str(site.gateway.ip) if site.gateway else None,
        "hostName": agent.host_name,
        "hostPort": agent.host_port,
    }


def _peer(placed: PlacedSite, peer: PlacedSite, paths: int) -> Json:
    """Return a peer site for an agent of a site with this number of paths."""
    return {
        "dial": _dial(placed, peer),
        "site": peer.site.name,
        "siteID": peer.id,
        "prefixes": [str(prefix) for prefix in peer.site.prefixes],
        "agents": [_peer_agent(peer, agent, paths) for agent in peer.agents[:MAX_PEER_AGENTS]]
        + [_remote_agent(agent, paths) for agent in peer.remote_agents[:MAX_PEER_AGENTS]],
    }


def _dial(placed: PlacedSite, peer: PlacedSite) -> str:
    """Return whether the agent dials the peer's agents. The resolver refuses services between two sites that are both Blocked."""
    if placed.site.inbound == "Blocked":
        return "Always"
    return "Never" if peer.site.inbound == "Blocked" else "ByID"


def _remote_agent(agent: CardAgent, paths: int) -> Json:
    """Return an agent of another cluster."""
    row = {"id": agent.id, "node": agent.node, "address": agent.addresses[0], "firstStreamPort": agent.first_stream_port}
    return row | _addresses(agent.addresses, paths) | {"prefixes": list(agent.prefixes)}


def _addresses(addresses: tuple[str, ...], paths: int) -> Json:
    """Return the `addresses` of a peer's agent by path label, nothing if both agents have one address each. If only this agent has several,
    the list of one address shows that there is only one path to the peer's agent (spec/node-config.md clause 37)."""
    return {"addresses": list(addresses)} if max(paths, len(addresses)) > 1 else {}


def _peer_agent(peer: PlacedSite, agent: AgentPlace, paths: int) -> Json:
    if not peer.site.routed:
        return {"id": agent.id, "node": agent.node, "address": str(agent.address), "firstStreamPort": shared.FIRST_STREAM_PORT}
    row = {"id": agent.id, "node": agent.node, "address": str(agent.address), "firstStreamPort": agent.first_stream_port}
    return row | _addresses(tuple(map(str, agent.addresses)), paths) | {"prefixes": pods_of(peer, agent.node)}


def pods_of(peer: PlacedSite, node: str) -> list[str]:
    """Return the prefixes of a node's pods, none unless the site's intake is Pods. Peers send connections to these pods to this node's
    agent, because only the agent on a pod's own node can connect to the pod from the client's address."""
    if peer.site.intake is None or peer.site.intake.type != "Pods":
        return []
    return next((list(place.node.pod_prefixes) for place in peer.nodes if place.node.name == node), [])


def _service(placed: PlacedSite, service: PlacedService, agent: AgentPlace) -> Json:
    transport = service.transport
    role = "Ingress" if service.source == placed.site.name else "Egress"
    # The setting `accept` applies only to clients that arrive at the ingress agent without an order (spec/node-config.md clause 11).
    setup = "Proactive" if placed.site.routed else service.service.setup
    holds = role == "Ingress" and setup == "Proactive"
    return {
        "id": service.service.id,
        "role": role,
        "accept": service.service.accept if holds else "Early",
        **(_client_identity(service) if role == "Egress" else {}),
        "peer": _peer_of(placed, service),
        "setup": setup,
        "from": [str(prefix) for prefix in (service.clients_at(agent.node) if role == "Ingress" else service.source_prefixes)],
        "to": [str(prefix) for prefix in service.target_prefixes],
        "ports": build_ports(service.ports),
        "transport": {
            **transport_values(transport),
            "encryption": transport.encryption,
            "compression": transport.compression,
        },
        "encryptedOnly": "Encrypted" in service.service.require,
        "labels": len(agent.addresses) if placed.site.routed and service.service.all_paths else service.service.paths_max,
    }


def _client_identity(service: PlacedService) -> Json:
    """Return the fields by which the egress agent identifies the client to the server. They do not concern the ingress agent."""
    return {"connect_from": service.service.connect_from, "proxy_protocol": service.service.proxy_protocol}
