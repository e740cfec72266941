"""Managed SosController -> Deployment, Services, ConfigMap, NetworkPolicy."""

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
)
from sos_compile.manifests.pod_protection import build_network_policy
from sos_compile.model.memo import Source
from sos_compile.model.resources import Controller
from sos_compile.model.world import Json, Settings

COMPONENT = "controller"
OPENFLOW_PORT = 6653  # IANA
API_PORT = 8080
FAMILY = {"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}  # switches connect by IPv4 in every cluster
USER = 65532  # "nonroot" of the usual minimal images
CONFIG, KEYS, TOKEN, STATE = "/etc/sos/config", "/etc/sos/keys", "/etc/sos/token", "/var/lib/sos"


def build_controller(controller: Controller, config: Source, settings: Settings) -> list[Json]:
    """Return the manifests of one Managed controller. The operator creates the two Secrets that its pod mounts (naming.controller_keys and
    _token)."""
    name = naming.controller(settings.prefix, controller.name)
    extra = {CONTROLLER_LABEL: controller.name}
    labels, selector = build_labels(settings, COMPONENT, extra), build_selector(settings, COMPONENT, extra)
    metadata = build_metadata(settings, name, controller.origin, labels)
    openflow = {"name": "openflow", "port": OPENFLOW_PORT, "targetPort": "openflow", "protocol": "TCP"}
    api = {"name": "api", "port": API_PORT, "targetPort": "api", "protocol": "TCP"}
    found = [
        build_config_map(metadata, {"config.json": config}),
        _deployment(controller, name, metadata, selector, settings),
        # A controller receives its configuration through this Service before it is ready, so the Service includes pods that are not ready.
        _service(metadata, {"type": "ClusterIP", "ports": [openflow, api], "publishNotReadyAddresses": True}, selector),
        *build_network_policy(metadata, selector, OPENFLOW_PORT, API_PORT, settings),
    ]
    if controller.service_type != "ClusterIP":
        # A separate Service: only OpenFlow is reachable from outside, never the API.
        outer = build_metadata(settings, naming.controller_openflow(settings.prefix, controller.name), controller.origin, labels)
        found.append(_service(outer, {"type": controller.service_type, "ports": [openflow]}, selector))
    return found


def _service(metadata: Json, spec: Json, selector: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {**spec, **FAMILY, "selector": selector}}


def _deployment(controller: Controller, name: str, metadata: Json, selector: dict[str, str], settings: Settings) -> Json:
    pod = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **priority(settings.controller_priority),
        **controller.placement,
        "terminationGracePeriodSeconds": 10,
        "containers": [_container(controller, settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": name}},
            {"name": "keys", "secret": {"secretName": naming.controller_keys(settings.prefix, controller.name), "defaultMode": 0o440}},
            {"name": "token", "secret": {"secretName": naming.controller_token(settings.prefix, controller.name), "defaultMode": 0o440}},
            {"name": "state", "emptyDir": {"sizeLimit": "64Mi"}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # two controllers with one id would undo each other's entries
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
            mount("state", STATE),
            mount("tmp", "/tmp"),  # noqa: S108 - a volume of the pod's own
        ],
    }
