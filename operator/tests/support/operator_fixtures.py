from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_kube import ROOT, Kube, kube_apiserver
from operator_run import NAMESPACE, Operator, eventually, install, operator_running

OWN = ("sosservices", "sosagents", "sossites", "soslinks", "sospeers", "soscontrollers")
FIGURE8 = {"edge1": "west", "core1": "core1", "core2": "core2", "edge2": "east"}


@pytest.fixture(scope="session")
def kube() -> Iterator[Kube]:
    """One API server for all tests of the run."""
    with kube_apiserver() as running:
        yield running


@pytest.fixture(scope="session")
def installed(kube: Kube) -> Kube:
    """The API server with the chart's CRDs and rights."""
    install(kube)
    return kube


@contextmanager
def populated(kube: Kube) -> Iterator[Kube]:
    """Create the example's nodes, and no SOS objects; delete both afterwards."""
    labels = {name: {"sos.network/site": site} for name, site in FIGURE8.items()}
    kube.apply(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels[name]}} for name in FIGURE8))
    yield kube
    kube.clear(",".join(OWN), "-A")
    kinds = "daemonsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets,pods"
    kube.clear(kinds, "-n", NAMESPACE, "-l", "app.kubernetes.io/managed-by=sos-operator")
    kube.clear("nodes")


@pytest.fixture
def cluster(installed: Kube) -> Iterator[Kube]:
    """A cluster with the example's nodes, for one test."""
    with populated(installed) as kube:
        yield kube


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A running operator for the module's tests; its controller does not answer."""
    folder = tmp_path_factory.mktemp("operator")
    with populated(installed) as kube, operator_running(kube, folder, SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as running:
        yield running


@pytest.fixture
def example(operator: Operator) -> Operator:
    """The objects of example 01 as in its files, with all children applied."""
    operator.kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
    eventually("the DaemonSets", lambda: len(children(operator.kube, "daemonsets")) == 6)
    eventually("the Deployment", lambda: children(operator.kube, "deployments"))
    eventually("the finalizers", lambda: all(site["metadata"].get("finalizers") for site in operator.kube.items("sossites")))
    return operator


def children(kube: Kube, kind: str) -> list[dict[str, Any]]:
    return kube.items(kind, "-n", NAMESPACE, "-l", "app.kubernetes.io/managed-by=sos-operator")


def condition(kube: Kube, kind: str, name: str, type_: str, namespace: str | None = None) -> dict[str, Any]:
    obj = kube.get(kind, name, *(("-n", namespace) if namespace else ()))
    found = [c for c in obj.get("status", {}).get("conditions", []) if c["type"] == type_]
    return dict(found[0]) if found else {}


def becomes(kube: Kube, what: str, type_: str, status: str, reason: str, within: float = 40.0) -> dict[str, Any]:
    """Wait for a condition of `kind/name` or `kind/namespace/name`."""
    kind, *namespace, name = what.split("/")

    def look() -> dict[str, Any] | None:
        row = condition(kube, kind, name, type_, *namespace)
        assert (row.get("status"), row.get("reason")) == (status, reason), row
        return row

    return dict(eventually(f"{what} {type_}={status}/{reason}", look, within) or {})


def play_kubelet(kube: Kube, port_of: Mapping[str, int] | None = None) -> None:
    """Create a pod with a status for every DaemonSet and node, as the cluster's controllers and kubelets would."""
    sites = {site: node for node, site in FIGURE8.items()}
    for daemon_set in children(kube, "daemonsets"):
        meta, template = daemon_set["metadata"], daemon_set["spec"]["template"]
        node = sites[meta["labels"]["sos.network/site"]]
        name = f"{meta['name']}-pod"
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
        pod_meta = {"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"], "ownerReferences": [owner]}
        spec = {**template["spec"], "nodeName": node}
        if port_of:
            containers = [{**c, "ports": [{"containerPort": port_of[node]}]} if c["name"] == "node" else c for c in spec["containers"]]
            # No host network: with it, each container port would also have to be a host port.
            spec |= {"containers": [without_host_ports(c) for c in containers], "hostNetwork": False}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec})
        state = {"type": "Ready", "status": "True", "lastTransitionTime": None, "lastProbeTime": None}
        kube.patch_status("pod", name, NAMESPACE, {"phase": "Running", "conditions": [state]})
        status = {"desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberReady": 1, "numberMisscheduled": 0}
        kube.patch_status(
            "daemonset", meta["name"], NAMESPACE, {**status, "updatedNumberScheduled": 1, "observedGeneration": meta["generation"]}
        )


def without_host_ports(container: dict[str, Any]) -> dict[str, Any]:
    return {**container, "ports": [{k: v for k, v in port.items() if k != "hostPort"} for port in container.get("ports", [])]}


def versions(kube: Kube) -> dict[str, str]:
    """Resource versions of all SOS objects and of all children."""
    kinds = "daemonsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets"
    ours = kube.items(kinds, "-n", NAMESPACE, "-l", "app.kubernetes.io/managed-by=sos-operator")
    ours += kube.items(",".join(OWN), "-A")
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in ours}


def apply_example(kube: Kube) -> None:
    kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
    eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
    eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))


QUICK_OVERLAP_S = 2
"""Overlap of old and new keys or certificates of `rotating_operator`."""


@contextmanager
def rotating_operator(kube: Kube, folder: Path) -> Iterator[Operator]:
    """Run an operator with rotations of a few seconds, in a cluster with the example's nodes."""
    quick = {
        "SOS_KEY_OVERLAP_SECONDS": str(QUICK_OVERLAP_S),
        "SOS_RESYNC_SECONDS": "1",
        "SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1",
    }
    with populated(kube), operator_running(kube, folder, **quick) as running:
        yield running
