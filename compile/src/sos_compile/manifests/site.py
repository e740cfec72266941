"""SosSite -> the DaemonSet of Open vSwitch and sos-node with its node-configs, and the NetworkAttachmentDefinition."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sos_compile.documents.node_config import BRIDGE, rewrites
from sos_compile.manifests import naming
from sos_compile.manifests.common import (
    SITE_LABEL,
    build_config_map,
    build_labels,
    build_metadata,
    build_node_affinity,
    build_pod,
    build_selector,
    host_path,
    http_probe,
    mount,
    node_name_variable,
    priority,
    secret_volume,
    security_context,
    service_account,
)
from sos_compile.manifests.kernel_modules import build_modules, module_volumes
from sos_compile.model.memo import Source
from sos_compile.model.network import PlacedSite
from sos_compile.model.resources import Site
from sos_compile.model.world import Json, Settings

COMPONENT = "node"
CONFIG = "/etc/sos/node"
TLS = "/etc/sos/tls"
OVS_CAPABILITIES = ["IPC_LOCK", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_NICE"]
STOP_S = 60
"""Time limit of a stop. Without an operator, sos-node waits 20 s for a poll and then removes the bridge in at most 20 s
(spec/node-config.md clause 45); Open vSwitch, which waits for it for up to 42 s, then saves its entries."""
NODE_CAPABILITIES = ["NET_ADMIN", "NET_RAW", "SYS_ADMIN"]  # SYS_ADMIN: to enter pods' network namespaces (agent-image/Dockerfile)


def build_site(placed: PlacedSite, configs: Mapping[str, Source], settings: Settings) -> list[Json]:
    """Return the DaemonSet and ConfigMap of a site with nodes; `configs` maps its nodes to their node-configs."""
    name = naming.node(settings.prefix, placed.site.name)
    extra = {SITE_LABEL: placed.site.name}
    labels = build_labels(settings, COMPONENT, extra)
    metadata = build_metadata(settings, name, placed.site.origin, labels)
    spec = {
        # Replacing Open vSwitch interrupts the node's traffic: an administrator chooses the time, by deleting pods.
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": build_selector(settings, COMPONENT, extra)},
        "template": build_pod(settings, labels, _pod(placed, name, settings)),
    }
    daemon_set = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
    return [build_config_map(metadata, {f"{node}.json": config for node, config in configs.items()}), daemon_set]


def _pod(placed: PlacedSite, config_map: str, settings: Settings) -> Json:
    return {
        "hostNetwork": True,
        "dnsPolicy": "Default",
        **service_account(settings.service_accounts.node),
        **priority(settings.node_priority),
        "terminationGracePeriodSeconds": STOP_S,
        "tolerations": [{"operator": "Exists"}],
        "affinity": build_node_affinity(placed),
        **build_modules(placed.site, settings),
        "containers": [_ovs(placed, settings), _node(settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": config_map}},
            host_path("ovs", settings.ovs_rundir, "DirectoryOrCreate"),
            host_path("state", f"{settings.state_dir}/node", "DirectoryOrCreate"),
            host_path("netns", "/run/netns", "DirectoryOrCreate"),
            host_path("tun", "/dev/net/tun", "CharDevice"),
            # ovsdb-server keeps transaction data in a file of tmpfile(3), which supports no other folder
            {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            # Optional: the operator creates it, and a bridge without a controller forwards plainly.
            secret_volume("tls", naming.site_certificate(settings.prefix, placed.site.name), 0o400, optional=True),
            *module_volumes(placed.site, settings),
        ],
    }


def _ovs(placed: PlacedSite, settings: Settings) -> Json:
    answers = {"exec": {"command": ["sh", "-ec", _ask_daemons(settings.ovs_rundir)]}, "timeoutSeconds": 10}
    return {
        "name": "ovs",
        "image": settings.images.ovs,
        "imagePullPolicy": settings.pull_policy,
        "env": [
            {"name": "OVS_RUNDIR", "value": settings.ovs_rundir},
            {"name": "OVS_DBDIR", "value": settings.ovs_rundir},
            # Set only if offload must be off: setting the variable everywhere would replace the pods of all other sites.
            *([{"name": "OVS_USERSPACE_TSO", "value": "false"}] if rewrites(placed.site) else []),
        ],
        "resources": settings.resources.ovs,
        "securityContext": security_context(OVS_CAPABILITIES),
        # A restart interrupts the network of the node's pods for seconds: restart only after minutes of silence.
        "livenessProbe": {**answers, "periodSeconds": 30, "failureThreshold": 5, "initialDelaySeconds": 30},
        "readinessProbe": {**answers, "periodSeconds": 5, "failureThreshold": 3},
        "volumeMounts": [
            mount("ovs", settings.ovs_rundir),
            mount("tun", "/dev/net/tun"),
            mount("tmp", "/tmp"),  # noqa: S108
            mount("tls", TLS, read_only=True),
        ],
    }


def _ask_daemons(rundir: str) -> str:
    """Return a shell command that queries both daemons, because each can hang alone: only ovsdb-server answers `ovs-vsctl get`, and only
    ovs-vswitchd answers `ovs-appctl version`.

    start.sh names ovs-vswitchd's socket without a pid, so that its path is fixed. Each call gets less than half of the probe's time limit,
    so that if a daemon hangs, the message of the timed-out tool names it.
    """
    database = f"ovs-vsctl --timeout=4 --db=unix:{rundir}/db.sock get Open_vSwitch . ovs_version"
    return f"{database} >/dev/null; ovs-appctl --timeout=4 -t {rundir}/ovs-vswitchd.ctl version >/dev/null"


def _node(settings: Settings) -> Json:
    return {
        "name": "node",
        "image": settings.images.node,
        "imagePullPolicy": settings.pull_policy,
        "args": [
            *("--config", CONFIG),
            *("--node", "$(NODE_NAME)"),
            *("--state", f"{settings.state_dir}/node"),
            *("--ovs-rundir", settings.ovs_rundir),
            *("--openflow-tls", TLS),
            *("--status-file", f"{settings.state_dir}/node/status.json"),
            *("--listen", f"0.0.0.0:{settings.ports.node}"),
            # The API server, from the variables that the kubelet sets in every pod: no uplink may cut the node off from it.
            *("--anchor", "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"),
            *("--log-format", "json"),
        ],
        "env": [node_name_variable(), {"name": "RUST_LOG", "value": settings.log_level}],
        "ports": [{"name": "http-node", "containerPort": settings.ports.node, "hostPort": settings.ports.node, "protocol": "TCP"}],
        "resources": settings.resources.node,
        "securityContext": security_context(NODE_CAPABILITIES),
        "livenessProbe": http_probe("/healthz", settings.ports.node, period_s=10, failures=6),
        "readinessProbe": http_probe("/readyz", settings.ports.node, period_s=2, failures=2),
        "volumeMounts": [
            mount("config", CONFIG, read_only=True),
            mount("ovs", settings.ovs_rundir),
            mount("state", f"{settings.state_dir}/node"),
            mount("tls", TLS, read_only=True),
            {**mount("netns", "/run/netns"), "mountPropagation": "HostToContainer"},
        ],
    }


def build_network(placed: PlacedSite, settings: Settings) -> Json:
    """Return the NetworkAttachmentDefinition by which pods join the site's bridge.

    With the default IPAM a pod's annotation gives its address: `k8s.v1.cni.cncf.io/networks: [{"name": ..., "ips": ["10.0.0.11/24"]}]`.
    """
    name = naming.network(settings.prefix, placed.site.name)
    config = {
        "cniVersion": "1.0.0",
        "name": name,
        "type": "ovs",
        "bridge": BRIDGE,
        "mtu": placed.site.mtu,
        "socket_file": f"unix:{settings.ovs_rundir}/db.sock",
        **_ipam(placed.site),
    }
    labels = build_labels(settings, "network", {SITE_LABEL: placed.site.name})
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": build_metadata(settings, name, placed.site.origin, labels),
        "spec": {"config": json.dumps(config, separators=(",", ":"))},
    }


def _ipam(site: Site) -> Json:
    if site.ipam is not None:
        return {"ipam": site.ipam}
    gateway = str(site.gateway.ip) if site.gateway else None
    routes = [{"dst": to, **({"gw": via or gateway} if via or gateway else {})} for to, via in site.routes]
    return {"capabilities": {"ips": True}, "ipam": {"type": "static", **({"routes": routes} if routes else {})}}
