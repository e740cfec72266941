"""A network plugin in place of kind's: kube-router, with one bridge for all pods of a node, and routes between nodes by BGP.

kind's own plugin connects each pod to its node by a point-to-point link; with a bridge, pods of a node reach each other without the node's
routing table. kube-router enforces NetworkPolicies, too.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from sos_e2e.environment import kube_router
from sos_e2e.environment.kube_router import NAME, NAMESPACE
from sos_e2e.kube import Kube
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import Settings

FOLDER, FILE = "/etc/cni/net.d", "10-kuberouter.conflist"
PROGRAMS = "/opt/cni/bin"
DEFAULT_SERVICES = "10.96.0.0/16"  # kind's range of Services
READY_S = 240
# kube-router adds the pod network of the node.
CNI_CONFIG = {
    "cniVersion": "0.3.1",
    "name": "mynet",
    "plugins": [
        {"name": "kubernetes", "type": "bridge", "bridge": "kube-bridge", "isDefaultGateway": True, "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def version(settings: Settings) -> str:
    """Network plugin of a run, with the CNI program that connects a pod to its node."""
    return f"{settings.network_plugin} {kube_router.version()} (bridge)" if settings.network_plugin else "kind's own (ptp)"


def without_default(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kind configuration without kind's network plugin."""
    return {**config, "networking": {**config.get("networking", {}), "disableDefaultCNI": True}}


def manifests(services: str) -> list[dict[str, Any]]:
    """All objects. `services`: the range of the cluster's Services."""
    arguments = [
        "--run-router=true",
        "--run-firewall=true",
        "--run-service-proxy=false",
        "--enable-overlay=false",  # the nodes are in one subnet
        f"--service-cluster-ip-range={services}",
    ]
    folder = {"name": "folder", "mountPath": FOLDER}
    file = {"name": "KUBE_ROUTER_CNI_CONF_FILE", "value": f"{FOLDER}/{FILE}"}
    copy = {
        "name": "configuration",
        "image": kube_router.IMAGE,
        "imagePullPolicy": "Never",
        # A pod that starts again keeps the file, to which kube-router has added the node's pod network.
        "command": ["sh", "-c", f"test -e {FOLDER}/{FILE} || cp /configuration/{FILE} {FOLDER}/{FILE}"],
        "volumeMounts": [folder, {"name": "configuration", "mountPath": "/configuration"}],
    }
    pod = {
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-node-critical",
        "initContainers": [copy],
        "containers": [kube_router.container(arguments, env=[file], volumeMounts=[folder])],
        "volumes": [
            {"name": "folder", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}},
            {"name": "configuration", "configMap": {"name": NAME}},
        ],
    }
    data = {FILE: json.dumps(CNI_CONFIG)}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data},
        *kube_router.objects(pod),
    ]


def missing(pod_networks: Mapping[str, str], node: str, routes: str) -> list[str]:
    """Pod networks of other nodes that a node's routing table lacks."""
    there = {line.split()[0] for line in routes.splitlines() if line.strip()}
    return sorted(network for name, network in pod_networks.items() if name != node and network not in there)


def install(settings: Settings, config: Mapping[str, Any], nodes: Sequence[str]) -> None:
    """Install the plugin in a cluster of these nodes, and wait until they are ready and have routes to each other's pods."""
    say(f"installing {settings.network_plugin} as network plugin")
    bridge = kube_router.tool("cni-bridge")
    for node in nodes:
        # kind's node images have only the programs of kind's own plugin.
        if subprocess.run(["docker", "exec", node, "test", "-x", f"{PROGRAMS}/bridge"], check=False).returncode:
            run("docker", "cp", bridge, f"{node}:{PROGRAMS}/bridge")
    kube_router.load(settings, *nodes)
    kube = Kube(settings)
    kube.apply(*manifests(config["networking"].get("serviceSubnet", DEFAULT_SERVICES)))
    wait_for("nodes with routes to each other's pods", lambda: _routed(kube, nodes), READY_S)
    kube.ctl("wait", "--for=condition=Ready", "nodes", "--all", f"--timeout={READY_S}s", timeout=READY_S + 30)


def _routed(kube: Kube, nodes: Sequence[str]) -> bool:
    networks = {node["metadata"]["name"]: node["spec"].get("podCIDR", "") for node in kube.items("nodes")}
    if absent := sorted(set(nodes) - {name for name, network in networks.items() if network}):
        raise LookupError(f"no pod network yet: {', '.join(absent)}")
    for node in nodes:
        if lacks := missing(networks, node, run("docker", "exec", node, "ip", "route")):
            raise LookupError(f"{node} has no route to {', '.join(lacks)}")
    return True
