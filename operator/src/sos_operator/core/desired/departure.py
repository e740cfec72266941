"""Departing sites: while a SosSite is being deleted, its nodes get Absent node-configs and clean up before their pods are deleted."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sos_compile
from sos_compile.documents.parts import INCLUDE
from sos_compile.manifests import naming
from sos_compile.manifests.common import LAID_OUT_DOCUMENTS
from sos_compile.model.formats.shared import MAX_GENERATION
from sos_compile.model.memo import encode

from sos_operator.core.model.cluster_objects import ConfigMap, DaemonSet
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.kinds import CONFIG_MAP, DAEMON_SET
from sos_operator.core.model.objects import Object, Ref, Resource, mapping
from sos_operator.core.model.pod_state import pod_state
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import PREFIX, Seen, absent


@dataclass(frozen=True, slots=True)
class Departing:
    """A site that is being deleted: its nodes must take their bridges down before their pods are deleted."""

    site: str
    nodes: Mapping[str, Mapping[str, Any]]
    """Node name -> Absent node-config."""
    manifests: tuple[Object, ...]
    keeps: frozenset[Ref] = frozenset()
    """Children that stay unchanged until the nodes are clean."""

    def issued(self, newest: int, before: Mapping[str, int]) -> Departing:
        """Return a copy with a generation in each document: the one under which the document was issued, or the newest."""
        nodes = {name: {**doc, "generation": before.get(doc["hash"], newest)} for name, doc in self.nodes.items()}
        manifests = tuple(with_documents(m, nodes) if m["kind"] == CONFIG_MAP.kind else m for m in self.manifests)
        return replace(self, nodes=nodes, manifests=manifests)


def departing_sites(compiled: sos_compile.Compiled, seen: Seen) -> tuple[Departing, ...]:
    """Departing sites in a compilation that still contains them."""
    found = []
    for site in (o.name for o in seen.of(SosSite) if o.leaving):
        child = naming.node(PREFIX, site)
        daemon_set, config_map = seen.child(DaemonSet, child), seen.child(ConfigMap, child)
        # Without a DaemonSet, no node of the site is left to clean up.
        if daemon_set is None:
            continue
        own = {name: absent(doc) for name, doc in compiled.nodes.items() if doc["site"] == site}
        left = {name: absent(doc) for name, doc in documents(config_map).items() if name not in compiled.nodes}
        nodes = own | left
        if own:
            manifests = tuple(
                with_documents(m, nodes) if m["kind"] == CONFIG_MAP.kind else on_nodes(m, left)
                for m in compiled.manifests
                if m["metadata"]["name"] == child and m["kind"] in (CONFIG_MAP.kind, DAEMON_SET.kind)
            )
            found.append(Departing(site, nodes, manifests))
        elif nodes and config_map:
            # The site is currently invalid, or no node matches it any more: the nodes still have their last node-configs.
            found.append(Departing(site, nodes, (with_documents(rebuild_manifest(config_map), nodes),), frozenset({daemon_set.ref})))
    return tuple(sorted(found, key=lambda d: d.site))


def documents(config_map: ConfigMap | None) -> dict[str, dict[str, Any]]:
    """The node-configs in a ConfigMap by node; other content is ignored."""
    found = {}
    for name, text in (config_map.data if config_map else {}).items():
        try:
            document = read_json(text)
        except (ValueError, RecursionError):
            continue
        if is_node_config(document) and name == f"{document['node']}.json":
            found[str(document["node"])] = document
    return found


_SHAPE = {"node": str, "site": str, "state": str, "hash": str, "generation": int, "bridge": dict, "tunnels": list}


def is_node_config(document: object) -> bool:
    """True if a document has the fields that this module reads: other clients may write into a ConfigMap."""
    if not isinstance(document, dict) or not all(isinstance(document.get(key), kind) for key, kind in _SHAPE.items()):
        return False
    # The base entries of a document with parts are in the parts.
    listed = {"tunnels": dict, **({INCLUDE: str} if INCLUDE in document else {"baseFlows": dict})}
    for key, kind in listed.items():
        items = document.get(key)
        if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
            return False
    return bool(0 < document["generation"] <= MAX_GENERATION)


def read_json(text: str) -> Any:
    """Parse JSON, but refuse fractions, NaN and infinities: documents contain none, and some cannot be hashed. Raises ValueError."""
    return json.loads(text, parse_constant=_refuse, parse_float=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is in no document")


def rebuild_manifest(child: Resource) -> Object:
    """Rebuild the manifest of one of our children, without the fields that the API server has added."""
    meta = mapping(child.content.get("metadata"))
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations", "ownerReferences") if key in meta}
    content: Object = {key: child.content[key] for key in ("data", "spec") if key in child.content}
    return {"apiVersion": child.api_version, "kind": child.kind, "metadata": kept, **content}


def with_documents(config_map: Object, nodes: Mapping[str, Mapping[str, Any]]) -> Object:
    """Add these documents to a ConfigMap, one file per node."""
    laid_out = len(nodes) <= LAID_OUT_DOCUMENTS
    data = {f"{name}.json": encode(dict(doc), laid_out=laid_out) for name, doc in nodes.items()}
    return {**config_map, "data": {**config_map.get("data", {}), **data}}


def on_nodes(daemon_set: Object, nodes: Collection[str]) -> Object:
    """Extend the DaemonSet to these nodes by additional affinity terms, one of which must match."""
    if not nodes:
        return daemon_set
    changed = copy.deepcopy(daemon_set)
    affinity = changed
    for key in ("spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        affinity = affinity.setdefault(key, {})  # another client may have removed the key
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    terms = [term for term in affinity.get("nodeSelectorTerms") or [] if term.get("matchExpressions")]
    affinity["nodeSelectorTerms"] = [*terms, *named]
    return changed


def cleaned(departing: Departing, seen: Seen, answers: Mapping[str, NodeAnswer]) -> bool:
    """True when every node of a departing site reports that its bridge is gone.

    Nodes without a pod are skipped. The caller limits the wait for a pod that does not answer.
    """
    return not uncleaned(departing, seen, answers)


def uncleaned(departing: Departing, seen: Seen, answers: Mapping[str, NodeAnswer]) -> list[str]:
    """The nodes of a departing site that have a pod and have not reported that their bridge is gone."""
    daemon_set = naming.node(PREFIX, departing.site)
    pods = {pod.node for pod in seen.pods if pod.daemon_set == daemon_set}
    there = {node: doc["hash"] for node, doc in departing.nodes.items() if node in pods}
    return sorted(node for node, absent_hash in there.items() if not is_clean(departing.site, node, absent_hash, seen, answers))


def is_clean(site: str, node: str, absent_hash: str, seen: Seen, answers: Mapping[str, NodeAnswer]) -> bool:
    """True if all pods of a node report that the Absent node-config is carried out; False without a pod."""
    daemon_set = naming.node(PREFIX, site)
    pods = [p for p in seen.pods if p.daemon_set == daemon_set and p.node == node]
    said = [answers.get(pod.meta.uid) for pod in pods]
    return bool(said) and all(a is not None and a.hash == absent_hash and a.state == "Ready" and not a.bridge for a in said)


def urgent_pods(seen: Seen, departing: tuple[Departing, ...]) -> frozenset[str]:
    """Uids of pods whose node process is queried in every pass: not ready yet, or of a departing site."""
    going = {naming.node(PREFIX, gone.site) for gone in departing}
    return frozenset(p.meta.uid for p in seen.pods if p.daemon_set in going or pod_state(p).state != "Ready")
