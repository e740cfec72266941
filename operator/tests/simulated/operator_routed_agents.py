"""Compiled agent-configs of two sites without bridges, with the answers of healthy agents: no API server."""

from __future__ import annotations

from typing import Any

import sos_compile
from sos_kubectl.targets.agent_configs import Agent, Answer, in_order

NODES = tuple(
    sos_compile.Node(name, {"site": site}, address, pod_prefixes=(pods,))
    for name, site, address, pods in (
        ("a1", "west", "192.0.2.1", "10.1.1.0/24"),
        ("a2", "west", "192.0.2.2", "10.1.2.0/24"),
        ("b1", "east", "192.0.2.3", "10.2.1.0/24"),
        ("b2", "east", "192.0.2.4", "10.2.2.0/24"),
    )
)
PREFIXES = {"west": "10.1.0.0/16", "east": "10.2.0.0/16"}
SECOND = {"a1": "198.51.100.1", "a2": "198.51.100.2", "b1": "198.51.100.3", "b2": "198.51.100.4"}
"""Addresses of the second path."""


def site(name: str, intake: dict[str, Any] | None = None) -> dict[str, Any]:
    """A site with two paths."""
    places = [node for node in NODES if node.labels["site"] == name]
    addresses = [{"node": node.name, "addresses": [node.address, SECOND[node.name]]} for node in places]
    spec = {"nodeSelector": {"matchLabels": {"site": name}}, "prefixes": [PREFIXES[name]]}
    wan = {"type": "Routed", "addresses": addresses}
    return _object("SosSite", name, {**spec, "wan": wan, "intake": intake or {"type": "Pods"}})


def service(name: str = "web", *, ports: tuple[int, int] = (80, 89), priority: int = 0, **ends: Any) -> dict[str, Any]:
    """A service from west to east; `ends` adds to its `from` and `to`."""
    to = {"site": "east", **ends.get("to", {})}
    spec = {"from": {"site": "west", **ends.get("source", {})}, "to": to, "ports": [{"port": ports[0], "endPort": ports[1]}]}
    return _object("SosService", name, {**spec, "priority": priority, **ends.get("spec", {})}, namespace="default")


def _object(kind: str, name: str, spec: dict[str, Any], **meta: str) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}


def compiled(*services: dict[str, Any], intake: dict[str, Any] | None = None, pods: tuple[sos_compile.Pod, ...] = ()) -> list[Agent]:
    """The agents of both sites with these services, as the operator configures them."""
    given = (site("west", intake), site("east", intake), _object("SosAgent", "default", {}), *(services or (service(),)))
    objects = []
    for number, obj in enumerate(given):
        found = sos_compile.admit(obj)[0]
        found["metadata"] |= {"uid": f"uid-{number}", "generation": 1}
        objects.append(found)
    namespaces, settings = (sos_compile.Namespace("default"),), sos_compile.Settings(namespace="default")
    world = sos_compile.World(objects=tuple(objects), nodes=NODES, namespaces=namespaces, settings=settings, pods=pods)
    made = sos_compile.compile_world(world)
    return in_order(Agent(document, "default") for document in made.agents.values())


def status(agent: Agent, **changes: Any) -> dict[str, Any]:
    """The status of an agent that has its agent-config in force and reaches every peer's agent."""
    document = agent.document
    peers = [
        {"site": peer["site"], "id": other["id"], "node": other["node"], "alive": True, "willing": True}
        for peer in document["peers"]
        for other in peer["agents"]
    ]
    services = [{"id": row["id"], "role": row["role"], "ready": True} for row in document["services"]]
    same = {"generation": document["generation"], "hash": document["hash"], "peers": peers, "services": services}
    return {**same, "willing": True, "draining": False, "sessions": 0, **changes}


def healthy(agents: list[Agent], **changes: dict[str, Any]) -> dict[str, Answer]:
    """Answers by agent id; `changes` by node differ from healthy answers."""
    return {agent.id: Answer(status(agent, **changes.get(agent.node, {}))) for agent in agents}


def by_node(agents: list[Agent]) -> dict[str, Agent]:
    return {agent.node: agent for agent in agents}
