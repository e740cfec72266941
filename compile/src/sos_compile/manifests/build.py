"""All manifests that are applied to the cluster for a compiled network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sos_compile.admission.verdicts import Verdicts
from sos_compile.manifests import naming
from sos_compile.manifests.agent import build_agents
from sos_compile.manifests.common import MAX_CONFIG_MAP_BYTES, config_map_bytes
from sos_compile.manifests.controller import MAX_REPLICAS, build_controller
from sos_compile.manifests.site import build_network, build_site
from sos_compile.model.memo import Source
from sos_compile.model.network import Network, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Origin, Pool
from sos_compile.model.world import Json, ObjectKey, Settings
from sos_compile.resolve.agents import serves

AgentConfigs = Mapping[tuple[str, str], Source]


def build_manifests(
    network: Network, controllers: Mapping[str, Source], nodes: Mapping[str, Source], agents: AgentConfigs, settings: Settings
) -> list[tuple[Origin, Json]]:
    """Return every object with its owner, sorted by kind and name."""
    found: list[tuple[Origin, Json]] = []
    for name, controller in network.controllers.items():
        if controller.managed:
            found += [(controller.origin, each) for each in build_controller(controller, controllers[name], settings)]
    for placed in network.sites.values():
        found += [(placed.site.origin, each) for each in _site(placed, nodes, settings)]
        for pool in network.pools.values():
            found += [(pool.origin, each) for each in _agents(pool, placed, agents, settings)]
    return sorted(found, key=lambda item: (item[1]["kind"], item[1]["metadata"]["name"]))


def _site(placed: PlacedSite, nodes: Mapping[str, Source], settings: Settings) -> list[Json]:
    if placed.site.selector is None or placed.site.routed:
        return []
    found = build_site(placed, {node.node.name: nodes[node.node.name] for node in placed.nodes}, settings)
    if not placed.site.transit and not host_local_is_wrong(placed):
        found.append(build_network(placed, settings))
    return found


def _agents(pool: Pool, placed: PlacedSite, agents: AgentConfigs, settings: Settings) -> list[Json]:
    own = [agent for agent in placed.agents if agent.pool == pool.name]
    if not own or not serves(pool, placed):
        return []
    configs = {agent.node: agents[pool.name, agent.node] for agent in own}
    return build_agents(pool, placed, own[0].slot, configs, settings)


def host_local_is_wrong(placed: PlacedSite) -> bool:
    """Return True if the site has several nodes, but its IPAM allocates addresses per node: pods on two nodes would get the same
    address."""
    return placed.site.ipam is not None and placed.site.ipam.get("type") == "host-local" and len(placed.nodes) > 1


def complain(network: Network, manifests: list[tuple[Origin, Json]], verdicts: Verdicts) -> None:
    """Report objects that cannot be rendered or applied."""
    for placed in network.sites.values():
        if host_local_is_wrong(placed):
            message = f"host-local allocates addresses per node, and the site has {len(placed.nodes)} nodes"
            verdicts.reject(
                placed.site.origin, "spec.network.ipam.type", Reason.INVALID, message, "use whereabouts, or leave ipam out (static)"
            )
    for owner, manifest in manifests:
        if manifest["kind"] == "ConfigMap" and config_map_bytes(manifest) > MAX_CONFIG_MAP_BYTES:
            what, remedy = _what_is_large(network, owner, manifest)
            message = f"{what} has {config_map_bytes(manifest)} bytes, more than the {MAX_CONFIG_MAP_BYTES} of a ConfigMap"
            verdicts.reject(owner, "", Reason.LIMIT_EXCEEDED, message, remedy)


def _what_is_large(network: Network, owner: Origin, manifest: Json) -> tuple[str, str]:
    """Name the owner of a configuration that is too large, and the remedy: a controller's configuration grows with services, all other
    configurations with nodes."""
    if owner.key.kind == "SosController":
        controllers = [service.controller for service in network.services] + [balance.controller for balance in network.balances]
        remedy = "remove services, join some (prefixes and ports may be ranges), or give some to another SosController (spec.controller)"
        return f"its configuration, with {controllers.count(owner.name)} services,", remedy
    nodes = sum(not name.startswith("part-") for name in manifest["data"])
    return f"the configuration of its {nodes} nodes", "split the site into several with fewer nodes each"


def held_children(keys: Iterable[ObjectKey], network: Network, prefix: str) -> tuple[tuple[str, str], ...]:
    """Return (kind, name) of children that currently rejected objects may have had before."""
    names: dict[str, set[str]] = {}
    for key in keys:
        names.setdefault(key.kind, set()).add(key.name)
    sites, pools, controllers = (names.get(kind, set()) for kind in ("SosSite", "SosAgent", "SosController"))
    wrong_sites, wrong_pools = sites - set(network.sites), pools - set(network.pools)
    pairs = {(pool, site) for pool in pools for site in sites if pool in wrong_pools or site in wrong_sites}
    agents = {naming.agent(prefix, *pair) for pair in pairs}
    daemons = {naming.node(prefix, site) for site in wrong_sites} | agents
    networks = wrong_sites | {name for name, placed in network.sites.items() if host_local_is_wrong(placed)}
    held = {(kind, name) for name in daemons for kind in ("ConfigMap", "DaemonSet")}
    held |= {(kind, name) for name in agents for kind in ("NetworkPolicy", "PodDisruptionBudget")}
    held |= {("NetworkAttachmentDefinition", naming.network(prefix, site)) for site in networks}
    held |= {("NetworkAttachmentDefinition", naming.agent_network(prefix, *pair)) for pair in pairs}
    # The operator creates these Secrets, and held children mount them.
    held |= {("Secret", naming.site_keys(prefix, site)) for _, site in pairs}
    held |= {("Secret", naming.site_certificate(prefix, site)) for site in wrong_sites}
    return tuple(sorted(held.union(*(_of_controller(prefix, name) for name in controllers - set(network.controllers)))))


def _of_controller(prefix: str, name: str) -> Iterator[tuple[str, str]]:
    yield "ConfigMap", naming.controller(prefix, name)
    for replica in range(MAX_REPLICAS):
        yield from ((kind, naming.controller(prefix, name, replica)) for kind in ("Deployment", "NetworkPolicy", "Service"))
        yield "Service", naming.controller_openflow(prefix, name, replica)
    yield from (("Secret", secret(prefix, name)) for secret in (naming.controller_keys, naming.controller_certificate))
