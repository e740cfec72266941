"""`kubectl sos version`: versions of images, and of a release on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from operator_kube import Kube
from operator_plugin import sos
from operator_run import NAMESPACE
from sos_kubectl.views import versions


def workload(component: str, *images: str, namespace: str = "sos-system") -> dict[str, Any]:
    containers = [{"image": image} for image in images]
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"namespace": namespace, "labels": labels}, "spec": {"template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("sos-agent:0.1.0", "0.1.0"),
        ("registry.example.org:5000/sos/sos-agent:0.2.0-rc.1", "0.2.0-rc.1"),
        ("registry.example.org:5000/sos/sos-agent@sha256:0123456789abcdef", "0123456789ab"),
        ("registry.example.org:5000/sos/sos-agent:0.1.0@sha256:0123456789abcdef", "0.1.0"),
        ("registry.example.org:5000/sos/sos-agent", "latest"),
    ],
)
def test_the_version_is_the_tag_or_the_digest(image: str, version: str) -> None:
    assert versions.version_of(image) == version


def test_workloads_are_counted_by_component_and_image() -> None:
    found = versions.rows(
        [
            workload("node", "sos-ovs:1", "sos-node:2"),
            workload("agent", "sos-agent:1"),
            workload("agent", "sos-agent:1"),
            workload("operator", "o:1"),
        ]
    )
    assert [(row.component, row.version, row.workloads) for row in found] == [
        ("operator", "1", 1),
        ("agent", "1", 2),
        ("node", "2", 1),
        ("node", "1", 1),
    ]
    assert versions.lines("1", [])[-1] == "SOS is not installed in this cluster"
    assert versions.lines("1", None) == ["kubectl-sos 1"]


@pytest.mark.parametrize(("tag", "said"), [("0.1.0", False), ("v0.1.0", False), ("0.2.0", True), ("main", False), ("0.1.0-dirty", True)])
def test_another_version_of_the_operator_is_reported(tag: str, said: bool) -> None:
    assert bool(versions.skew("0.1.0", versions.rows([workload("operator", f"sos-operator:{tag}")]))) == said


def test_a_release_is_listed(installed: Kube) -> None:
    done = sos(installed, "version", "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["plugin"] == "0.1.0"
    assert [(row["component"], row["namespace"]) for row in document["components"]] == [("operator", NAMESPACE)]
    assert "COMPONENT" in sos(installed, "version").stdout


def test_without_a_cluster_the_plugins_version_is_printed_and_the_failure_named(kube: Kube) -> None:
    done = sos(kube, "version", "--context", "none")
    assert (done.returncode, done.stdout) == (2, "kubectl-sos 0.1.0\n")
    assert "the versions in the cluster are unknown" in done.stderr
