"""Number of pods that Kubernetes should run, by component and site: the reference by which alerts detect absent pods.

Counted from the workloads' own status, because Kubernetes knows which nodes a DaemonSet runs on: a node that is drained of agents has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sos_compile.manifests.common import SITE_LABEL

from sos_operator.core.model.cluster_objects import DaemonSet, Deployment
from sos_operator.core.model.objects import Resource
from sos_operator.core.plan import owned

Group = tuple[str, str]
"""Component and site; the site of a controller is empty."""


def expected_pods(children: Iterable[Resource]) -> Mapping[Group, int]:
    """Count the pods of all workloads that are not being deleted. A group without pods is left out: an alert must not miss it."""
    found: Counter[Group] = Counter()
    for child in children:
        if isinstance(child, DaemonSet | Deployment) and owned(child) and not child.leaving:
            found[child.component, child.meta.labels.get(SITE_LABEL, "")] += child.desired
    return {group: count for group, count in sorted(found.items()) if count}
