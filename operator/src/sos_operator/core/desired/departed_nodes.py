"""Departed nodes of a site that stays: take their bridges down before their pods are deleted.

A node departs when its labels or the site's selector change. Its DaemonSet would delete its pods immediately, and no process would be left
to remove bridge, tunnels and uplinks. So the DaemonSet names a departed node until the node reports that it is clean. The node gets an
Absent node-config only when its agents' pods are gone, so that the agents can finish their sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sos_compile.manifests import naming

from sos_operator.core.desired.departure import Departing, documents, is_clean, on_nodes, rebuild_manifest, with_documents
from sos_operator.core.model.cluster_objects import ConfigMap, DaemonSet, Pod
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.objects import Object
from sos_operator.core.model.world import PREFIX, Seen, absent
from sos_operator.core.plan import ref_of

Place = tuple[str, str]
"""Site and node."""


def left_nodes(sites: Collection[str], nodes: Collection[str], seen: Seen) -> tuple[Departing, ...]:
    """Departed nodes of `sites`: nodes that have a node-config and are still in the cluster, but are not among `nodes`.

    Sites that are currently invalid or being deleted are not among `sites`: the nodes of an invalid site stay unchanged, and `departure`
    cleans the nodes of a deleted site.
    """
    present = {node.name for node in seen.nodes if not node.leaving}
    busy = {pod.node for pod in seen.pods if pod.component == "agent" and not _is_without_bridge(pod)}
    found = []
    for site in (o.name for o in seen.of(SosSite) if o.name in sites and not o.leaving):
        child = naming.node(PREFIX, site)
        if seen.child(DaemonSet, child) is None:
            continue
        given = documents(seen.child(ConfigMap, child))
        gone = {}
        for node in given.keys() & present - set(nodes):
            told = given[node]["state"] == "Absent"
            if (site, node) in seen.given_up or (told and is_clean(site, node, given[node]["hash"], seen, seen.answers)):
                continue
            gone[node] = given[node] if node in busy and not told else absent(given[node])
        if gone:
            found.append(Departing(site, dict(sorted(gone.items())), ()))
    return tuple(sorted(found, key=lambda d: d.site))


def _is_without_bridge(pod: Pod) -> bool:
    """Return whether an agent uses its node's network and is attached to no bridge: it stays when the node's bridge is removed."""
    return pod.host_network and any("none" in container.args for container in pod.containers)


def with_left(manifests: Iterable[Object], left: Iterable[Departing], seen: Seen) -> tuple[Object, ...]:
    """Add the documents of departed nodes to their sites' ConfigMaps, and these nodes to the DaemonSets."""
    by_ref = {ref_of(manifest): manifest for manifest in manifests}
    for departing in left:
        child = naming.node(PREFIX, departing.site)
        for there, extended in ((seen.child(ConfigMap, child), with_documents), (seen.child(DaemonSet, child), on_nodes)):
            if there is not None:
                # A site whose last node has departed has no rendered children: extend the children in the cluster instead.
                by_ref[there.ref] = extended(by_ref.get(there.ref) or rebuild_manifest(there), departing.nodes)
    return tuple(by_ref.values())
