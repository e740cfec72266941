"""Rights used by the operator, from the API server's audit log, equal the rights granted by the chart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_fixtures import children, populated
from operator_kube import ROOT, Kube, garbage_collector, kube_apiserver
from operator_monitoring import served
from operator_nodes import Nodes, kubelets, start_pods
from operator_rights import granted, used
from operator_run import NAMESPACE, environment, eventually, install, operator_running, render
from sos_operator.cluster.client import connect
from sos_operator.core.model.conditions import Transition
from sos_operator.core.model.errors import Refused
from sos_operator.core.model.objects import Resource
from sos_operator.core.status.status_writer import build_event

ACCOUNT = "sos-operator"
SEVERAL = ("--set", "operator.replicas=2")  # several operators need the most rights


def nad_definition() -> dict[str, object]:
    """CRD of Multus' kind, without a schema of its fields, as in Multus itself."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "NetworkAttachmentDefinition", "plural": "network-attachment-definitions", "singular": "network-attachment-definition"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.k8s.cni.cncf.io"},
        "spec": {"group": "k8s.cni.cncf.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def own(kind: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


SELECTS_PODS = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosService",
    "metadata": {"name": "pods", "namespace": "default"},
    "spec": {"from": {"site": "nowhere", "pods": {}}, "to": {"site": "west"}},
}


NAMES_A_SERVICE = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosService",
    "metadata": {"name": "destination", "namespace": "default"},
    "spec": {"from": {"site": "nowhere"}, "to": {"site": "west", "service": {"name": "headless"}}},
}
HEADLESS = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "headless", "namespace": "default"},
    "spec": {"clusterIP": "None", "ports": [{"port": 80}]},
}


@pytest.fixture(scope="module")
def multus() -> Iterator[Kube]:
    """A separate API server, because other tests need a cluster without NetworkAttachmentDefinitions."""
    with kube_apiserver() as kube:
        install(kube, *SEVERAL)
        kube.apply(nad_definition())
        kube.kubectl("wait", "--for=condition=Established", "crd", str(nad_definition()["metadata"]["name"]), "--timeout=30s")  # type: ignore[index]
        yield kube


