"""What the cluster should hold: the compilation of all objects, with the nodes of departing sites told to clean up."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sos_compile
from sos_compile.manifests import naming
from sos_compile.manifests.agent import NETWORKS_ANNOTATION
from sos_compile.model.formats import MAX_GENERATION

from sos_operator.core.kinds import CONFIG_MAP, DAEMON_SET, SECRET, SITE
from sos_operator.core.nodes import NodeAnswer
from sos_operator.core.options import Settings
from sos_operator.core.plan import Ref, digest, ref_of
from sos_operator.core.pods import pod_state
from sos_operator.core.secrets import labels
from sos_operator.core.world import PREFIX, Object, Seen, absent, leaving, node_of

CLEANUP_FINALIZER = "sos.network/site-cleanup"
CONFIG_ANNOTATION = "sos.network/config-hash"
CONTROLLER_LABEL = "sos.network/controller"
STATE_NAME = naming.child(PREFIX, "operator", "state")


@dataclass(frozen=True, slots=True)
class Departing:
    """A site that is being deleted: its nodes must take their bridges down before their pods go."""

    site: str
    nodes: Mapping[str, Mapping[str, Any]]
    """Node name -> the node-config that says Absent."""
    manifests: tuple[Object, ...]
    keeps: frozenset[Ref] = frozenset()
    """Children that stay as they are until then."""

    def issued(self, newest: int, before: Mapping[str, int]) -> Departing:
        """The same with a generation in each document: the one it was issued under, or the newest."""
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
            # It is wrong at the moment, or has no node any more: what its nodes have is what was made of it before.
            found.append(Departing(site, nodes, (with_documents(anew(config_map), nodes),), frozenset({ref_of(daemon_set)})))
    return tuple(sorted(found, key=lambda d: d.site))


def documents(config_map: Object | None) -> dict[str, dict[str, Any]]:
    """The node-configs in a ConfigMap by node; what is none is left out."""
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
    """Whether it has the shape of one, as far as it is looked into here. Others may write into a ConfigMap."""
    if not isinstance(document, dict) or not all(isinstance(document.get(key), kind) for key, kind in _SHAPE.items()):
        return False
    if not all(isinstance(item, dict) for key in ("baseFlows", "tunnels") for item in document[key]):
        return False
    return bool(0 < document["generation"] <= MAX_GENERATION)


def read_json(text: str) -> Any:
    """JSON without fractions, NaN and the like: no document has any, and some do not go into a hash. Raises ValueError."""
    return json.loads(text, parse_constant=_refuse, parse_float=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is in no document")


def anew(child: Object | None) -> Object:
    """A child of ours as it would be applied: without what the API server has added."""
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
    """The DaemonSet, on these nodes as well: terms are alternatives."""
    if not nodes:
        return daemon_set
    changed = copy.deepcopy(daemon_set)
    affinity = changed
    for key in ("spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        affinity = affinity.setdefault(key, {})  # somebody else may have taken it away
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    terms = [term for term in affinity.get("nodeSelectorTerms") or [] if term.get("matchExpressions")]
    affinity["nodeSelectorTerms"] = [*terms, *named]
    return changed


def held_refs(compiled: sos_compile.Compiled, settings: Settings) -> frozenset[Ref]:
    """Children of objects that are wrong at the moment: what is there stays, so that a slip never takes a site's switches away."""
    return frozenset(Ref(kind, settings.namespace, name) for kind, name in compiled.held)


def unattachable(manifests: Iterable[Object]) -> frozenset[Ref]:
    """DaemonSets whose pods need a network that a cluster without Multus does not give them: they would start without it and fail.

    What runs in their place stays, until somebody installs Multus or changes the pool back.
    """

    return frozenset(ref_of(m) for m in manifests if m["kind"] == DAEMON_SET.kind and _has_networks(m))


def _has_networks(daemon_set: Object) -> bool:
    template = ((daemon_set.get("spec") or {}).get("template") or {}).get("metadata") or {}
    return NETWORKS_ANNOTATION in (template.get("annotations") or {})


def attached_by_nodes(compiled: sos_compile.Compiled, seen: Seen) -> frozenset[str]:
    """Sites with agents that are attached by the nodes themselves still, in place of ones that need such a network."""
    waiting = {ref.name for ref in unattachable(compiled.manifests)}
    pools = {(naming.agent(PREFIX, pool, doc["site"]["name"]), doc["site"]["name"]) for (pool, _), doc in compiled.agents.items()}
    here = {name: seen.child(DAEMON_SET.kind, name) for name, _ in pools if name in waiting}
    return frozenset(site for name, site in pools if (found := here.get(name)) and not _has_networks(found))


