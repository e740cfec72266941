"""Evictions permitted by the disruption budgets, as decided by Kubernetes' disruption controller and eviction API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from operator_fixtures import populated
from operator_kube import Kube, _process, free_port, tool
from operator_run import IMAGES, NAMESPACE, eventually
from sos_compile import Namespace, Node, Observed, World
from sos_compile.compiler import compile_world
from sos_operator.core.desired.release import release_manifests
from sos_operator.process.settings import parse_settings

AGENTS = {"one": 1, "three": 3}


def objects() -> Iterator[dict[str, Any]]:
    """Two sites with one and with three nodes, and two controllers."""
    for i, name in enumerate(AGENTS):
        spec = {"nodeSelector": {"matchLabels": {"site": name}}, "prefixes": [f"10.{i}.0.0/16"]}
        yield {"kind": "SosSite", "metadata": {"name": name}, "spec": spec}
    for kind, name in (("SosController", "default"), ("SosController", "other"), ("SosAgent", "default")):
        yield {"kind": kind, "metadata": {"name": name}, "spec": {}}


def compiled() -> list[dict[str, Any]]:
    nodes = [Node(f"{name}-{i}", {"site": name}, f"192.0.2.{i}") for name, count in AGENTS.items() for i in range(1, count + 1)]
    found = tuple({"apiVersion": "sos.network/v1alpha1", **each} for each in objects())
    observed = Observed(endpoints={"default": ("tcp:10.96.0.10:6653",)})
    return list(compile_world(World(objects=found, nodes=tuple(nodes), namespaces=(Namespace(NAMESPACE),), observed=observed)).manifests)


def start(kube: Kube, workload: dict[str, Any], number: int) -> str:
    """Create a ready pod of a workload, as Kubernetes would; a Deployment's pod has a ReplicaSet as its owner."""
    labels, name = workload["spec"]["template"]["metadata"]["labels"], f"{workload['metadata']['name']}-{number}"
    owner = kube.get(workload["kind"].lower(), workload["metadata"]["name"], "-n", NAMESPACE)
    if workload["kind"] == "Deployment":
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [reference(owner)]}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        kube.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec})
        owner = kube.get("replicaset", name, "-n", NAMESPACE)
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [reference(owner)]}
    kube.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "i"}]}}
    )
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": None, "lastProbeTime": None}
    kube.patch_status("pod", name, NAMESPACE, {"phase": "Running", "conditions": [ready]})
    return name


def reference(owner: dict[str, Any]) -> dict[str, Any]:
    meta = owner["metadata"]
    return {"apiVersion": "apps/v1", "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"], "controller": True}


@pytest.fixture(scope="module")
def running(installed: Kube) -> Iterator[tuple[Kube, dict[str, list[str]]]]:
    """An API server with the disruption controller, all budgets, and the pods of each workload."""
    manifests = [m for m in compiled() if m["kind"] in ("PodDisruptionBudget", "DaemonSet", "Deployment")]
    with populated(installed) as kube:
        kube.apply(*manifests, *release_manifests(parse_settings({"SOS_NAMESPACE": NAMESPACE, **IMAGES})))
        pods: dict[str, list[str]] = {}
        for workload in manifests:
            name = workload["metadata"]["name"]
            count = AGENTS.get(name.removeprefix("sos-agent-default-"), 1 if workload["kind"] == "Deployment" else 0)
            if workload["kind"] != "PodDisruptionBudget":
                pods[name] = [start(kube, workload, i) for i in range(count)]
        command = [
            tool("kube-controller-manager"),
            f"--kubeconfig={kube.admin}",
            "--controllers=disruption-controller",
            "--leader-elect=false",
        ]
        command += ["--bind-address=127.0.0.1", f"--secure-port={free_port()}", f"--cert-dir={kube.folder / 'manager'}"]
        with _process(command, kube.folder / "manager.log"):
            yield kube, pods
        kube.clear("replicasets,poddisruptionbudgets", "-n", NAMESPACE)


def evicted(kube: Kube, pod: str) -> bool:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    done = kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body), check=False)
    assert done.returncode == 0 or "disruption budget" in done.stderr, done.stderr
    return done.returncode == 0


def test_budgets_allow_one_eviction_even_of_a_single_pod(running: tuple[Kube, dict[str, list[str]]]) -> None:
    kube, pods = running
    budgets = {"sos-agent-default-three": (1, 3), "sos-controllers": (1, 2)}

    def settled() -> bool:
        seen = {b["metadata"]["name"]: b.get("status", {}) for b in kube.items("poddisruptionbudgets", "-n", NAMESPACE)}
        assert {name: (s.get("disruptionsAllowed"), s.get("expectedPods")) for name, s in seen.items()} == budgets
        return True

    eventually("budgets with a current status", settled, 60)
    assert evicted(kube, pods["sos-agent-default-one"][0]), "a node with a site's only agent must be drainable"
    first, second, _ = pods["sos-agent-default-three"]
    assert (evicted(kube, first), evicted(kube, second)) == (True, False)
    assert (evicted(kube, pods["sos-controller-default"][0]), evicted(kube, pods["sos-controller-other"][0])) == (True, False)
