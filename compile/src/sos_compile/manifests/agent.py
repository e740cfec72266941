"""SosAgent at a SosSite -> the DaemonSet of agents with their agent-configs, its PodDisruptionBudget; with attach Multus, their network."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sos_compile.documents.node_config import BRIDGE
from sos_compile.manifests import naming
from sos_compile.manifests.common import (
    POOL_LABEL,
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
    security_context,
    service_account,
)
from sos_compile.manifests.pod_protection import build_agent_policy, build_disruption_budget
from sos_compile.model.memo import Source
from sos_compile.model.network import AGENT_OFPORT, PlacedSite
from sos_compile.model.resources import Pool
from sos_compile.model.world import Json, Settings

COMPONENT = "agent"
CONFIG, KEYS, STATE = "/etc/sos/agent", "/etc/sos/keys", "/var/lib/sos/agent"
PEERS = "/etc/sos/peers"
PEERS_FILE = f"{PEERS}/peers.json"  # spec/card.md clause 12
STOP_MARGIN_S = 15  # time after draining to reset the remaining sessions and exit
NETWORKS_ANNOTATION = "k8s.v1.cni.cncf.io/networks"
INTERFACE = "net0"  # interface name in agent-configs
NETNS = "/run/netns"  # network namespaces of the node's pods, as container runtimes mount them
CAPABILITIES = ["NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SYS_ADMIN"]  # reason of each: agent-image/Dockerfile


def build_agents(pool: Pool, placed: PlacedSite, slot: int, configs: Mapping[str, Source], settings: Settings) -> list[Json]:
    """Return the manifests of a pool's agents at one site; `configs` maps nodes to agent-configs."""
    name = naming.agent(settings.prefix, pool.name, placed.site.name)
    extra = {SITE_LABEL: placed.site.name, POOL_LABEL: pool.name}
    labels = build_labels(settings, COMPONENT, extra)
    metadata, selector = build_metadata(settings, name, pool.origin, labels), build_selector(settings, COMPONENT, extra)
    spec = {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": selector},
        "template": _template(pool, placed, name, slot, settings),
    }
    daemon_set = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
    config_map = build_config_map(metadata, {f"{node}.json": config for node, config in configs.items()})
    found = [config_map, daemon_set, *build_disruption_budget(metadata, selector, len(configs))]
    if _uses_multus(pool, placed):
        found += [_network(pool, placed, slot, settings), *build_agent_policy(metadata, selector, settings.ports.agents + slot, settings)]
    return found


def _uses_multus(pool: Pool, placed: PlacedSite) -> bool:
    return pool.attach == "Multus" and not placed.site.routed


def _template(pool: Pool, placed: PlacedSite, name: str, slot: int, settings: Settings) -> Json:
    labels = build_labels(settings, COMPONENT, {SITE_LABEL: placed.site.name, POOL_LABEL: pool.name})
    pod = build_pod(settings, labels, _pod(pool, placed, name, slot, settings))
    if _uses_multus(pool, placed):
        network = naming.agent_network(settings.prefix, pool.name, placed.site.name)
        wanted = [{"name": network, "namespace": settings.namespace, "interface": INTERFACE}]
        pod["metadata"]["annotations"] = {NETWORKS_ANNOTATION: json.dumps(wanted)}
    return pod


def _network(pool: Pool, placed: PlacedSite, slot: int, settings: Settings) -> Json:
    """Return the agents' NetworkAttachmentDefinition.

    It has no IPAM: an agent configures the address that the operator has allocated to it (SosSite.status.nodes), which is unique over all
    nodes. The port has the number used in the node-config's guards. A node has one agent of a pool, so one network per pool and site can
    request that number.
    """
    name = naming.agent_network(settings.prefix, pool.name, placed.site.name)
    labels = build_labels(settings, COMPONENT, {SITE_LABEL: placed.site.name, POOL_LABEL: pool.name})
    metadata = build_metadata(settings, name, pool.origin, labels)
    config = {
        "cniVersion": "1.0.0",
        "name": name,
        "type": "ovs",
        "bridge": BRIDGE,
        "mtu": placed.site.mtu,
        "ofport_request": AGENT_OFPORT + slot,
        "socket_file": f"unix:{settings.ovs_rundir}/db.sock",
    }
    spec = {"config": json.dumps(config, separators=(",", ":"))}
    return {"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": spec}


