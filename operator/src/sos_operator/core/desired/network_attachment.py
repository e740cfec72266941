"""DaemonSets whose pods need a network from Multus, in a cluster that may lack Multus."""

from __future__ import annotations

from collections.abc import Iterable

import sos_compile
from sos_compile.manifests import naming
from sos_compile.manifests.agent import NETWORKS_ANNOTATION

from sos_operator.core.model.cluster_objects import DaemonSet
from sos_operator.core.model.kinds import DAEMON_SET
from sos_operator.core.model.objects import Object, Ref
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.plan import ref_of


def unattachable(manifests: Iterable[Object]) -> frozenset[Ref]:
    """DaemonSets whose pods need a network from Multus: without Multus, the pods would start without this network and fail.

    The running DaemonSet stays until Multus is installed or the pool is changed back.
    """

    return frozenset(ref_of(m) for m in manifests if m["kind"] == DAEMON_SET.kind and _has_networks(DaemonSet.parse(m)))


def _has_networks(daemon_set: DaemonSet) -> bool:
    return NETWORKS_ANNOTATION in daemon_set.template_annotations


def attached_by_nodes(compiled: sos_compile.Compiled, seen: Seen) -> frozenset[str]:
    """Sites whose running agents are still attached by the nodes, while the desired agents need a network from Multus."""
    waiting = {ref.name for ref in unattachable(compiled.manifests)}
    pools = {(naming.agent(PREFIX, pool, doc["site"]["name"]), doc["site"]["name"]) for (pool, _), doc in compiled.agents.items()}
    here = {name: seen.child(DaemonSet, name) for name, _ in pools if name in waiting}
    return frozenset(site for name, site in pools if (found := here.get(name)) and not _has_networks(found))
