"""World in, documents out."""

from __future__ import annotations

from sos_compile.agent_config import build_agent_config
from sos_compile.controller_config import build_controller_config
from sos_compile.facts import build_facts
from sos_compile.manifests import build_manifests, complain, held_children
from sos_compile.network import Network
from sos_compile.node_config import build_node_config
from sos_compile.objects import collect
from sos_compile.resolve import resolve
from sos_compile.verdicts import Verdicts
from sos_compile.world import Compiled, Json, World


def compile_world(world: World) -> Compiled:
    """Compile everything. Never raises for what users wrote: a bad object becomes a Problem, the others' output is as if it did not exist.

    The result depends on the set of objects, nodes and namespaces, not on their order.
    """
    verdicts = Verdicts()
    objects = collect(world, verdicts)
    network = resolve(world, objects, verdicts)
    generation = world.settings.generation
    controllers = {
        name: build_controller_config(network, name, generation)
        for name in sorted(network.allocations.controllers)
        if name in network.controllers
    }
    agents = {
        (agent.pool, agent.node): build_agent_config(network, placed, agent, generation)
        for placed in network.sites.values()
        for agent in placed.agents
    }
    nodes = _node_configs(network, world)
    manifests = build_manifests(network, controllers, nodes, agents, world.settings)
    complain(network, manifests, verdicts)
    return Compiled(
        controllers=controllers,
        nodes=nodes,
        agents=dict(sorted(agents.items())),
        manifests=tuple(manifest for _, manifest in manifests),
        allocations=network.allocations,
        problems=verdicts.sorted(),
        facts=build_facts(objects, network, verdicts),
        held=held_children(objects.keys, network, world.settings.prefix),
    )


def _node_configs(network: Network, world: World) -> dict[str, Json]:
    endpoints = world.observed.endpoints
    built = {
        node.node.name: build_node_config(network, placed, node, endpoints, world.settings)
        for placed in network.sites.values()
        for node in placed.nodes
    }
    return dict(sorted(built.items()))
