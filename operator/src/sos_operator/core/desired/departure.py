"""Departing sites: while a SosSite is deleted, its nodes get node-configs that say Absent and clean up before their pods go."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sos_compile
from sos_compile.manifests import naming
from sos_compile.model.formats import MAX_GENERATION

from sos_operator.core.model.kinds import CONFIG_MAP, DAEMON_SET, SITE
from sos_operator.core.model.node_status import NodeAnswer
from sos_operator.core.model.objects import Object
from sos_operator.core.model.pod_state import daemon_set_of, pod_state
from sos_operator.core.model.world import PREFIX, Seen, absent, leaving, node_of
from sos_operator.core.plan import Ref, ref_of


@dataclass(frozen=True, slots=True)
class Departing:
    """A site that is being deleted: its nodes must take their bridges down before their pods go."""

    site: str
    nodes: Mapping[str, Mapping[str, Any]]
    """Node name -> the node-config that says Absent."""
    manifests: tuple[Object, ...]
    keeps: frozenset[Ref] = frozenset()
    """Children that stay unchanged until the nodes are clean."""

    def issued(self, newest: int, before: Mapping[str, int]) -> Departing:
        """Return it with a generation in each document: the generation it was issued under, or the newest."""
        nodes = {name: {**doc, "generation": before.get(doc["hash"], newest)} for name, doc in self.nodes.items()}
        manifests = tuple(with_documents(m, nodes) if m["kind"] == CONFIG_MAP.kind else m for m in self.manifests)
        return replace(self, nodes=nodes, manifests=manifests)


def departing_sites(compiled: sos_compile.Compiled, seen: Seen) -> tuple[Departing, ...]:
    """Departing sites in a compilation that still contains them."""
    found = []
    for site in (o["metadata"]["name"] for o in seen.of(SITE.kind) if leaving(o)):
        child = naming.node(PREFIX, site)
        daemon_set, config_map = seen.child(DAEMON_SET.kind, child), seen.child(CONFIG_MAP.kind, child)
        # Nothing left of the site in the cluster means that there is nothing to wait for.
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
        elif nodes:
            # The site is invalid at the moment, or has no nodes any more: its nodes still have their last node-configs.
            found.append(Departing(site, nodes, (with_documents(anew(config_map), nodes),), frozenset({ref_of(daemon_set)})))
    return tuple(sorted(found, key=lambda d: d.site))


def documents(config_map: Object | None) -> dict[str, dict[str, Any]]:
    """The node-configs in a ConfigMap by node; other content is left out."""
    found = {}
    for name, text in ((config_map or {}).get("data") or {}).items():
        try:
            document = read_json(text)
        except (ValueError, RecursionError):
            continue
        if is_node_config(document) and name == f"{document['node']}.json":
            found[str(document["node"])] = document
    return found


_SHAPE = {"node": str, "site": str, "state": str, "hash": str, "generation": int, "bridge": dict, "baseFlows": list, "tunnels": list}


def is_node_config(document: object) -> bool:
    """True if a document has the fields that this module reads. Others may write into a ConfigMap."""
    if not isinstance(document, dict) or not all(isinstance(document.get(key), kind) for key, kind in _SHAPE.items()):
        return False
    if not all(isinstance(item, dict) for key in ("baseFlows", "tunnels") for item in document[key]):
        return False
    return bool(0 < document["generation"] <= MAX_GENERATION)


def read_json(text: str) -> Any:
    """JSON without fractions, NaN and the like: documents contain none, and some cannot be hashed. Raises ValueError."""
    return json.loads(text, parse_constant=_refuse, parse_float=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is in no document")


def anew(child: Object | None) -> Object:
    """A child of ours as it would be applied: without fields that the API server has added."""
    assert child is not None  # noqa: S101 - something of it has been read
    meta = child["metadata"]
    kept = {key: meta[key] for key in ("name", "namespace", "labels", "annotations", "ownerReferences") if key in meta}
    content: Object = {key: child[key] for key in ("data", "spec") if key in child}
    return {"apiVersion": child["apiVersion"], "kind": child["kind"], "metadata": kept, **content}


def with_documents(config_map: Object, nodes: Mapping[str, Mapping[str, Any]]) -> Object:
    """A ConfigMap with these documents, by node."""
    data = {f"{name}.json": json.dumps(doc, indent=2, sort_keys=True, ensure_ascii=False) + "\n" for name, doc in nodes.items()}
    return {**config_map, "data": {**config_map.get("data", {}), **data}}


def on_nodes(daemon_set: Object, nodes: Collection[str]) -> Object:
    """The DaemonSet, extended to these nodes: affinity terms are alternatives."""
    if not nodes:
        return daemon_set
    changed = copy.deepcopy(daemon_set)
    affinity = changed
    for key in ("spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        affinity = affinity.setdefault(key, {})  # another client may have removed it
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    terms = [term for term in affinity.get("nodeSelectorTerms") or [] if term.get("matchExpressions")]
    affinity["nodeSelectorTerms"] = [*terms, *named]
    return changed


def cleaned(departing: Departing, seen: Seen, answers: Mapping[str, NodeAnswer]) -> bool:
    """True when every node of a departing site reports that its bridge is gone.

    Do not wait for a node without a pod. For a pod that does not answer, the caller waits a bounded time.
    """
    daemon_set = naming.node(PREFIX, departing.site)
    pods = {node_of(pod) for pod in seen.pods if daemon_set_of(pod) == daemon_set}
    return all(is_clean(departing.site, node, doc["hash"], seen, answers) for node, doc in departing.nodes.items() if node in pods)


def is_clean(site: str, node: str, absent_hash: str, seen: Seen, answers: Mapping[str, NodeAnswer]) -> bool:
    """True when the pods of a node say that it has carried out the node-config that says Absent; not without any pod."""
    daemon_set = naming.node(PREFIX, site)
    pods = [p for p in seen.pods if daemon_set_of(p) == daemon_set and node_of(p) == node]
    said = [answers.get(pod["metadata"]["uid"]) for pod in pods]
    return bool(said) and all(a is not None and a.hash == absent_hash and a.state == "Ready" and not a.bridge for a in said)


def urgent_pods(seen: Seen, departing: tuple[Departing, ...]) -> frozenset[str]:
    """Uids of pods whose node process is asked in every pass: not ready yet, or of a departing site."""
    going = {naming.node(PREFIX, gone.site) for gone in departing}
    return frozenset(p["metadata"]["uid"] for p in seen.pods if daemon_set_of(p) in going or pod_state(p).state != "Ready")