def _pod(pool: Pool, placed: PlacedSite, name: str, slot: int, settings: Settings) -> Json:
    keys = naming.site_keys(settings.prefix, placed.site.name)
    return {
        # With attach Multus, the pod has its own network namespace: the first interface is for probes and metrics, the second is on the
        # bridge.
        **({} if _uses_multus(pool, placed) else {"hostNetwork": True}),
        "dnsPolicy": "Default",
        **service_account(settings.service_accounts.agent),
        **priority(settings.node_priority),
        "terminationGracePeriodSeconds": pool.drain_s + STOP_MARGIN_S,
        "tolerations": [{"operator": "Exists"}],
        "affinity": build_node_affinity(placed, pool.node_selector, unwanted=(naming.drain_label(pool.name),)),
        "containers": [_container(pool, placed, settings.ports.agents + slot, settings)],
        "volumes": [
            {"name": "config", "configMap": {"name": name}},
            {"name": "keys", "secret": {"secretName": keys, "defaultMode": 0o400}},
            host_path("state", f"{settings.state_dir}/agent-{pool.name}", "DirectoryOrCreate"),
            *([host_path("netns", NETNS, "DirectoryOrCreate")] if _enters_pods(placed) else []),
            # Absent in a cluster without peers.
            *([{"name": "peers", "configMap": {"name": naming.peers(settings.prefix), "optional": True}}] if placed.site.routed else []),
        ],
    }


def _enters_pods(placed: PlacedSite) -> bool:
    return placed.site.intake is not None and placed.site.intake.type == "Pods"


def _container(pool: Pool, placed: PlacedSite, port: int, settings: Settings) -> Json:
    own = pool.attach == "Host" and not placed.site.routed
    netns = {**mount("netns", NETNS), "mountPropagation": "HostToContainer"}
    return {
        "name": "agent",
        "image": pool.image or settings.images.agent,
        "imagePullPolicy": settings.pull_policy,
        "args": [
            *("--config", CONFIG),
            *("--node", "$(NODE_NAME)"),
            *("--keys", KEYS),
            *("--state", STATE),
            *("--attach", "host" if own else "none"),
            *(("--netns", NETNS) if _enters_pods(placed) else ()),
            *(("--peers", PEERS_FILE) if placed.site.routed else ()),
            *("--log-format", "json"),
        ],
        "env": [node_name_variable(), {"name": "RUST_LOG", "value": settings.log_level}],
        "ports": [_port(port, on_host=not _uses_multus(pool, placed))],
        # The profiles of container runtimes forbid the remount of /proc/sys that the agent's own namespace needs.
        "securityContext": {**security_context(CAPABILITIES), "appArmorProfile": {"type": "Unconfined"}},
        "livenessProbe": http_probe("/healthz", port, period_s=10, failures=3),
        "readinessProbe": http_probe("/readyz", port, period_s=2, failures=3),
        "resources": pool.resources or settings.resources.agent,
        "volumeMounts": [
            mount("config", CONFIG, read_only=True),
            mount("keys", KEYS, read_only=True),
            mount("state", STATE),
            *([netns] if _enters_pods(placed) else []),
            *([mount("peers", PEERS, read_only=True)] if placed.site.routed else []),
        ],
    }


def _port(port: int, *, on_host: bool) -> Json:
    shared = {"hostPort": port} if on_host else {}  # the node's own addresses
    return {"name": f"http-agent-{port}", "containerPort": port, **shared, "protocol": "TCP"}
