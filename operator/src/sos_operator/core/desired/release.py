"""Children that belong to the release and not to one object: the controllers' disruption budget, and the PodMonitors for Prometheus
Operator."""

from __future__ import annotations

from sos_compile.manifests import naming

from sos_operator.core.model.kinds import POD_DISRUPTION_BUDGET, POD_MONITOR
from sos_operator.core.model.objects import Object
from sos_operator.core.model.options import PodMonitors, Settings
from sos_operator.core.model.world import PREFIX
from sos_operator.core.secrets.secrets import labels

# Component -> regular expression of its port's name. Each agent of a node has its own port, named after the port's number.
METRICS_PORTS = {"operator": "http", "controller": "api", "agent": "http-agent-[0-9]+", "node": "http-node"}


def release_manifests(settings: Settings) -> tuple[Object, ...]:
    """Return all children of the release."""
    monitors = settings.pod_monitors
    watched = sorted(METRICS_PORTS) if monitors else ()
    return (_controllers_budget(settings), *(_pod_monitor(settings, component, monitors) for component in watched if monitors))


def _selector(settings: Settings, component: str) -> Object:
    wanted = {"name": "sos", "instance": settings.release, "component": component}
    return {"matchLabels": {f"app.kubernetes.io/{name}": value for name, value in wanted.items()}}


def _metadata(settings: Settings, name: str, component: str) -> Object:
    return {"name": name, "namespace": settings.namespace, "labels": labels(component)}


def _controllers_budget(settings: Settings) -> Object:
    """Disruption budget of all controllers, slices and replicas: one eviction at a time. (A pod can have only one budget.)

    A single controller may be evicted: each controller is one pod, connections continue as plain TCP without it, and a budget that forbade
    the eviction would block the drain of its node.
    """
    spec = {"maxUnavailable": 1, "selector": _selector(settings, "controller"), "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    metadata = _metadata(settings, naming.child(PREFIX, "controllers"), "controller")
    return {"apiVersion": POD_DISRUPTION_BUDGET.api_version, "kind": POD_DISRUPTION_BUDGET.kind, "metadata": metadata, "spec": spec}


def _pod_monitor(settings: Settings, component: str, monitors: PodMonitors) -> Object:
    """PodMonitor of one component. It selects ports by a regular expression, because the names of agents' ports contain numbers."""
    keep = {"action": "keep", "sourceLabels": ["__meta_kubernetes_pod_container_port_name"], "regex": METRICS_PORTS[component]}
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node", "action": "replace"}
    site = {"sourceLabels": ["__meta_kubernetes_pod_label_sos_network_site"], "targetLabel": "site", "action": "replace"}
    placed = [node, site] if component in ("agent", "node") else []
    metadata = _metadata(settings, naming.child(PREFIX, component), component)
    metadata["labels"] = {**dict(monitors.labels), **metadata["labels"]}
    spec = {
        "selector": _selector(settings, component),
        "podMetricsEndpoints": [{"path": "/metrics", "interval": monitors.interval, "relabelings": [keep, *placed]}],
    }
    return {"apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.kind, "metadata": metadata, "spec": spec}
