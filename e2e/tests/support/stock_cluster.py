"""A cluster as `kind create cluster` makes it, with two workers, and a pod with curl and a web server on each worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from published import Published
from sos_e2e.environment import cluster
from sos_e2e.environment.pair import Side
from sos_e2e.kube import Kube
from sos_e2e.observation import workload
from sos_e2e.reader import Reader
from sos_e2e.run import run, wait_for
from sos_e2e.settings import Settings
from two_clusters import NAMESPACE, accepted, ordinary_pod

PODS = {"west": "10.244.1.0/24", "east": "10.244.2.0/24"}
"""Pods of kind's workers; examples/07-pods has them as the prefixes of its sites."""
COVERED = 8080  # by the service of examples/07-pods


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """The cluster: one side for each worker, both with the same API server."""

    settings: Settings
    kube: Kube
    west: Side
    east: Side
    published: Published

    def reader(self, **more: str) -> Reader:
        """Return a reader who calls the workers NODE_A and NODE_B."""
        return self.published.reader(str(self.settings.kubeconfig), NODE_A=self.west.worker, NODE_B=self.east.worker, **more)

    @property
    def control_plane(self) -> str:
        """Name of the third node."""
        (name,) = set(cluster.names(self.settings)) - {self.west.worker, self.east.worker}
        return name

    def is_accelerated(self) -> bool:
        """True if the agent of west has accepted a new connection to the pod at east, False if the connection was plain."""
        before = accepted(self.west)
        address = self.kube.get("-n", NAMESPACE, "pod", "east")["status"]["podIP"]
        script = workload.download_script(str(address), COVERED, 20, f"{workload.FILE}.sha256")
        got = workload.parse_download(self.kube.exec(NAMESPACE, "west", "sh", "-c", script))
        assert got.exit_code == 0, got
        return accepted(self.west) > before

    def images(self) -> set[str]:
        """Images of all pods of the release's namespace."""
        pods = self.kube.items("pods", "-n", workload.RELEASE_NAMESPACE)
        return {container["image"] for pod in pods for container in pod["spec"]["containers"]}


def _worker(settings: Settings, kube: Kube, name: str) -> Side:
    (node,) = [each for each in kube.items("nodes") if each["spec"].get("podCIDR") == PODS[name]]
    networks = {"pods": PODS[name], "network": "10.244.0.0/16", "services": "10.96.0.0/16"}
    return Side(name=name, settings=settings, kube=kube, worker=node["metadata"]["name"], **networks)


def _sides(settings: Settings, kube: Kube) -> tuple[Side, Side]:
    try:
        return _worker(settings, kube, "west"), _worker(settings, kube, "east")
    except ValueError as no:
        raise LookupError("no node yet with the pods of west or east") from no


@contextlib.contextmanager
def created(settings: Settings, published: Published, host_image: str) -> Iterator[Stock]:
    """Create the cluster with its pods, and the registry as a source of images; delete it on exit."""
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role} for role in ("control-plane", "worker", "worker")],
    }
    with contextlib.ExitStack() as undo:
        undo.enter_context(cluster.enough_watches(settings))
        if not settings.keep:
            undo.callback(cluster.delete, settings)
        cluster.create_from(settings, config)
        kube = Kube(settings)
        west, east = wait_for("both workers", lambda: _sides(settings, kube), cluster.REGISTERED_S)
        published.registry.join(cluster.names(settings))
        workers = f"{west.worker},{east.worker}"
        run("kind", "load", "docker-image", "--name", settings.cluster, "--nodes", workers, host_image, timeout=600)
        for side in (west, east):
            kube.apply(ordinary_pod(side.name, {"kubernetes.io/hostname": side.worker}, host_image))
        for side in (west, east):
            kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{side.name}", "--timeout=120s", timeout=150)
            wait_for("the server's files", lambda name=side.name: workload.digest(kube, name, workload.LONG), 120)
        yield Stock(settings=settings, kube=kube, west=west, east=east, published=published)
