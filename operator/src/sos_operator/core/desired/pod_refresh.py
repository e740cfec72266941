"""Refresh the files that pods mount: a changed annotation makes the kubelet update a pod's volumes immediately."""

from __future__ import annotations

from collections.abc import Mapping

import sos_compile
from sos_compile.manifests import naming
from sos_compile.manifests.controller import MAX_REPLICAS

from sos_operator.core.desired.departure import Departing
from sos_operator.core.model.cluster_objects import Pod
from sos_operator.core.model.kinds import CONFIG_MAP, SECRET
from sos_operator.core.model.objects import Object, Ref
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.plan import digest

CONFIG_ANNOTATION = "sos.network/config-hash"


CONTROLLER_LABEL = "sos.network/controller"


Mount = tuple[str, str]
"""Pod that a digest belongs to: (DaemonSet, node), or (name for the label of a controller's replica, "")."""


def config_hashes(compiled: sos_compile.Compiled, departing: tuple[Departing, ...], folders_of: tuple[Object, ...]) -> dict[Mount, str]:
    """Digest of the files that each pod mounts and reloads when they change.

    The digest becomes an annotation of the pod. A changed annotation makes the kubelet update the pod's volumes immediately, so that a new
    configuration arrives within a second. Otherwise the kubelet would take up to a minute.
    """
    folders = {s["metadata"]["name"]: digest(s["data"]) for s in folders_of}
    peers = naming.peers(PREFIX)
    found: dict[Mount, str] = {}
    for node, doc in compiled.nodes.items():
        found[naming.node(PREFIX, doc["site"]), node] = digest([doc["hash"], folders.get(naming.site_certificate(PREFIX, doc["site"]))])
    for (pool, node), doc in compiled.agents.items():
        site = doc["site"]["name"]
        files = [doc["hash"], folders.get(naming.site_keys(PREFIX, site))]
        found[naming.agent(PREFIX, pool, site), node] = digest(files + ([folders[peers]] if "wan" in doc and peers in folders else []))
    for gone in departing:
        found |= {(naming.node(PREFIX, gone.site), node): digest(document["hash"]) for node, document in gone.nodes.items()}
    for name in compiled.controllers:  # a controller gets documents by its API, but keys and certificates from Secrets
        mounted = [folders.get(secret(PREFIX, name)) for secret in (naming.controller_keys, naming.controller_certificate)]
        labels = [naming.controller_label(name, replica) for replica in range(MAX_REPLICAS)]
        found |= {(naming.controller(PREFIX, label), ""): digest(mounted) for label in labels} if any(mounted) else {}
    return found


def mount_of(pod: Pod) -> Mount:
    """Key of the digest for this pod."""
    controller = pod.meta.labels.get(CONTROLLER_LABEL)
    if controller:
        return naming.controller(PREFIX, controller), ""
    return pod.daemon_set, pod.node


def refresh_patches(seen: Seen, hashes: Mapping[Mount, str], unapplied: frozenset[Ref]) -> list[tuple[Pod, Object]]:
    """Pods whose annotation has to change, with the patch for each.

    `unapplied`: children applied in this pass. A kubelet that updated a pod's volumes now might still use their old content, so the pods
    that mount one of these ConfigMaps wait for the next pass. If a Secret is among these children, all pods wait.
    """
    if any(ref.kind == SECRET.kind for ref in unapplied):
        return []
    fresh = {ref.name for ref in unapplied if ref.kind == CONFIG_MAP.kind}
    found = []
    for pod in seen.pods:
        mount = mount_of(pod)
        wanted = hashes.get(mount)
        if wanted is None or mount[0] in fresh or pod.leaving or pod.meta.annotations.get(CONFIG_ANNOTATION) == wanted:
            continue
        found.append((pod, {"metadata": {"uid": pod.meta.uid, "annotations": {CONFIG_ANNOTATION: wanted}}}))
    return found
