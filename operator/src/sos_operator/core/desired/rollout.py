"""Staged rollout: the nodes of a site that get a changed node-config now, and the conditions to stop.

A node-config that is wrong for one node is usually wrong for all nodes. So a changed node-config goes to `update.maxUnavailable` healthy
nodes at a time, and the next nodes wait until these nodes report it in force. If a node fails with the new document, the rollout stops, and
the waiting nodes keep their documents. Nodes that were given a document and have not confirmed it are listed in an annotation of the
ConfigMap beside the documents. A node that fails later, or that has just joined and fails, does not delay other nodes.

Changes that only follow from nodes and agents joining and leaving (tunnels, agents' ports, the base entries that name them) are distributed
immediately: a joining node must not wait for hundreds of nodes, and such a change replaces no setting of a node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sos_compile
from sos_compile.documents.base_flows import NAMES_OTHERS
from sos_compile.documents.parts import INCLUDE
from sos_compile.manifests import naming
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.memo import encode

from sos_operator.core.desired.departure import is_node_config, read_json
from sos_operator.core.desired.network_attachment import attached_by_nodes
from sos_operator.core.desired.retained_children import with_files
from sos_operator.core.model.cluster_objects import ConfigMap, Pod
from sos_operator.core.model.custom_resources import DEFAULT_MAX_UNAVAILABLE, SosSite
from sos_operator.core.model.kinds import CONFIG_MAP
from sos_operator.core.model.objects import Object
from sos_operator.core.model.pod_state import pod_state
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import PREFIX, Seen

TURNS_ANNOTATION = "sos.network/rollout"
"""Annotation, as JSON: node -> hash of the document given to it in its turn."""
KEPT_FOR_NETWORKS = "it keeps the document that attaches its agents until the cluster serves Multus, or the pool has attach: Host"
# Number of waiting nodes whose status each pass queries, for each busy node of a site; also the minimum for a site with waiting nodes.
ASKED_AHEAD = 4

_NUMBER = re.compile("[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Standing:
    """One node: hash of its wanted document, hash of the document it was given, and its state."""

    wanted: str
    given: str = ""
    """Empty if the node has no document yet."""
    pod: str = ""
    """State of its pod, empty if there is none."""
    answer: NodeAnswer | None = None
    alike: bool = False
    """True if the two documents differ only in parts that follow from other nodes and agents."""
    turn: bool = False
    """True if the node got its document in its turn and is still listed as unconfirmed."""

    @property
    def open(self) -> bool:
        """True if the node must wait for its turn to get the wanted document. A node without a pod or without any document gets it
        immediately, and so does a node whose document changes only in parts that follow from other nodes and agents."""
        return self.given not in ("", self.wanted) and bool(self.pod) and not self.alike

    @property
    def well(self) -> bool:
        """True if the node is healthy, so that a wrong document could break it."""
        return self.pod == "Ready" and (self.answer is None or self.answer.state == "Ready")

    @property
    def failed(self) -> bool:
        """True if the node failed to apply its document."""
        return self.pod == "Failed" or (self.answer is not None and self.answer.state == "Failed")

    @property
    def busy(self) -> bool:
        """True if the node got its document in its turn and has not confirmed it yet, so that other nodes wait."""
        return self.turn and not self.open and not self.settled

    @property
    def settled(self) -> bool:
        """True if the document is in force, or if the node has no pod to wait for."""
        said = self.answer is not None and self.answer.state == "Ready" and self.answer.hash == self.given
        return not self.pod or (self.pod == "Ready" and said)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Result of one site's rollout in a pass."""

    waiting: Mapping[str, str] = field(default_factory=dict)
    """Nodes that keep their present document -> reason."""
    aborted: bool = False
    """True if the rollout has stopped because a node failed; the waiting nodes then wait until the user acts."""
    busy: frozenset[str] = frozenset()
    """Nodes that get their document now, or got it in their turn and have not reported it in force."""
    next: tuple[str, ...] = ()
    """Waiting nodes in the order of their turns."""
    whole: bool = False
    """True if waiting nodes keep their whole documents; otherwise they keep their own settings, and get current data of other nodes."""


