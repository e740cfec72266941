"""Argo CD's own sync, with prune, of an installation whose operator has created its objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from operator_fixtures import FIGURE8, children, populated
from operator_gitops import APPLICATION, Outcome, assessments, blocks, configure_argo_cd, sync
from operator_kube import ROOT, Kube, garbage_collector, kube_apiserver
from operator_monitoring import served
from operator_nodes import Nodes, start_pods
from operator_run import NAMESPACE, OWN_KINDS, Operator, eventually, operator_running, render

INSTANCE = "app.kubernetes.io/instance"
VALUES = ("--set", "uninstall.enabled=false,operator.replicas=2")
KINDS = (
    *("daemonsets", "deployments", "services", "configmaps", "secrets", "networkpolicies", "poddisruptionbudgets", "podmonitors"),
    *("pods", "leases", "endpoints", "serviceaccounts", "soscontrollers", "sosagents"),
)
MONITORS = '{"interval": "15s", "labels": {}}'


@dataclass(frozen=True)
class Stage:
    """An installation by Argo CD, with a running operator and the objects of example 01."""

    kube: Kube
    objects: list[dict[str, Any]]
    first: Outcome
    operator: Operator


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Install by Argo CD on an API server without a release of helm, and let the operator create its objects."""
    folder = tmp_path_factory.mktemp("argo-cd")
    objects = render(*VALUES)
    defaults = folder / "defaults"
    defaults.mkdir()
    for name, text in next(o for o in objects if o["kind"] == "ConfigMap")["data"].items():
        (defaults / name).write_text(text)
    with ExitStack() as stack:
        kube = stack.enter_context(kube_apiserver())
        configure_argo_cd(kube)
        stack.enter_context(served(kube, "PodMonitor"))
        first = sync(kube, objects)
        eventually("the kinds are served", lambda: all(kube.items(kind, "-A") is not None for kind in OWN_KINDS))
        stack.enter_context(populated(kube))
        nodes = stack.enter_context(Nodes(kube).serving())
        settings = {"SOS_DEFAULTS_DIR": str(defaults), "SOS_POD_MONITORS": MONITORS, "SOS_LEASE": "sos-operator"}
        operator = stack.enter_context(operator_running(kube, folder, **settings))
        eventually("the default objects", lambda: kube.items("sosagents") and kube.items("soscontrollers"))
        for name in ("sites.yaml", "sosservice.yaml"):
            kube.kubectl("apply", "-f", str(ROOT / "examples" / "01-two-sites" / name))
        eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
        eventually("the PodMonitors", lambda: children(kube, "podmonitors"))
        start_pods(kube, nodes)
        copy_labels_to_endpoints(kube)
        operator.settle()
        yield Stage(kube, objects, first, operator)


def copy_labels_to_endpoints(kube: Kube) -> None:
    """Create Endpoints as the cluster's controller does: with the labels of their Service, and without an owner."""
    for service in children(kube, "services"):
        meta = {key: service["metadata"][key] for key in ("name", "namespace", "labels")}
        kube.apply({"apiVersion": "v1", "kind": "Endpoints", "metadata": meta})


def live(kube: Kube) -> dict[str, dict[str, Any]]:
    """Metadata of all objects in the release's namespace and of the default objects, as KIND/NAME."""
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"] for o in kube.items(",".join(KINDS), "-n", NAMESPACE)}


def test_sync_installs_the_chart(stage: Stage) -> None:
    assert stage.first.phase == "Succeeded", stage.first
    hooks = {o["metadata"]["name"] for o in stage.objects if "helm.sh/hook" in (o["metadata"].get("annotations") or {})}
    applied = {f"{each['kind']}/{each['name']}" for each in stage.first.resources if each["status"] == "Synced"}
    assert applied >= {f"{o['kind']}/{o['metadata']['name']}" for o in stage.objects if o["metadata"]["name"] not in hooks}


@pytest.mark.parametrize("tracking", ["label", "annotation"])
def test_no_object_of_the_operator_is_pruned(stage: Stage, tracking: str) -> None:
    before = live(stage.kube)
    assert_every_kind_is_there(before)
    synced(stage, tracking)
    again = sync(stage.kube, stage.objects, dry=True)
    assert (again.phase, again.sync, again.resources) == ("Succeeded", "Synced", ()), again
    stage.operator.settle()
    after = live(stage.kube)
    assert {name: meta["uid"] for name, meta in before.items()} == {name: meta["uid"] for name, meta in after.items()}


