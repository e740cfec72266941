"""Compile an example folder to the documents that the parts of a lab read. Here the testbed replaces the operator.

Nodes are derived from the topology: one per switch or gateway, labelled `sos.network/site=<site>`. Only sos_compile knows the meaning of a
custom resource.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path, PurePosixPath
from typing import Any

from sos_compile import AgentAllocation, Allocations, LoadError, Namespace, Node, Observed, Settings, World, compile_world
from sos_compile import load as load_files
from sos_compile.documents.parts import standalone
from sos_compile.keys import files_for_controller, files_for_site
from sos_compile.model.problem import Reason
from sos_compile.model.world import Claim, Json, Loaded

from sos_testbed.core import controllers
from sos_testbed.core.model import DEFAULT_POOL, LabError, Topology, agent_key
from sos_testbed.core.realise import AgentLink

KEY_ID = 1
SERVICE_KIND = "SosService"
CONTROLLER_KIND = "SosController"
SITE_KIND = "SosSite"
DATAPATHS = ("Auto", "System", "Netdev")
"""Values of `spec.datapath.type` of a SosSite."""
REFUSING = (Reason.NOT_ENCRYPTED,)
"""Reasons of problems with which a service is in force, and its connections are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """One generation of all documents that the parts read."""

    controllers: dict[str, Json]
    nodes: dict[str, Json]
    agents: dict[str, Json]
    """Agent documents by `model.agent_key`, only for places in the topology."""
    allocations: Allocations
    warnings: tuple[str, ...]
    generation: int

    @property
    def controller(self) -> Json:
        """Document of the default controller."""
        return self.controllers[controllers.DEFAULT]

    def agent_ids(self, controller: str) -> set[str]:
        """Agents expected to register with a controller."""
        told = {str(agent["id"]) for site in self.controllers[controller]["sites"] for agent in site["agents"]}
        return told & {str(document["agentId"]) for document in self.agents.values()}

    def rewriting(self) -> frozenset[str]:
        """Nodes whose switches rewrite IP addresses, and therefore run without segmentation offload."""
        return frozenset(node for node, document in self.nodes.items() if not document["bridge"]["userspaceTso"])

    def switches(self, controller: str) -> dict[str, str]:
        """Switches expected to connect to a controller, as name -> datapath id."""
        told = {str(datapath["dpid"]) for site in self.controllers[controller]["sites"] for datapath in site["datapaths"]}
        found = {name: str(document["bridge"]["datapathId"]) for name, document in self.nodes.items()}
        return {name: dpid for name, dpid in found.items() if dpid in told}


def load(paths: Sequence[Path], *, services: bool = True) -> tuple[Loaded, ...]:
    """Read custom resources; if two have the same name, the later replaces the earlier. `services=False` omits the SosServices.

    Raise a one-line LabError that names the file.
    """
    try:
        objects = load_files(paths)
    except LoadError as error:
        raise LabError(str(error)) from None
    return merge((), (loaded for loaded in objects if services or loaded.obj.get("kind") != SERVICE_KIND))


def merge(objects: Iterable[Loaded], changed: Iterable[Loaded]) -> tuple[Loaded, ...]:
    """Result of `kubectl apply`: changed objects replace those of the same kind, namespace and name."""
    by_key = {_key(loaded): loaded for loaded in objects}
    by_key.update({_key(loaded): loaded for loaded in changed})
    return tuple(by_key.values())


def without_service(objects: Iterable[Loaded], name: str) -> tuple[Loaded, ...]:
    """Objects without one SosService, named `bulk` or `default/bulk`; LabError if it does not exist."""
    wanted = name if "/" in name else f"default/{name}"
    kept, services = [], []
    for loaded in objects:
        kind, namespace, own = _key(loaded)
        if kind == SERVICE_KIND:
            services.append(f"{namespace}/{own}")
        if kind != SERVICE_KIND or f"{namespace}/{own}" != wanted:
            kept.append(loaded)
    if wanted not in services:
        raise LabError(f"no SosService {wanted}; there are {', '.join(services) or 'none'}")
    return tuple(kept)


def on_datapath(objects: Iterable[Loaded], kind: str) -> tuple[Loaded, ...]:
    """Objects with this `spec.datapath.type` in every SosSite that has a bridge. Malformed objects stay as they are, for the compiler."""
    return tuple(_on_datapath(loaded, kind) if loaded.obj.get("kind") == SITE_KIND else loaded for loaded in objects)


def _on_datapath(site: Loaded, kind: str) -> Loaded:
    spec = site.obj.get("spec")
    if not isinstance(spec, dict) or "intake" in spec:  # only sites without a bridge have an intake
        return site
    declared = spec.get("datapath", {})
    if not isinstance(declared, dict):
        return site
    return replace(site, obj={**site.obj, "spec": {**spec, "datapath": {**declared, "type": kind}}})


