"""Garbage collection of children while no operator runs: only the deleted owner's children are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from operator_fixtures import children, populated
from operator_kube import ROOT, Kube, garbage_collector
from operator_nodes import kubelets
from operator_run import NAMESPACE, eventually, operator_running

KINDS = "daemonsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets,pods"
SECOND = [
    {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": {"name": "second"}, "spec": {}}
    for kind in ("SosController", "SosAgent")
]


@pytest.fixture(scope="module")
def left(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """All children of the example and of a second controller and pool, after the operator has stopped."""
    with populated(installed) as kube:
        kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites"))
        kube.apply(*SECOND)
        extra = {"SOS_CONTROLLER_API_OVERRIDE": "default=http://127.0.0.1:1,second=http://127.0.0.1:1"}
        with operator_running(kube, tmp_path_factory.mktemp("stopped"), **extra) as operator:
            eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 8)
            eventually("the Deployments", lambda: len(children(kube, "deployments")) == 2)
            operator.settle(2)
        play_pods(kube)
        with garbage_collector(kube), kubelets(kube):
            yield kube


def play_pods(kube: Kube) -> None:
    """Create one pod for each workload, as the cluster's controllers would."""
    for workload in [*children(kube, "daemonsets"), *children(kube, "deployments")]:
        meta = workload["metadata"]
        owner = {"apiVersion": "apps/v1", "kind": workload["kind"], "name": meta["name"], "uid": meta["uid"], "controller": True}
        labels = workload["spec"]["template"]["metadata"]["labels"]
        pod = {"name": f"{meta['name']}-pod", "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
        kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": {"containers": [{"name": "it", "image": "it"}]}})


def ours(kube: Kube) -> dict[str, dict[str, Any]]:
    return {f"{child['kind']}/{child['metadata']['name']}": child for child in children(kube, KINDS)}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "SosController",
            {
                "ConfigMap/sos-controller-default", "Deployment/sos-controller-default", "NetworkPolicy/sos-controller-default",
                "Pod/sos-controller-default-pod", "Secret/sos-controllercert-default", "Secret/sos-controllerkeys-default",
                "Secret/sos-controllertoken-default", "Service/sos-controller-default",
            },
        ),
        (
            "SosAgent",
            {
                f"{what}/sos-agent-default-{site}{pod}"
                for site in ("west", "east")
                for what, pod in (("ConfigMap", ""), ("DaemonSet", ""), ("Pod", "-pod"))
            },
        ),
    ],
)  # fmt: skip
def test_children_are_deleted_with_their_owner(left: Kube, kind: str, expected: set[str]) -> None:
    before = ours(left)
    mine = {key for key in before if "default" in key and (kind == "SosController") == ("controller" in key)}
    assert mine == expected, "the owner's children"
    left.kubectl("delete", kind.lower(), "default", "--timeout=20s")
    eventually("the owner's children gone", lambda: not mine & ours(left).keys())
    after = ours(left)
    assert set(before) - set(after) == mine
    versions = {key: child["metadata"]["resourceVersion"] for key, child in after.items()}
    assert versions == {key: before[key]["metadata"]["resourceVersion"] for key in versions}, "children of other owners are unchanged"
    assert {key for key in after if "second" in key}
