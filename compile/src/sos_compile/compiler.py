"""Compile a world to documents, manifests, problems and facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from sos_compile.admission.fault_isolation import Faults, isolate
from sos_compile.admission.objects import Objects, candidates, collect
from sos_compile.admission.verdicts import Verdicts
from sos_compile.documents import agent_config
from sos_compile.documents.agent_configs import build_agent_configs
from sos_compile.documents.controller_config import build_controller_config, build_service
from sos_compile.documents.node_configs import build_node_configs
from sos_compile.documents.site_card import build_site_card
from sos_compile.facts import build_facts
from sos_compile.manifests.build import build_manifests, complain, held_children
from sos_compile.model.memo import Memo, Source
from sos_compile.model.network import Network
from sos_compile.model.problem import Reason
from sos_compile.model.site_card import MAX_CARD_BYTES, CardError, SiteCard
from sos_compile.model.world import Compiled, Json, World
from sos_compile.resolve.resolver import resolve

T = TypeVar("T")

DocumentName = tuple[str, ...]
"""("controller", NAME), ("node", NODE), ("agent", POOL, NODE) or ("machine", SOSPEER)."""


def compile_world(world: World, memo: Memo | None = None) -> Compiled:
    """Compile everything. Never raises for invalid objects: such an object becomes a Problem, and all other output is as if the object did
    not exist.

    This includes bugs: objects and nodes that make the compilation raise are found and left out (fault_isolation.py). The result depends
    only on the set of objects, nodes and namespaces, not on their order and not on the memo.
    """
    return draft(world, memo).issued({})


@dataclass(frozen=True)
class Draft:
    """A compilation whose documents have no generations yet."""

    world: World
    objects: Objects
    network: Network
    verdicts: Verdicts
    documents: Mapping[DocumentName, Json]
    parts: Mapping[str, Json]
    """Members that documents have in common, by hash (documents/parts.py)."""
    memo: Memo = field(repr=False)

    def hashes(self) -> dict[DocumentName, str]:
        """Return the hash of every document."""
        return {name: document["hash"] for name, document in self.documents.items()}

    def issued(self, generations: Mapping[DocumentName, int]) -> Compiled:
        """Return the compilation with these generations in its documents; by default the generation of World.settings."""
        try:
            return self._issued(generations)
        except Exception:
            return _fenced(self.world, self.memo, lambda draft: draft._issued(generations))

    def _issued(self, generations: Mapping[DocumentName, int]) -> Compiled:
        generation = self.world.settings.generation
        documents = {name: {**document, "generation": generations.get(name, generation)} for name, document in self.documents.items()}
        kinds = ("controller", "node", "machine")
        controllers, nodes, machines = ({name[1]: doc for name, doc in documents.items() if name[0] == kind} for kind in kinds)
        agents = {(name[1], name[2]): doc for name, doc in documents.items() if name[0] == "agent"}
        verdicts = self.verdicts.copy()
        manifests = build_manifests(
            self.network,
            {name: Source(doc, self.memo) for name, doc in controllers.items()},
            {name: Source(doc, self.memo, self.parts) for name, doc in nodes.items()},
            {key: Source(doc, self.memo, self.parts) for key, doc in agents.items()},
            self.world.settings,
        )
        complain(self.network, manifests, verdicts)
        cards = self._cards(verdicts)
        self._check_sizes(machines, verdicts)
        facts = build_facts(self.objects, self.network, verdicts)
        verdicts.settle()
        return Compiled(
            controllers=controllers,
            nodes=nodes,
            agents=agents,
            manifests=tuple(manifest for _, manifest in manifests),
            allocations=self.network.allocations,
            problems=verdicts.sorted(),
            facts=facts,
            held=held_children(self.objects.keys, self.network, self.world.settings.prefix),
            faults=tuple(sorted(verdicts.faults, key=lambda fault: fault.key)),
            cards=cards,
            machines=machines,
            parts=self.parts,
        )

    def _cards(self, verdicts: Verdicts) -> dict[str, SiteCard]:
        """Return the card for each peer cluster; report sites that do not fit into a card as a problem of the SosPeer."""
        found = {}
        for name, peer in self.network.peers.items():
            if peer.machine is not None:
                continue
            try:
                found[name] = build_site_card(self.network, name, self.world.settings.software)
            except CardError as error:
                message = f"this cluster's sites cannot be described to the peer: {error}"
                verdicts.reject(peer.origin, "", Reason.LIMIT_EXCEEDED, message, "use fewer nodes or services")
        return found

    def _check_sizes(self, machines: Mapping[str, Json], verdicts: Verdicts) -> None:
        """Report configurations of machines that do not fit into an Answer (spec/card.md clause 4)."""
        for name, document in machines.items():
            size = len(json.dumps(document, separators=(",", ":")))
            if size > MAX_CARD_BYTES:
                message = f"the machine's configuration has {size} bytes, more than {MAX_CARD_BYTES}"
                verdicts.reject(self.network.peers[name].origin, "", Reason.LIMIT_EXCEEDED, message, "use fewer services with the machine")


def draft(world: World, memo: Memo | None = None) -> Draft:
    """Compile everything except the documents' generations: the caller gives a document a new generation if its hash has changed."""
    return _fenced(world, memo or Memo(), lambda draft: draft)


