"""After `helm uninstall --no-hooks`: removal by the chart's record, with the plugin and with kubectl alone, and `--abandon` without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubectl_removal import OURS, jobs_run, running
from operator_fixtures import FIGURE8, OWN, populated
from operator_kube import ROOT, Kube, tool
from operator_plugin import sos
from operator_run import NAMESPACE, eventually, helm, install
from sos_kubectl.lifecycle import record, remains
from sos_kubectl.lifecycle.removal import RemovalError

PART_OF = "app.kubernetes.io/part-of=sos"
SITES = set(FIGURE8.values())
CHILDREN = "daemonsets,deployments,services,configmaps,secrets,networkpolicies,poddisruptionbudgets"
RELEASED = f"{CHILDREN},serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,jobs"


@contextmanager
def without_release(installed: Kube, tmp_path: Path) -> Iterator[Kube]:
    """A populated cluster whose release was deleted without its hooks; the release is installed again afterwards."""
    with populated(installed) as kube:
        helm(kube, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)  # an earlier test may have removed the record
        with running(kube, tmp_path):
            helm(kube, "uninstall", "sos", "-n", NAMESPACE, "--no-hooks")
            try:
                yield kube
            finally:
                install(kube)


def left(kube: Kube) -> list[str]:
    """Objects of ours in the release namespace and in the cluster."""
    ours = [*kube.items(RELEASED, "-n", NAMESPACE, "-l", PART_OF), *kube.items(CHILDREN, "-n", NAMESPACE, "-l", OURS)]
    return sorted({f"{o['kind']}/{o['metadata']['name']}" for o in ours})


def crds_can_be_deleted(kube: Kube) -> None:
    """CRDs hang in deletion while an object has our finalizer."""
    kube.kubectl("delete", "crd", "-l", PART_OF, "--timeout=40s")


def documented_lines() -> str:
    """The commands of the documentation for a removal without the plugin."""
    command = [sys.executable, str(ROOT / "scripts" / "blocks.py"), "--print", "removal-without-hooks"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.slow
def test_the_plugin_removes_what_a_release_without_hooks_left(installed: Kube, tmp_path: Path) -> None:
    with without_release(installed, tmp_path) as kube:
        kube.kubectl("delete", "sossite", "west", "--wait=false")
        told = sos(kube, "status")
        assert told.returncode == 1
        message = " ".join(told.stdout.split())
        assert "being deleted, but no operator runs: it waits for the bridges of edge1 to be removed" in message
        assert "kubectl sos uninstall" in message and "--abandon" not in message
        with jobs_run(kube):
            done = sos(kube, "uninstall", "--yes", "--timeout", "60")
        assert done.returncode == 0, done.stderr
        assert "SosSite west is being deleted and waits for edge1" in done.stderr
        assert done.stdout.strip() == "removed; objects and CRDs stay", "nothing is left to helm"
        assert left(kube) == []
        assert {s["metadata"]["name"] for s in kube.items("sossites")} == SITES - {"west"}
        crds_can_be_deleted(kube)


@pytest.mark.slow
def test_the_documented_lines_remove_the_same_without_the_plugin(installed: Kube, tmp_path: Path) -> None:
    with without_release(installed, tmp_path) as kube, jobs_run(kube):
        environment = {**os.environ, "KUBECONFIG": str(kube.admin), "PATH": f"{Path(tool('kubectl')).parent}:{os.environ['PATH']}"}
        command = ["bash", "-euo", "pipefail", "-c", documented_lines()]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert left(kube) == []
        crds_can_be_deleted(kube)


def test_without_operator_and_record_the_message_names_the_remedies(installed: Kube) -> None:
    with populated(installed) as kube:
        done = sos(kube, "uninstall", "--yes", "-n", "default")
        assert done.returncode == 2
        assert "no operator and no record of one found in namespace default" in done.stderr
        assert "install the chart again" in done.stderr and "--abandon" in done.stderr


@pytest.mark.slow
def test_abandoned_sites_keep_no_object_and_the_nodes_are_named(installed: Kube, tmp_path: Path) -> None:
    with without_release(installed, tmp_path) as kube:
        kube.kubectl("delete", "configmap", "sos-removal", "-n", NAMESPACE)
        kube.kubectl("delete", "sossite", "east", "--wait=false")
        assert "kubectl sos uninstall --abandon" in " ".join(sos(kube, "status").stdout.split())
        kube.kubectl("delete", "pod", "sos-node-core1-pod", "-n", NAMESPACE, "--force", "--grace-period=0")
        done = sos(kube, "uninstall", "--abandon", "--yes", "--timeout", "10", "-o", "json")
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["nodes"][0] == "may keep a bridge: core1, core2, edge1, edge2", "10 s are too short for node processes"
        eventually("everything gone", lambda: left(kube) == [])
        assert {s["metadata"]["name"] for s in kube.items("sossites")} == SITES - {"east"}
        assert not [s for s in kube.items("sossites") if s["metadata"].get("finalizers")]
        crds_can_be_deleted(kube)


@pytest.mark.slow
def test_abandonment_stops_an_operator_and_purges(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube, running(kube, tmp_path):
        try:
            done = sos(kube, "uninstall", "--abandon", "--purge", "--yes", "--timeout", "10")
            assert done.returncode == 0, done.stderr
            assert kube.get("deployment", "sos-operator", "-n", NAMESPACE)["spec"]["replicas"] == 0
            assert f"removed, with objects and CRDs; the rest:\nhelm uninstall sos -n {NAMESPACE}" in done.stdout
            assert kube.items(CHILDREN, "-n", NAMESPACE, "-l", OURS) == [] and not kube.items("crds", "-l", PART_OF)
        finally:
            helm(kube, "upgrade", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE)
            kube.kubectl("wait", "--for=condition=Established", "crd", "-l", PART_OF, "--timeout=30s")
            eventually("the kinds are served again", lambda: all(kube.items(kind, "-A") == [] for kind in OWN))
            kube.kubectl("scale", "deployment", "sos-operator", "-n", NAMESPACE, "--replicas=1")


CONFIG_MAP = {"metadata": {"namespace": "a", "name": "sos-removal"}, "data": {"removal.yaml": "text"}}
ACCOUNT = {"kind": "ServiceAccount", "metadata": {"namespace": "a", "name": "r"}}


def job(namespace: str = "a") -> dict[str, Any]:
    spec = {"template": {"spec": {"containers": [{"args": ["uninstall", "--timeout", "240"], "image": "i"}]}}}
    return {"kind": "Job", "metadata": {"namespace": namespace, "name": "r"}, "spec": spec, "status": {}}


def test_the_time_limit_of_a_recorded_job_is_the_options() -> None:
    plan = record.plan(record.parse(CONFIG_MAP, [ACCOUNT, job()]), 60)
    assert plan.job["spec"]["template"]["spec"]["containers"] == [{"args": ["uninstall", "--timeout", "60"], "image": "i"}]
    assert plan.job["spec"]["activeDeadlineSeconds"] == 180 and "status" not in plan.job
    assert (plan.namespace, plan.name, plan.rights) == ("a", "r", (ACCOUNT,))


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([ACCOUNT], "0 Jobs"),
        ([job(), job()], "2 Jobs"),
        ([job(), {"kind": "DaemonSet", "metadata": {"name": "x", "namespace": "a"}}], "DaemonSet"),
        ([job("kube-system")], "kube-system"),
    ],
)
def test_a_changed_record_is_not_applied(objects: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(RemovalError, match=rf"{words}.* not applied"):
        record.parse(CONFIG_MAP, objects)


def test_a_record_without_a_manifest_is_refused() -> None:
    with pytest.raises(RemovalError, match=r"ConfigMap a/sos-removal has no removal\.yaml"):
        record.text({**CONFIG_MAP, "data": {}})


def test_documents_are_parsed_from_lists_and_one_after_the_other() -> None:
    assert record.documents('{"kind": "A"}\n{"kind": "List", "items": [{"kind": "B"}, {"kind": "C"}]}\n') == [
        {"kind": "A"},
        {"kind": "B"},
        {"kind": "C"},
    ]
    with pytest.raises(RemovalError, match="did not print JSON: 'kind: A'"):
        record.documents("kind: A")


def item(kind: str, site: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "x", "labels": {"sos.network/site": site}}, **more}


def pod(site: str, node: str, ready: str) -> dict[str, Any]:
    return item("Pod", site, spec={"nodeName": node}, status={"conditions": [{"type": "Ready", "status": ready}]})


def test_nodes_are_known_by_pods_and_by_node_configs() -> None:
    found = remains.remains(
        [
            pod("west", "a1", "True"),
            pod("west", "a2", "False"),
            item("ConfigMap", "west", data={"a1.json": "{}", "a3.json": "{}"}),
            item("ConfigMap", "east", data={"b1.json": "{}"}),
            item("Pod", "east", spec={}, status={}),
        ]
    )
    assert found.of("west") == ["a1", "a2", "a3"] and found.of("east") == ["b1"] and found.of("none") == []
    assert (found.ready_nodes, found.unready_nodes) == (["a1"], ["a2", "a3", "b1"])
    long, short = remains.after_abandonment(found, remains.SILENCE_S), remains.after_abandonment(found, remains.SILENCE_S - 1)
    assert long[0].endswith("within a minute: a1") and long[1] == "may keep a bridge: a2, a3, b1"
    assert short[0] == "may keep a bridge: a1, a2, a3, b1" and "reboot" in short[1]
    assert remains.after_abandonment(remains.remains([]), 0.0) == []


def test_a_site_in_deletion_names_what_is_missing_and_the_remedy() -> None:
    found = remains.remains([pod("west", "a1", "True")])
    assert remains.held_up("west", found, recorded=True).endswith("or remove everything: kubectl sos uninstall")
    unknown = remains.held_up("east", found, recorded=False)
    assert "no node of it is known" in unknown and unknown.endswith("kubectl sos uninstall --abandon")
    said = remains.held_up("west", found, recorded=True, stopped="deployment a/sos-operator")
    assert said == "being deleted, but deployment a/sos-operator is not available: it waits for the bridges of a1 to be removed"


def test_many_nodes_are_counted() -> None:
    assert remains.named([f"n{i}" for i in range(12)]).endswith("n9 and 2 more")


def test_only_our_finalizer_is_removed() -> None:
    site = {"kind": "SosSite", "metadata": {"name": "w", "resourceVersion": "7", "finalizers": ["theirs/x", remains.FINALIZER]}}
    assert remains.finalizers_without_ours(site) == {"metadata": {"resourceVersion": "7", "finalizers": ["theirs/x"]}}
    site["metadata"]["finalizers"] = ["theirs/x"]  # type: ignore[index]
    assert remains.finalizers_without_ours(site) is None