def synced(stage: Stage, tracking: str = "label") -> None:
    """Let Argo CD track the objects by this method."""
    configure_argo_cd(stage.kube, tracking)
    done = sync(stage.kube, stage.objects)
    assert (done.phase, done.pruned()) == ("Succeeded", set()), done


def assert_every_kind_is_there(before: dict[str, dict[str, Any]]) -> None:
    """Otherwise the test would pass without an object that could be pruned."""
    labelled = {name for name, meta in before.items() if meta.get("labels", {}).get(INSTANCE) == APPLICATION}
    owned = {name for name in labelled if before[name].get("ownerReferences")}
    assert {"DaemonSet", "Deployment", "Service", "ConfigMap", "Pod"} <= {name.partition("/")[0] for name in owned}
    assert {"Endpoints/sos-controller-default"} <= labelled - owned
    alone = {"Secret/sos-master", "ConfigMap/sos-operator-state", "SosAgent/default", "SosController/default", "PodMonitor/sos-node"}
    assert {*alone, "PodDisruptionBudget/sos-controllers", "Lease/sos-operator"} <= set(before)


GONE = {"ServiceAccount/sos-node", "ClusterRole/sos-view"}


def less(stage: Stage) -> list[dict[str, Any]]:
    """The chart's objects without GONE."""
    found = [o for o in stage.objects if f"{o['kind']}/{o['metadata']['name']}" not in GONE]
    assert len(found) == len(stage.objects) - len(GONE)
    return found


@pytest.mark.parametrize("tracking", ["label", "annotation"])
def test_only_crds_are_not_pruned_with_their_templates(stage: Stage, tracking: str) -> None:
    """Another application may take CRDs over (crds.enabled=false); pruning a CRD would delete all objects of its kind."""
    synced(stage, tracking)
    wanted = sync(stage.kube, [o for o in less(stage) if o["kind"] != "CustomResourceDefinition"], dry=True)
    assert (wanted.sync, wanted.pruned(), len(wanted.resources)) == ("OutOfSync", GONE, len(GONE)), wanted


def test_objects_that_leave_the_chart_are_deleted(stage: Stage) -> None:
    synced(stage)
    with garbage_collector(stage.kube):  # Argo CD deletes in the foreground
        done = sync(stage.kube, less(stage))
        assert (done.phase, done.pruned()) == ("Succeeded", GONE), done
        eventually("the ServiceAccount gone", lambda: "ServiceAccount/sos-node" not in live(stage.kube))
    assert sync(stage.kube, stage.objects).phase == "Succeeded"


def test_the_label_of_earlier_versions_is_removed_as_the_page_says(stage: Stage) -> None:
    """A Secret with the label would be pruned; after the page's command it is not."""
    kube = stage.kube
    synced(stage)
    kube.kubectl("label", "secret", "sos-master", "-n", NAMESPACE, f"{INSTANCE}={APPLICATION}")
    assert sync(kube, stage.objects, dry=True).pruned() == {"Secret/sos-master"}
    (command,) = [line for text in blocks("sh") for line in text.splitlines() if f"{INSTANCE}-" in line]
    program, *arguments = command.split()
    assert program == "kubectl"
    kube.kubectl(*arguments)
    assert sync(kube, stage.objects, dry=True).resources == ()


def test_the_operators_statuses_have_a_health(stage: Stage) -> None:
    """Nothing connects to the controller here, so nothing is Ready; a service without its site waits for the site."""
    kube = stage.kube
    service = {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": {"name": "early", "namespace": "default"}}
    kube.apply({**service, "spec": {"from": {"site": "west"}, "to": {"site": "later"}}})
    stage.operator.settle()
    found = assessments(kube)
    assert {name for kind, name in found if kind == "SosSite"} == set(FIGURE8.values())
    assert {(each["argo"], each["flux"]) for each in found.values()} == {("Progressing", "InProgress")}, found
    assert "SiteNotFound" in found["SosService", "early"]["argoMessage"]
