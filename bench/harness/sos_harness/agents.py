"""Configuration of two agents: custom resources, compiled as in a cluster, with the default policy."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path, PurePosixPath

from sos_compile import Allocations
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.world import Json
from sos_testbed.core.topology import PathOptions, figure8
from sos_testbed.lifecycle import declare
from sos_testbed.lifecycle.lab import EXAMPLE

from sos_harness.scenario import ROUTES

RESOURCES = Path(__file__).resolve().parents[1] / "resources"
SERVICE_PORTS = (5000, 5999)
"""First and last port of the service in one-path.yaml and two-paths.yaml."""
STREAM_PORT = 10_000
METRICS_PORT = 9465


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent: the ingress agent (`near`) is beside the client, the egress agent (`far`) beside the server."""

    part: str
    node: str
    interface: str
    address: str
    mac: str

    @property
    def addresses(self) -> tuple[str, str]:
        """Its addresses on routes, one for each path."""
        return self.address, str(IPv4Address(self.address) - 1)

    def argv(self, program: str, root: PurePosixPath, policy: str = "") -> tuple[str, ...]:
        """Command line of the agent."""
        folder = root / (f"{self.part}-{policy}" if policy else self.part)
        places = (
            "--config",
            f"{root / policy}/agent-config",
            "--node",
            self.node,
            "--keys",
            f"{root}/keys/{self.node}",
            "--state",
            f"{folder}/state",
        )
        return (program, *places, "--attach", "none")


def documents(paths: int, more: tuple[Path, ...] = ()) -> declare.Documents:
    """Compile the operator's documents for two sites, a service over one or two paths, and further custom resources."""
    service = RESOURCES / ("one-path.yaml" if paths == 1 else "two-paths.yaml")
    # the documents depend on the names, sites and addresses of figure8, but not on its link shapes
    topology = figure8(PathOptions(), PathOptions())
    return declare.compile_lab(declare.load((EXAMPLE, service, *more)), topology, 1, Allocations())


def policy_files(policy: str, scenario_paths: int, more: tuple[Path, ...], root: PurePosixPath) -> dict[str, str]:
    """Files (path -> text) of agent configurations with another policy."""
    if policy == ROUTES:
        return declare.files(on_routes(documents(scenario_paths, more), scenario_paths), root / policy)
    return declare.files(documents(scenario_paths, (*more, RESOURCES / f"{policy}.yaml")), root / policy)


def on_routes(found: declare.Documents, paths: int) -> declare.Documents:
    """Detach the agents from their bridges: each has one address for each path, and intercepts connections that arrive on its interface."""
    places = {found.agents[agent.node]["agentId"]: list(agent.addresses[:paths]) for agent in agents(found)}
    return replace(found, agents={node: _on_routes(document, places) for node, document in found.agents.items()})


def _on_routes(document: Json, places: dict[str, list[str]]) -> Json:
    routed = {key: value for key, value in document.items() if key != "discovery"}
    interface = routed.pop("interface")["name"]
    own = places[document["agentId"]]
    routed["wan"], routed["intake"] = own, {"type": "Routed", "interface": interface}
    routed["streamPorts"] = {"first": STREAM_PORT, "count": len(own)}
    routed["services"] = [{**service, "setup": "Proactive"} for service in document["services"]]
    routed["peers"] = [
        {**peer, "agents": [{**agent, "address": places[agent["id"]][0], "addresses": places[agent["id"]]} for agent in peer["agents"]]}
        for peer in document["peers"]
    ]
    return {**routed, "hash": content_hash(routed)}


def agents(found: declare.Documents) -> tuple[Agent, Agent]:
    """Ingress and egress agent."""
    near, far = (_agent(part, found.agents[node]) for part, node in (("near", "edge1"), ("far", "edge2")))
    return near, far


def _agent(part: str, document: Json) -> Agent:
    interface = document["interface"]
    if document["streamPorts"]["first"] != STREAM_PORT:
        raise ValueError(f"stream ports begin with {document['streamPorts']['first']}, not {STREAM_PORT}")
    return Agent(
        part=part,
        node=document["node"],
        interface=interface["name"],
        address=str(IPv4Interface(interface["address"]).ip),
        mac=interface["mac"],
    )


def files(found: declare.Documents, root: PurePosixPath) -> dict[str, str]:
    """Files (path -> text) of configurations and keys."""
    return {**declare.files(found, root), **declare.key_files(found, secrets.token_bytes(32), root)}
