"""Staged rollout against a real API server, with nodes that apply their documents and nodes that fail."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from operator_fixtures import becomes, children, populated
from operator_kube import Kube
from operator_nodes import Nodes
from operator_run import NAMESPACE, Operator, eventually, operator_running

SITES = {"n1": "roll", "n2": "roll", "n3": "roll"}
SITE = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosSite",
    "metadata": {"name": "roll"},
    "spec": {"nodeSelector": {"matchLabels": {"sos.network/site": "roll"}}, "network": {"mtu": 1400}},
}


@pytest.fixture(scope="module")
def stage(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operator, Nodes]]:
    """A transit site of three nodes, each with a running pod that answers requests."""
    folder = tmp_path_factory.mktemp("rollout")
    with (
        populated(installed) as kube,
        Nodes(kube, SITES).serving() as nodes,
        operator_running(kube, folder, SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as operator,
    ):
        labels = {"sos.network/site": "roll"}
        kube.apply(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}} for name in SITES))
        kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "default"}, "spec": {}}, SITE)
        eventually("the DaemonSet", lambda: "sos-node-roll" in [d["metadata"]["name"] for d in children(kube, "daemonsets")])
        start(kube, nodes)
        becomes(kube, "sossite/roll", "BridgesReady", "True", "Ready")
        yield operator, nodes


def start(kube: Kube, nodes: Nodes) -> None:
    meta = kube.get("daemonset", "sos-node-roll", "-n", NAMESPACE)["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"], "controller": True}
    for node in SITES:
        container = {"name": "node", "image": "none", "ports": [{"containerPort": nodes.ports[node]}]}
        made = {"name": f"sos-node-{node}", "namespace": NAMESPACE, "labels": meta["labels"], "ownerReferences": [owner]}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": {"nodeName": node, "containers": [container]}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": None, "lastProbeTime": None}
        status = {"phase": "Running", "conditions": [ready], "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}
        kube.patch_status("pod", made["name"], NAMESPACE, status)


def mtus(kube: Kube) -> list[int]:
    data = kube.get("configmap", "sos-node-roll", "-n", NAMESPACE)["data"]
    return [json.loads(data[f"{node}.json"])["bridge"]["mtu"] for node in SITES]


def declare(kube: Kube, mtu: int) -> None:
    kube.kubectl("patch", "sossite", "roll", "--type=merge", "-p", json.dumps({"spec": {"network": {"mtu": mtu}}}))


def states(kube: Kube) -> list[str]:
    return [row["state"] for row in kube.get("sossite", "roll")["status"]["nodes"]]


def test_a_failed_node_stops_the_rollout_until_a_correction(stage: tuple[Operator, Nodes]) -> None:
    operator, nodes = stage
    kube = operator.kube
    assert mtus(kube) == [1400, 1400, 1400]
    nodes.slow.add("n1")
    declare(kube, 1300)
    eventually("the first node has the new document", lambda: mtus(kube) == [1300, 1400, 1400])
    becomes(kube, "sossite/roll", "BridgesReady", "False", "RollingOut")
    operator.settle(3)
    assert mtus(kube) == [1300, 1400, 1400], "other nodes wait for the first node's report"
    nodes.words["n1"] = ("Failed", "port wan0 is refused")
    said = becomes(kube, "sossite/roll", "BridgesReady", "False", "RolloutAborted")
    assert "n1: port wan0 is refused" in said["message"]
    assert states(kube) == ["Failed", "Aborted", "Aborted"]
    assert mtus(kube) == [1300, 1400, 1400]

    nodes.words.clear()
    nodes.slow.clear()
    declare(kube, 1350)
    eventually("all nodes", lambda: mtus(kube) == [1350, 1350, 1350])
    becomes(kube, "sossite/roll", "BridgesReady", "True", "Ready")
    assert states(kube) == ["Ready", "Ready", "Ready"]