def state_manifest(settings: Settings, data: Mapping[str, str]) -> Object:
    """The ConfigMap in which the operator remembers the generation it issued last."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {"name": STATE_NAME, "namespace": settings.namespace, "labels": labels(settings, "operator")},
        "data": dict(data),
    }


def with_files_of(manifests: Iterable[Object], nodes: Collection[str], seen: Seen) -> tuple[Object, ...]:
    """The manifests, with the files that ConfigMaps hold for these nodes: nobody can tell what else they should have."""
    files = {f"{node}.json" for node in nodes}
    if not files:
        return tuple(manifests)
    there = {o["metadata"]["name"]: o.get("data") or {} for o in seen.children if o["kind"] == CONFIG_MAP.kind}
    found = []
    for manifest in manifests:
        kept = files & there.get(manifest["metadata"]["name"], {}).keys() if manifest["kind"] == CONFIG_MAP.kind else set()
        data = {file: there[manifest["metadata"]["name"]][file] for file in sorted(kept)}
        found.append({**manifest, "data": {**manifest["data"], **data}} if data else manifest)
    return tuple(found)


Mount = tuple[str, str]
"""Which pod a digest is for: (DaemonSet, node) or (Deployment, "")."""


def config_hashes(compiled: sos_compile.Compiled, departing: tuple[Departing, ...], secrets: tuple[Object, ...]) -> dict[Mount, str]:
    """Digest of the files that each pod mounts and reads again when they change.

    The digest becomes an annotation of the pod. The kubelet looks at a pod's volumes at once when the pod changes, and otherwise
    up to a minute later: the annotation is what makes a new configuration arrive within a second.
    """
    folders = {s["metadata"]["name"]: digest(s["data"]) for s in secrets}
    found: dict[Mount, str] = {(naming.node(PREFIX, doc["site"]), node): digest(doc["hash"]) for node, doc in compiled.nodes.items()}
    for (pool, node), doc in compiled.agents.items():
        site = doc["site"]["name"]
        found[naming.agent(PREFIX, pool, site), node] = digest([doc["hash"], folders.get(naming.site_keys(PREFIX, site))])
    for gone in departing:
        found |= {(naming.node(PREFIX, gone.site), node): digest(document["hash"]) for node, document in gone.nodes.items()}
    for name in compiled.controllers:  # gets its documents by its API, but its keys from a Secret
        folder = folders.get(naming.controller_keys(PREFIX, name))
        found |= {(naming.controller(PREFIX, name), ""): folder} if folder else {}
    return found


def mount_of(pod: Object) -> Mount:
    """Which digest is for this pod."""
    controller = (pod["metadata"].get("labels") or {}).get(CONTROLLER_LABEL)
    if controller:
        return naming.controller(PREFIX, controller), ""
    return daemon_set_of(pod), node_of(pod)


def pokes(seen: Seen, hashes: Mapping[Mount, str], unapplied: frozenset[Ref]) -> list[tuple[Object, Object]]:
    """Pods whose annotation has to change, with the patch for each.

    `unapplied` are children whose apply belongs to this very pass: a kubelet woken now might still hold the old files, so their
    pods wait for the next pass.
    """
    if any(ref.kind == SECRET.kind for ref in unapplied):
        return []
    fresh = {ref.name for ref in unapplied if ref.kind == CONFIG_MAP.kind}
    found = []
    for pod in seen.pods:
        mount, meta = mount_of(pod), pod["metadata"]
        wanted = hashes.get(mount)
        if wanted is None or mount[0] in fresh or leaving(pod) or (meta.get("annotations") or {}).get(CONFIG_ANNOTATION) == wanted:
            continue
        found.append((pod, {"metadata": {"uid": meta["uid"], "annotations": {CONFIG_ANNOTATION: wanted}}}))
    return found


def daemon_set_of(pod: Object) -> str:
    """Name of the DaemonSet that a pod belongs to, empty if none."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(o["name"]) for o in owners if o.get("kind") == DAEMON_SET.kind), "")


def finalizer_patch(site: Object, wanted: bool) -> Object | None:
    """The merge patch that gives a site our finalizer or takes it away; None if it is as wanted."""
    meta = site["metadata"]
    present = list(meta.get("finalizers") or [])
    if wanted == (CLEANUP_FINALIZER in present):
        return None
    changed = [*present, CLEANUP_FINALIZER] if wanted else [f for f in present if f != CLEANUP_FINALIZER]
    # The resource version makes the list safe to write: somebody else's finalizer must not be lost.
    return {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": changed}}


def cleaned(departing: Departing, seen: Seen, answers: Mapping[str, NodeAnswer]) -> bool:
    """True when every node of a departing site says that it has taken away what was made on it.

    A node without a pod has nobody left to wait for; a pod that does not answer is waited for (by the caller, not for ever).
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
    """Uids of pods whose own word is needed in every pass: not ready yet, or of a departing site."""
    going = {naming.node(PREFIX, gone.site) for gone in departing}
    return frozenset(p["metadata"]["uid"] for p in seen.pods if daemon_set_of(p) in going or pod_state(p).state != "Ready")