def _fenced(world: World, memo: Memo, finish: Callable[[Draft], T]) -> T:
    """Compile; leave out objects and nodes that make the compilation raise."""

    def attempt(faults: Faults) -> T:
        return finish(_draft(world, memo, faults))

    try:
        done = attempt({})
        memo.faults.clear()
        return done
    except Exception as error:
        first = error
    possible = candidates(world)
    known = {key: fault for key, (identity, fault) in memo.faults.items() if possible.get(key) == identity}
    done, faults = isolate(list(possible), attempt, first, known)
    memo.faults = {key: (possible[key], fault) for key, fault in faults.items()}
    return done


def _draft(world: World, memo: Memo, faults: Faults) -> Draft:
    memo.begin()
    verdicts = Verdicts(left_out=faults)
    objects = collect(world, verdicts, memo)
    network = resolve(world, objects, verdicts, memo)
    for placed in (each for each in network.services if each.controller):
        verdicts.attempt(placed.service.origin, build_service, placed, network, memo)
    verdicts.settle()
    parts: dict[str, Json] = {}
    documents = {}
    for name, document, of_document in _documents(network, world, memo):
        documents[name] = document
        parts |= of_document
    return Draft(world, objects, network, verdicts, documents, parts, memo)


def _documents(network: Network, world: World, memo: Memo) -> Iterator[tuple[DocumentName, Json, dict[str, Json]]]:
    """Yield each document with its name and parts."""
    for name in sorted(network.allocations.controllers):
        if name in network.controllers:
            yield ("controller", name), build_controller_config(network, name, world.settings.generation, memo), {}
    bridged = [placed for placed in network.sites.values() if not placed.site.routed]
    for placed in bridged:
        for node, document, parts in build_node_configs(network, placed, world.observed.endpoints, world.settings, memo):
            yield ("node", node.node.name), document, parts
    yield from _agent_documents(network, world, memo)
    machines = [(placed.site.peer, placed, placed.machine) for placed in network.sites.values() if placed.machine]
    for name, placed, agent in sorted(machines, key=lambda each: each[0]):
        make = partial(agent_config.build_agent_config, network, placed, agent, world.settings)
        yield ("machine", name), memo.documents.get(agent_config.depends_on(network, placed, agent, world.settings), make), {}


def _agent_documents(network: Network, world: World, memo: Memo) -> Iterator[tuple[DocumentName, Json, dict[str, Json]]]:
    for placed in network.sites.values():
        for pool in sorted({agent.pool for agent in placed.agents}):
            agents = sorted((agent for agent in placed.agents if agent.pool == pool), key=lambda agent: agent.node)
            for agent, document, parts in build_agent_configs(network, placed, agents, world.settings, memo):
                yield ("agent", agent.pool, agent.node), document, parts