def decide(nodes: Mapping[str, Standing], limit: int) -> Rollout:
    """Select the nodes that wait; all others get their document now. `limit`: nodes that may apply a new document at the same time."""
    waiting = sorted(name for name, node in nodes.items() if node.open)
    busy = frozenset(name for name, node in nodes.items() if node.busy)
    failed = sorted(name for name in busy if nodes[name].failed)
    if not waiting:
        return Rollout(busy=busy)
    if failed:
        answer = nodes[failed[0]].answer
        why = f"the roll-out has stopped, because {failed[0]} failed with it" + (f": {answer.message}" if answer and answer.message else "")
        return Rollout(dict.fromkeys(waiting, why), True, busy)
    # Unhealthy nodes come last and simultaneously. No healthy node waits for an unhealthy node, which may be down for long. Unhealthy nodes
    # wait for the healthy nodes, so that a node that is unhealthy only for a moment gets no untested document.
    well = [name for name in waiting if nodes[name].well]
    turns = well[: max(0, limit - len(busy))]
    handed = turns if well or busy else waiting
    told = frozenset([*busy, *turns])
    why = f"its turn comes after {', '.join(sorted(told)[:3])}" + (f" and {len(told) - 3} more" if len(told) > 3 else "")
    left = tuple(name for name in (*well, *(n for n in waiting if n not in well)) if name not in handed)
    return Rollout(dict.fromkeys(left, why), False, told, left)


