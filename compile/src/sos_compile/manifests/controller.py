"""Managed SosController -> ConfigMap, and a Deployment, Services and a NetworkPolicy for each replica.

Each replica has a Deployment and Services of its own, so that every switch connects to both replicas at addresses that outlast their pods.
"""

from __future__ import annotations

from sos_compile.manifests import naming
from sos_compile.manifests.common import (
    CONTROLLER_LABEL,
    build_config_map,
    build_labels,
    build_metadata,
    build_pod,
    build_selector,
    http_probe,
    mount,
    priority,
    secret_volume,
    service_account,
)
from sos_compile.manifests.pod_protection import build_network_policy
from sos_compile.model.memo import Source
from sos_compile.model.resources import Controller
from sos_compile.model.world import Json, Settings

COMPONENT = "controller"
MAX_REPLICAS = 2
LOST_NODE_S = 10
"""Time after which a pod on a lost node is replaced, instead of Kubernetes' default of 300 s. A controller has no data to wait for."""
LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
HOSTNAME = "kubernetes.io/hostname"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OPENFLOW_PORT = 6653  # IANA
API_PORT = 8080
FAMILY = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}  # switches connect by IPv4 in every cluster
CONFIG, KEYS, TOKEN, STATE = "/etc/sos/config", "/etc/sos/keys", "/etc/sos/token", "/var/lib/sos"
TLS = "/etc/sos/tls"


def build_controller(controller: Controller, config: Source, settings: Settings) -> list[Json]:
    """Return the manifests of one Managed controller. The operator creates the three Secrets that its pod mounts (naming.controller_keys,
    _token and _certificate)."""
    labels = build_labels(settings, COMPONENT, {CONTROLLER_LABEL: controller.name})
    metadata = build_metadata(settings, naming.controller(settings.prefix, controller.name), controller.origin, labels)
    found = [build_config_map(metadata, {"config.json": config})]
    for replica in range(controller.replicas):
        found += _build_replica(controller, replica, settings)
    return found


def _build_replica(controller: Controller, replica: int, settings: Settings) -> list[Json]:
    extra = {CONTROLLER_LABEL: naming.controller_label(controller.name, replica)}
    labels, selector = build_labels(settings, COMPONENT, extra), build_selector(settings, COMPONENT, extra)
    metadata = build_metadata(settings, naming.controller(settings.prefix, controller.name, replica), controller.origin, labels)
    openflow = {"name": "openflow", "port": OPENFLOW_PORT, "targetPort": "openflow", "protocol": "TCP"}
    api = {"name": "api", "port": API_PORT, "targetPort": "api", "protocol": "TCP"}
    found = [
        _deployment(controller, metadata, selector, settings),
        # A controller receives its configuration through this Service before it is ready, so the Service includes pods that are not ready.
        _service(metadata, {"type": "ClusterIP", "ports": [openflow, api], "publishNotReadyAddresses": True}, selector),
        *build_network_policy(metadata, selector, OPENFLOW_PORT, API_PORT, settings),
    ]
    if controller.service_type != "ClusterIP":
        # A separate Service: only OpenFlow is reachable from outside, never the API.
        outer = build_metadata(settings, naming.controller_openflow(settings.prefix, controller.name, replica), controller.origin, labels)
        found.append(_service(outer, {"type": controller.service_type, "ports": [openflow]}, selector))
    return found


def _placement(controller: Controller, settings: Settings) -> Json:
    """Return the pod's placement: as declared, never on the node of the other replica, and not for long on a lost node."""
    placement = dict(controller.placement)
    declared = placement.get("tolerations", [])
    tolerated = {each.get("key") for each in declared}
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_S}
        for key in LOST
        if not tolerated & {key, None}  # without a key, a toleration is for every taint
    ]
    if declared or lost:
        placement["tolerations"] = [*declared, *lost]
    if controller.replicas > 1:
        placement["affinity"] = _apart(placement.get("affinity", {}), controller, settings)
    return placement


def _apart(declared: Json, controller: Controller, settings: Settings) -> Json:
    """Add to an affinity that the replicas are on different nodes. The API server checks the declared content."""
    others = declared.get("podAntiAffinity") or {}
    values = [naming.controller_label(controller.name, replica) for replica in range(controller.replicas)]
    selector = {
        "matchLabels": build_selector(settings, COMPONENT, {}),
        "matchExpressions": [{"key": CONTROLLER_LABEL, "operator": "In", "values": values}],
    }
    term = {"labelSelector": selector, "topologyKey": HOSTNAME}
    if not isinstance(others, dict) or not isinstance(others.get(REQUIRED) or [], list):
        return declared
    return {**declared, "podAntiAffinity": {**others, REQUIRED: [*(others.get(REQUIRED) or []), term]}}


def _service(metadata: Json, spec: Json, selector: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {**spec, **FAMILY, "selector": selector}}


def _deployment(controller: Controller, metadata: Json, selector: dict[str, str], settings: Settings) -> Json:
    pod = {
        **service_account(settings.service_accounts.controller),
        "securityContext": settings.pod_security,
        **priority(settings.controller_priority),
        **_placement(controller, settings),
        "terminationGracePeriodSeconds": 10,
        "containers": [_container(controller, settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": naming.controller(settings.prefix, controller.name)}},
            secret_volume("keys", naming.controller_keys(settings.prefix, controller.name), 0o440),
            secret_volume("token", naming.controller_token(settings.prefix, controller.name), 0o440),
            secret_volume("tls", naming.controller_certificate(settings.prefix, controller.name), 0o440),
            {"name": "state", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # two controllers with one id that do not elect would undo each other's entries
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": selector},
        "template": build_pod(settings, metadata["labels"], pod),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _container(controller: Controller, settings: Settings) -> Json:
    return {
        "name": "controller",
        "image": controller.image or settings.images.controller,
        "imagePullPolicy": settings.pull_policy,
        "args": [
            *("--config", f"{CONFIG}/config.json"),
            *("--keys", KEYS),
            *("--token-file", f"{TOKEN}/token"),
            *("--openflow-listen", f"0.0.0.0:{OPENFLOW_PORT}"),
            *("--openflow-tls", TLS),
            *("--api-listen", f"0.0.0.0:{API_PORT}"),
            *("--state", STATE),
            *("--log-level", settings.log_level),
            *("--log-format", "json"),
        ],
        "ports": [
            {"name": "openflow", "containerPort": OPENFLOW_PORT, "protocol": "TCP"},
            {"name": "api", "containerPort": API_PORT, "protocol": "TCP"},
        ],
        "livenessProbe": http_probe("/healthz", "api", period_s=10, failures=3),
        "readinessProbe": http_probe("/readyz", "api", period_s=2, failures=3),
        "startupProbe": http_probe("/healthz", "api", period_s=1, failures=60),
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "resources": controller.resources or settings.resources.controller,
        "volumeMounts": [
            mount("config", CONFIG, read_only=True),
            mount("keys", KEYS, read_only=True),
            mount("token", TOKEN, read_only=True),
            mount("tls", TLS, read_only=True),
            mount("state", STATE),
            mount("tmp", "/tmp"),  # noqa: S108 - a volume of the pod's own
        ],
    }
