"""A kind cluster with one node per switch of example 01: west, east and two transit nodes."""

import json

import yaml

from sos_e2e.run import run, say
from sos_e2e.settings import Settings

# site -> role; the control plane doubles as the second transit node
SITES = {"core2": "control-plane", "west": "worker", "east": "worker", "core1": "worker"}


def create(settings: Settings) -> dict[str, str]:
    """Create the cluster and return site -> node name. Nodes carry the label that the example's sites select."""
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role, "labels": {"sos.network/site": site}} for site, role in SITES.items()],
    }
    path = settings.out / "kind.yaml"
    path.write_text(yaml.safe_dump(config))
    image = ("--image", settings.node_image) if settings.node_image else ()
    say(f"creating kind cluster {settings.cluster} with {len(SITES)} nodes")
    run("kind", "create", "cluster", "--name", settings.cluster, "--config", path, "--kubeconfig", settings.kubeconfig,
        "--wait", "180s", *image, timeout=420)  # fmt: skip
    nodes = json.loads(run("kubectl", "--kubeconfig", settings.kubeconfig, "get", "nodes", "-o", "json"))["items"]
    return {node["metadata"]["labels"]["sos.network/site"]: node["metadata"]["name"] for node in nodes}


def delete(settings: Settings) -> None:
    """Delete the cluster; safe when it is half made or gone."""
    run("kind", "delete", "cluster", "--name", settings.cluster, "--kubeconfig", settings.kubeconfig, timeout=180, check=False)


def names(settings: Settings) -> list[str]:
    """Names of all node containers, of sites or not."""
    return sorted(run("kind", "get", "nodes", "--name", settings.cluster).split())


def pid(node: str) -> int:
    """Process id of a node container's init: the handle on its network namespace."""
    return int(run("docker", "inspect", "--format", "{{.State.Pid}}", node))