def max_unavailable(site: SosSite, total: int) -> int:
    """Nodes that may apply a document at the same time: a number, or a share of `total` rounded down; at least one."""
    number, share, _ = site.max_unavailable.partition("%")
    if not _NUMBER.fullmatch(number):
        return DEFAULT_MAX_UNAVAILABLE  # this version's schema rejects such a value, so it is from a newer API
    return max(1, total * int(number) // 100 if share else int(number))


def plan_rollouts(seen: Seen, compiled: sos_compile.Compiled, answers: Mapping[str, NodeAnswer]) -> dict[str, Rollout]:
    """Rollouts of all sites, by site name."""
    pods = {(p.daemon_set, p.node): p for p in sorted(seen.pods, key=lambda pod: pod.leaving, reverse=True)}
    found = {}
    for site in seen.of(SosSite):
        name = site.name
        child = naming.node(PREFIX, name)
        given, turns = _given(seen, child), _turns(seen, child)
        nodes = {
            node: _standing(document, given.get(node, ""), turns.get(node), pods.get((child, node)), answers)
            for node, document in compiled.nodes.items()
            if document["site"] == name
        }
        if nodes and not site.leaving:
            found[name] = decide(nodes, max_unavailable(site, len(nodes)))
    return found


def _standing(document: Mapping[str, Any], text: str, turn: object, pod: Pod | None, answers: Mapping[str, NodeAnswer]) -> Standing:
    before, wanted = _document(text), str(document["hash"])
    given = str(before.get("hash") or "")
    if pod is None:
        return Standing(wanted, given)
    alike = _own(before) == _own(document) and _fit(_named(before), _named(document))
    answer = answers.get(pod.meta.uid)
    return Standing(wanted, given, pod_state(pod).state, answer, alike, bool(given) and turn == given)


OWN = ("version", "state", "siteID", "bridge", "uplinks", "bond", "lan", "controllers")
"""Settings of a node itself; a document omits `bond` and `lan` if the node has none."""


def _own_flows(document: Mapping[str, Any]) -> list[Any]:
    return [flow for flow in document.get("baseFlows") or [] if not NAMES_OTHERS.search(str(flow.get("match")))]


def _own(document: Mapping[str, Any]) -> dict[str, Any]:
    """A node-config without the parts that follow from other nodes and agents. Of a document with parts in files of their own, the first
    one has the base entries that follow from the site's settings (spec/node-config.md clause 46)."""
    return {key: document.get(key) for key in OWN} | {"baseFlows": _own_flows(document), INCLUDE: (document.get(INCLUDE) or [])[:1]}


def _meanwhile(text: str, wanted: Mapping[str, Any]) -> str:
    """Return the interim document of a node that has `text` and waits for `wanted`: its present settings, with the current data of other
    nodes and agents.

    The present document stays if nothing is new, if the two documents cannot be merged, or if no generation is left between them. A
    generation identifies one document only, so the generation of `wanted` is reserved for the document that the node waits for.
    """
    given = _document(text)
    generation = int(wanted["generation"]) - 1
    divided = INCLUDE in wanted
    if (INCLUDE in given) != divided or not _fit(_named(given), _named(wanted)) or int(given.get("generation") or 0) >= generation:
        return text
    rest = {key: value for key, value in wanted.items() if key not in OWN}
    blend = {**rest, **{key: given[key] for key in OWN if key in given}, **(_blend_parts if divided else _blend_flows)(given, wanted)}
    found = content_hash(blend)
    if found == given.get("hash"):
        return text
    return encode({**blend, "generation": generation, "hash": found}, laid_out=not divided)


def _blend_flows(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    others = [flow for flow in wanted["baseFlows"] if NAMES_OTHERS.search(str(flow["match"]))]
    return {"baseFlows": [*_own_flows(given), *others]}


def _blend_parts(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {INCLUDE: [*given[INCLUDE][:1], *wanted[INCLUDE][1:]]}


def _named(document: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Base entries and tunnels that name other nodes and agents, each with its content without these names."""
    found = {}
    for flow in document.get("baseFlows") or []:
        match, rest = str(flow.get("match")), [flow.get(key) for key in ("table", "priority", "actions")]
        found[json.dumps([match, *rest[:2]])] = (NAMES_OTHERS.sub("", match), *rest)
    for tunnel in document.get("tunnels") or []:
        found[str(tunnel.get("name"))] = ("tunnel", tunnel.get("udpPort"), tunnel.get("base"))
    return found


def _fit(some: Mapping[str, tuple[Any, ...]], others: Mapping[str, tuple[Any, ...]]) -> bool:
    """True if entries that both documents name have equal content, and one document has all kinds of entries of the other. The other may
    lack a kind, for example because it has no agent or no tunnel."""
    kinds = set(some.values()), set(others.values())
    return all(others[key] == like for key, like in some.items() if key in others) and (kinds[0] <= kinds[1] or kinds[1] <= kinds[0])


def _turns(seen: Seen, child: str) -> Mapping[str, Any]:
    config_map = seen.child(ConfigMap, child)
    return _parse(config_map.meta.annotations.get(TURNS_ANNOTATION, "") if config_map else "")


def _given(seen: Seen, child: str) -> dict[str, str]:
    config_map = seen.child(ConfigMap, child)
    return {name.removesuffix(".json"): text for name, text in (config_map.data if config_map else {}).items()}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        document = read_json(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _document(text: str) -> Mapping[str, Any]:
    """Parse a node-config from a ConfigMap; empty for any other text, such as text written by another client."""
    document = _parse(text)
    return document if is_node_config(document) else {}


def without_networks(rollouts: Mapping[str, Rollout], seen: Seen, compiled: sos_compile.Compiled) -> dict[str, Rollout]:
    """Rollouts in a cluster without Multus: nodes whose agents wait for Multus keep the documents that attach the running agents."""
    found = dict(rollouts)
    for site in attached_by_nodes(compiled, seen) & set(rollouts):
        given = {node: _document(text).get("hash") for node, text in _given(seen, naming.node(PREFIX, site)).items()}
        nodes = {node: doc["hash"] for node, doc in compiled.nodes.items() if doc["site"] == site}
        held = [node for node, hash_ in nodes.items() if given.get(node) not in (None, hash_)]
        found[site] = Rollout(dict.fromkeys(held, KEPT_FOR_NETWORKS), whole=True)
    return found


def withhold(compiled: sos_compile.Compiled, seen: Seen, rollouts: Mapping[str, Rollout]) -> sos_compile.Compiled:
    """Replace the documents of waiting nodes in the compilation by kept or interim documents, and record the turns."""
    nodes, kept, turns = dict(compiled.nodes), {}, {}
    for site, rollout in rollouts.items():
        child = naming.node(PREFIX, site)
        given = _given(seen, child)
        texts = {node: given[node] if rollout.whole else _meanwhile(given[node], compiled.nodes[node]) for node in rollout.waiting}
        kept[child] = {f"{node}.json": text for node, text in texts.items()}
        nodes |= {node: dict(_document(text)) for node, text in texts.items()}
        turns[child] = {node: nodes[node]["hash"] for node in sorted(rollout.busy)}
    manifests = tuple(_handed(m, kept, turns, seen) for m in compiled.manifests)
    return replace(compiled, nodes=nodes, manifests=manifests)


def _handed(manifest: Object, kept: Mapping[str, Mapping[str, str]], turns: Mapping[str, Mapping[str, str]], seen: Seen) -> Object:
    meta = manifest["metadata"]
    name = meta["name"]
    if manifest["kind"] != CONFIG_MAP.kind or not (kept.get(name) or turns.get(name)):
        return manifest
    if turns.get(name):
        meta = meta | {"annotations": {**(meta.get("annotations") or {}), TURNS_ANNOTATION: json.dumps(turns[name])}}
    there = seen.child(ConfigMap, name)
    return with_files({**manifest, "metadata": meta}, kept.get(name, {}), there.data if there else {})


def urgent_pods(seen: Seen, rollouts: Mapping[str, Rollout]) -> frozenset[str]:
    """Uids of pods whose answers a rollout waits for: pods of busy nodes, and of nodes whose turn is next."""
    wanted = set()
    for site, rollout in rollouts.items():
        soon = rollout.next[: max(ASKED_AHEAD, ASKED_AHEAD * len(rollout.busy))]
        wanted |= {(naming.node(PREFIX, site), node) for node in (*rollout.busy, *soon)}
    return frozenset(p.meta.uid for p in seen.pods if (p.daemon_set, p.node) in wanted)