def compile_lab(
    objects: tuple[Loaded, ...], topology: Topology, generation: int, allocations: Allocations, datapath: str | None = None
) -> Documents:
    """Compile for the nodes of a topology, on another datapath than declared unless `datapath` is None. Pure.

    Raise LabError with one line per problem: file, object, field.
    """
    objects = objects if datapath is None else on_datapath(objects, datapath)
    places = [(each.name, each.site, str(each.underlay[1].ip) if each.underlay else "") for each in topology.switches]
    places += [(node.name, node.site, str(node.wan[0][1].ip)) for node in topology.nodes]
    nodes = tuple(Node(name=name, labels={"sos.network/site": site}, address=address) for name, site, address in places)
    endpoints = _endpoints(objects) if topology.switches else {}
    world = World(
        objects=objects,
        nodes=nodes,
        namespaces=tuple(Namespace(name=name) for name in sorted({_key(loaded)[1] for loaded in objects} - {""})),
        settings=Settings(generation=generation),
        observed=Observed(endpoints=endpoints, allocations=allocations),
    )
    compiled = compile_world(world)
    in_force = [problem for problem in compiled.problems if problem.warning or problem.reason in REFUSING]
    errors = [problem.line() for problem in compiled.problems if problem not in in_force]
    if errors:
        raise LabError("\n".join(errors))
    manned = {place.key for place in topology.agents}
    whole = {agent_key(*key): standalone(document, compiled.parts) for key, document in sorted(compiled.agents.items())}
    agents = {key: document for key, document in whole.items() if key in manned}
    covered = set(compiled.nodes) | {str(document["node"]) for document in agents.values()}
    missing = sorted({node.name for node in nodes} - covered)
    if missing:
        raise LabError(f"no SosSite selects the nodes of {', '.join(missing)} (label sos.network/site)")
    return Documents(
        controllers={name: compiled.controllers[name] for name in endpoints},
        nodes={name: standalone(compiled.nodes[name], compiled.parts) for name in sorted(compiled.nodes)},
        agents=agents,
        allocations=compiled.allocations,
        warnings=tuple(problem.line() for problem in in_force),
        generation=generation,
    )


def _endpoints(objects: tuple[Loaded, ...]) -> dict[str, tuple[str, ...]]:
    names = {_key(loaded)[2] for loaded in objects if loaded.obj.get("kind") == CONTROLLER_KIND}
    if not names:
        raise LabError(f"no SosController {controllers.DEFAULT!r} is declared")
    return {name: (f"tcp:{address}:{controllers.OPENFLOW_PORT}",) for name, address in controllers.addresses(names).items()}


def agent_links(topology: Topology, documents: Documents) -> tuple[AgentLink, ...]:
    """Interfaces of all declared agents; LabError if an agent of the default pool is missing."""
    links = []
    for place in topology.agents:
        document = documents.agents.get(place.key)
        if document is None and place.pool != DEFAULT_POOL:
            continue
        if document is None:
            raise LabError(f"no SosAgent {DEFAULT_POOL!r} covers the node {place.switch}")
        interface = document.get("interface")
        if interface is None:  # a site without a bridge
            continue
        links.append(
            AgentLink(
                place=place,
                interface=interface["name"],
                address=str(IPv4Interface(interface["address"])),
                mac=interface["mac"],
                mtu=int(interface["mtu"]),
                host_name=interface["hostName"],
            )
        )
    return tuple(links)


def files(documents: Documents, root: PurePosixPath) -> dict[str, str]:
    """Path -> text of every configuration file of a lab."""
    found = {controllers.config_file(name): document for name, document in documents.controllers.items()}
    found |= {f"node-config/{node}.json": document for node, document in documents.nodes.items()}
    found |= {f"agent-config/{key}.json": document for key, document in documents.agents.items()}
    return {str(root / name): json.dumps(document, indent=1, sort_keys=True) + "\n" for name, document in found.items()}


def key_files(documents: Documents, master: bytes, root: PurePosixPath) -> dict[str, str]:
    """Path -> text of every key file: the controller's folder, and one per node with agents."""
    sites = sorted(
        {int(site["id"]) for document in documents.controllers.values() for site in document["sites"]}
        | {int(document["site"]["id"]) for document in documents.agents.values()}
    )
    found = {root / "keys" / "controller" / name: text for name, text in files_for_controller(master, KEY_ID, sites).items()}
    for document in documents.agents.values():
        own = files_for_site(master, KEY_ID, int(document["site"]["id"]), sites)
        found |= {root / "keys" / document["node"] / name: text for name, text in own.items()}
    return {str(path): text + "\n" for path, text in found.items()}


def encode_allocations(allocations: Allocations) -> dict[str, Any]:
    """Allocations as JSON, for the lab's folder."""
    return {
        "sites": dict(allocations.sites),
        "controllers": dict(allocations.controllers),
        "nodes": dict(allocations.nodes),
        "agents": [asdict(agent) for agent in allocations.agents],
        "claims": {service: asdict(claim) for service, claim in allocations.claims.items()},
    }


def parse_allocations(raw: dict[str, Any]) -> Allocations:
    """Read allocations back from the lab's folder."""
    agents = tuple(AgentAllocation(**agent) for agent in raw["agents"])
    claims = {service: Claim(**claim) for service, claim in raw.get("claims", {}).items()}  # earlier labs have none
    return Allocations(sites=raw["sites"], controllers=raw["controllers"], nodes=raw["nodes"], agents=agents, claims=claims)


def _key(loaded: Loaded) -> tuple[str, str, str]:
    metadata = loaded.obj.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    kind = str(loaded.obj.get("kind", ""))
    namespace = str(fields.get("namespace") or "default") if kind == SERVICE_KIND else ""
    return kind, namespace, str(fields.get("name", f"{loaded.file}:{loaded.index}"))