@pytest.mark.slow
def test_used_rights_equal_granted_rights(multus: Kube, tmp_path: Path) -> None:
    """Covers the whole life cycle: default objects, sites with pods, another controller, departure, uninstall."""
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    rendered = render(*SEVERAL)
    for name, text in next(o for o in rendered if o["kind"] == "ConfigMap")["data"].items():
        (defaults / name).write_text(text)
    with served(multus, "PodMonitor"), populated(multus) as kube, Nodes(kube).serving() as nodes:
        readers = {"SOS_READ_PODS": "true", "SOS_READ_SERVICES": "true"}
        extra = {**readers, "SOS_DEFAULTS_DIR": str(defaults), "SOS_POD_MONITORS": "{}", "SOS_LEASE": "sos-operator"}
        with operator_running(kube, tmp_path, **extra):
            kube.apply(own("SosController", "second", {}), own("SosLink", "pair", {end: {"site": end, "uplink": "wan0"} for end in "ab"}))
            kube.apply(own("SosPeer", "far", {"prefixes": ["10.50.0.0/16"]}))
            for name in ("sites.yaml", "sosservice.yaml"):
                kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites" / name))
            kube.apply(SELECTS_PODS, HEADLESS, NAMES_A_SERVICE)
            eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
            eventually("the networks", lambda: len(children(kube, "network-attachment-definitions")) == 2)
            eventually("the PodMonitors", lambda: children(kube, "podmonitors"))
            eventually("both Deployments", lambda: len(children(kube, "deployments")) == 2)
            eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))
            start_pods(kube, nodes)
            eventually("annotated pods", lambda: all("annotations" in pod["metadata"] for pod in children(kube, "pods")))
            kube.kubectl("delete", "soscontroller", "second")
            kube.kubectl("delete", "sossite", "west", "--timeout=60s")
            eventually("one Deployment", lambda: len(children(kube, "deployments")) == 1)
            eventually("one network", lambda: len(children(kube, "network-attachment-definitions")) == 1)
        with garbage_collector(kube), kubelets(kube):
            command = [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "60"]
            done = subprocess.run(command, env=environment(kube, 0, {}), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    rights = granted(rendered, ACCOUNT)
    exercised, uncovered = used(multus.audit(), ACCOUNT, rights)
    assert uncovered == frozenset(), "requests without a right"
    assert rights - exercised == frozenset(), "rights that are granted but never used"


def test_a_single_operator_has_no_right_to_leases() -> None:
    several, alone = granted(render(*SEVERAL), ACCOUNT), granted(render(), ACCOUNT)
    assert alone < several
    leases = {(right.verb, right.name) for right in several - alone if right.resource == "leases" and right.namespace == NAMESPACE}
    assert leases == {("create", ""), ("get", ACCOUNT), ("patch", ACCOUNT)}
    assert len(several - alone) == len(leases)


def test_the_operator_can_change_only_its_finalizer_of_a_site(multus: Kube) -> None:
    """RBAC cannot restrict finalizers, so an admission policy does."""
    token = multus.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE).stdout.strip()
    operator = multus.config_for("as-operator", token)
    multus.apply(own("SosSite", "guarded", {"nodeSelector": {"matchLabels": {"a": "b"}}}))

    async def merged(content: dict[str, object]) -> str:
        async with connect(operator) as cluster:
            try:
                await cluster.merge(own("SosSite", "guarded", {}), content)
            except Refused as error:
                return str(error)
        return ""

    def patch(content: dict[str, object]) -> str:
        return asyncio.run(merged(content))

    try:
        eventually("the policy in force", lambda: "only its finalizer" in patch({"metadata": {"labels": {"a": "b"}}}))
        for content in (
            {"spec": {"prefixes": ["10.1.0.0/16"]}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"metadata": {"finalizers": ["example.org/theirs"]}},
        ):
            assert "only its finalizer" in patch(content)
        assert patch({"metadata": {"finalizers": ["sos.network/site-cleanup"]}}) == ""
        assert patch({"metadata": {"finalizers": None}}) == ""
        multus.kubectl("label", "sossite", "guarded", "a=b")
    finally:
        multus.kubectl("delete", "sossite", "guarded")


def test_the_operator_cannot_write_what_administrators_apply(multus: Kube) -> None:
    """The record of the removal has rights: the operator may delete it, but not change or forge it."""
    operator = multus.config_for("as-operator", multus.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE).stdout.strip())

    def write(name: str, component: str) -> str:
        labels = {"app.kubernetes.io/component": component}
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
        record = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"removal.yaml": "kind: ClusterRole"}}

        async def apply() -> str:
            async with connect(operator) as cluster:
                try:
                    await cluster.apply(record)
                except Refused as error:
                    return str(error)
            return ""

        return asyncio.run(apply())

    eventually("the policy in force", lambda: "may not write a record" in write("sos-removal", "operator"))
    assert "may not write a record" in write("another", "removal")
    assert write("another", "operator") == ""
    assert "may not write a record" in write("another", "removal"), "not even by a label"
    multus.kubectl("delete", "configmap", "another", "-n", NAMESPACE, config=operator)


def test_events_of_the_operator_are_about_sos_objects(multus: Kube) -> None:
    """The operator may create events in every namespace, because SosServices may be in every namespace."""
    operator = multus.config_for("as-operator", multus.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE).stdout.strip())

    def say(api_version: str, kind: str) -> str:
        about = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it", "namespace": "default", "uid": "u"}}
        event = build_event(
            Resource.parse(about), Transition("Ready", "Unknown", "True", "Ready", ""), f"it.{uuid.uuid4().hex}", "2026-01-01T00:00:00Z"
        )

        async def create() -> str:
            async with connect(operator) as cluster:
                try:
                    await cluster.create(event)
                except Refused as error:
                    return str(error)
            return ""

        return asyncio.run(create())

    eventually("the policy in force", lambda: "about SOS objects only" in say("v1", "Pod"))
    assert "about SOS objects only" in say("apps/v1", "Deployment")
    assert say("sos.network/v1alpha1", "SosService") == ""
