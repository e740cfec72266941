"""Two kind clusters whose workers are connected by one emulated WAN link: default network plugin, no Multus, no ovs-cni.

The pod networks of the clusters are routed over the link, as between two data centers, so that plain TCP works, too.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from sos_e2e.environment import cables, cluster
from sos_e2e.environment.cables import Cable
from sos_e2e.environment.registry import Registry
from sos_e2e.kube import Kube
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import Settings

NAMES = ("a", "b")
LINK = Cable(a=("a", "wan0"), b=("b", "wan0"), wan=cables.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two clusters: a control plane and one worker."""

    name: str
    settings: Settings
    kube: Kube
    worker: str  # name of the node, and of its container
    pods: str  # the worker's part of the pod network
    network: str  # the pod network
    services: str  # the range of Services

    @property
    def number(self) -> int:
        """Id of the cluster's site."""
        return NAMES.index(self.name) + 1


def _subnet(name: str) -> str:
    return f"10.{60 + NAMES.index(name)}.0.0/16"


def _services(name: str) -> str:
    return f"10.{70 + NAMES.index(name)}.0.0/16"


def _create(settings: Settings, name: str) -> Side:
    settings.out.mkdir(parents=True, exist_ok=True)
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {"podSubnet": _subnet(name), "serviceSubnet": _services(name)},
        "nodes": [{"role": "control-plane"}, {"role": "worker", "labels": {"sos.network/site": name}}],
    }
    cluster.create_from(settings, config)
    # The pages call the clusters a and b.
    run("kubectl", "--kubeconfig", settings.kubeconfig, "config", "set-context", name, f"--cluster={settings.context}",
        f"--user={settings.context}")  # fmt: skip
    worker, pods = wait_for("a worker with a pod network", lambda: _worker(settings), cluster.REGISTERED_S)
    networks = {"pods": pods, "network": _subnet(name), "services": _services(name)}
    return Side(name=name, settings=settings, kube=Kube(settings), worker=worker, **networks)


def _worker(settings: Settings) -> tuple[str, str]:
    nodes = json.loads(run("kubectl", "--kubeconfig", settings.kubeconfig, "get", "nodes", "-l", "sos.network/site", "-o", "json"))["items"]
    (node,) = nodes
    return node["metadata"]["name"], node["spec"]["podCIDR"]


@contextlib.contextmanager
def created(settings: Settings, registry: Registry, host_image: str) -> Iterator[tuple[Side, Side]]:
    """Create both clusters with the link between them, a registry, and the image of the hosts; remove everything on exit."""
    own = [replace(settings, cluster=f"{settings.cluster}-{name}", out=settings.out / name) for name in NAMES]
    with contextlib.ExitStack() as undo:
        undo.enter_context(cluster.enough_watches(settings))
        sides = []
        for name, each in zip(NAMES, own, strict=True):
            if not settings.keep:
                undo.callback(cluster.delete, each)
            sides.append(_create(each, name))
        undo.enter_context(cables.plugged(settings, {side.name: side.worker for side in sides}, [LINK]))
        a, b = sides
        cables.route(LINK, {side.name: side.worker for side in sides})
        for here, there in ((a, b), (b, a)):
            _route_pods(here, there)
            registry.join(cluster.names(here.settings))
            say(f"loading the image of the host into cluster {here.name}")
            run("kind", "load", "docker-image", "--name", here.settings.cluster, "--nodes", here.worker, host_image, timeout=600)
        yield a, b


def _route_pods(here: Side, there: Side) -> None:
    """Route the other cluster's pods over the link, without address translation."""
    inside = ("docker", "exec", here.worker)
    address = run("docker", "inspect", "--format", "{{.NetworkSettings.Networks.kind.IPAddress}}", there.worker).strip()
    run(*inside, "ip", "route", "add", there.pods, "via", address, "dev", "wan0", "onlink")
    run(*inside, "iptables", "-w", "-t", "nat", "-I", "POSTROUTING", "-d", there.pods, "-j", "ACCEPT")
