"""A kind cluster: two nodes at each site of example 01, two transit nodes, and a node without a site."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sos_e2e.environment import network_plugin
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import Settings

PLACE_LABEL = "sos-e2e/place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Role of a node in the cluster."""

    site: str | None  # the label that SosSites select; None: no site until a test labels it
    role: str = "worker"
    small: bool = True  # also in the small cluster


# The first node of a site has the site's name; the control plane doubles as the second transit node.
PLACES = {
    "core2": Place(site="core2", role="control-plane"),
    "west": Place(site="west"),
    "east": Place(site="east"),
    "core1": Place(site="core1"),
    "west2": Place(site="west", small=False),
    "east2": Place(site="east", small=False),
    "south": Place(site=None, small=False),
}


REGISTERED_S = 120
WATCHES = Path("/proc/sys/fs/inotify/max_user_instances")
ENOUGH_WATCHES = 1024
"""A node needs about twenty inotify instances from a pool shared by all containers.

With the usual limit of 128, the kubelet of a seventh node does not start.
"""


@contextlib.contextmanager
def enough_watches(settings: Settings) -> Iterator[None]:
    """Raise the machine's limit of inotify instances for the lifetime of the cluster; a kept cluster keeps the limit."""
    before = int(WATCHES.read_text())
    if before >= ENOUGH_WATCHES:
        yield
        return
    say(f"{WATCHES}: {before} is too few for the nodes, {ENOUGH_WATCHES} while they are there")
    WATCHES.write_text(f"{ENOUGH_WATCHES}\n")
    try:
        yield
    finally:
        if not settings.keep:
            WATCHES.write_text(f"{before}\n")


def create(settings: Settings) -> dict[str, str]:
    """Create the cluster and return place -> node name. Nodes carry the label that the example's sites select."""
    places = {name: place for name, place in PLACES.items() if place.small or not settings.small}
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": place.role, "labels": _labels(name, place)} for name, place in places.items()],
    }
    create_from(settings, config)
    return wait_for("a node at each place", lambda: _nodes_at(settings, places), REGISTERED_S)


def create_from(settings: Settings, config: dict[str, Any]) -> None:
    """Create a kind cluster from its configuration, and wait for its control plane; with another network plugin, for all nodes."""
    plugin = settings.network_plugin
    if plugin:
        config = network_plugin.without_default(config)
    path = settings.out / "kind.yaml"
    path.write_text(yaml.safe_dump(config))
    image = ("--image", settings.node_image) if settings.node_image else ()
    wait = "0s" if plugin else "180s"  # no node is ready without a network plugin
    say(f"creating kind cluster {settings.cluster} with {len(config['nodes'])} nodes")
    run("kind", "create", "cluster", "--name", settings.cluster, "--config", path, "--kubeconfig", settings.kubeconfig,
        "--wait", wait, *image, timeout=600)  # fmt: skip
    if plugin:
        network_plugin.install(settings, config, names(settings))
    _report_versions(settings)


def _report_versions(settings: Settings) -> None:
    """Print the versions of the cluster for the support matrix (scripts/support.py)."""
    server = json.loads(run("kubectl", "--kubeconfig", settings.kubeconfig, "version", "-o", "json"))["serverVersion"]["gitVersion"]
    kind = run("kind", "version").split()[1]
    plugin = network_plugin.version(settings)
    for name, version in (("kubernetes", server), ("kind", kind), ("network plugin", plugin)):
        print(f"\nsupport: {name}={version}", flush=True)


def _nodes_at(settings: Settings, places: Iterable[str]) -> dict[str, str]:
    """Place -> node name, once every node is registered: kind waits for the control plane only, and kubelets may follow later."""
    nodes = json.loads(run("kubectl", "--kubeconfig", settings.kubeconfig, "get", "nodes", "-o", "json"))["items"]
    at = {node["metadata"]["labels"][PLACE_LABEL]: node["metadata"]["name"] for node in nodes}
    if missing := sorted(set(places) - set(at)):
        raise LookupError(f"no node yet at {', '.join(missing)}")
    return at


def _labels(name: str, place: Place) -> dict[str, str]:
    return {PLACE_LABEL: name} | ({"sos.network/site": place.site} if place.site else {})


def delete(settings: Settings) -> None:
    """Delete the cluster; safe if it is incomplete or gone."""
    run("kind", "delete", "cluster", "--name", settings.cluster, "--kubeconfig", settings.kubeconfig, timeout=180, check=False)


def names(settings: Settings) -> list[str]:
    """Names of all node containers, with or without a site."""
    return sorted(run("kind", "get", "nodes", "--name", settings.cluster).split())


def pid(container: str) -> int:
    """Process id of a container's init, the handle of its network namespace."""
    return int(run("docker", "inspect", "--format", "{{.State.Pid}}", container))
