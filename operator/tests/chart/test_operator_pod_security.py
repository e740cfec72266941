"""Pod Security admission by a real API server for every pod of a release: `restricted`, or only the listed exceptions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube
from operator_run import render
from sos_compile.artifacts import FIGURE8, example_world
from sos_compile.compiler import compile_world

TESTED = ("-f", str(ROOT / "charts" / "sos" / "ci" / "tested-values.yaml"))
LEVELS = ("restricted", "baseline", "privileged")
# Exceptions from `baseline` by pod; docs/security.md gives the reasons.
NEEDS = {
    "agent": {"host namespaces", "hostPath volumes", "hostPort", "non-default capabilities", "forbidden AppArmor profile"},
    "node": {"host namespaces", "hostPath volumes", "hostPort", "non-default capabilities"},
}


def pods() -> dict[str, dict[str, Any]]:
    """Component -> its pod template, with all optional features enabled."""
    world = example_world("01-two-sites", FIGURE8)
    compiled = compile_world(replace(world, settings=replace(world.settings, load_modules=True))).manifests
    workloads = [m for m in (*compiled, *render(*TESTED)) if m["kind"] in ("DaemonSet", "Deployment", "Job")]
    return {m["metadata"]["labels"]["app.kubernetes.io/component"]: m["spec"]["template"] for m in workloads}


@pytest.fixture(scope="module")
def levels(kube: Kube) -> Iterator[Kube]:
    for level in LEVELS:
        labels = {"pod-security.kubernetes.io/enforce": level}
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": level, "labels": labels}})
    yield kube
    kube.kubectl("delete", "namespace", *LEVELS, "--wait=false")


def said(kube: Kube, level: str, template: dict[str, Any]) -> str:
    """The API server's refusal of a pod in a namespace with this level; empty if it accepts the pod."""
    meta = {**template["metadata"], "name": "p", "namespace": level}
    # The API server checks only the priority class at creation; secrets and config maps are looked up later.
    spec = {**template["spec"], "priorityClassName": "system-node-critical"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    done = kube.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(pod), check=False)
    assert done.returncode == 0 or "violates PodSecurity" in done.stderr, done.stderr
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("component", ["operator", "uninstall", "test", "test-server", "controller"])
def test_pods_meet_the_restricted_level(levels: Kube, component: str) -> None:
    assert said(levels, "restricted", pods()[component]) == ""


@pytest.mark.parametrize("component", sorted(NEEDS))
def test_pods_that_are_not_restricted_need_the_stated_privileges_only(levels: Kube, component: str) -> None:
    refusal = said(levels, "baseline", pods()[component])
    listed = refusal.partition('"baseline:latest": ')[2]
    assert set(re.findall(r"(?:^|, )([a-zA-Z][a-zA-Z -]*?) \(", listed)) == NEEDS[component], refusal
    assert said(levels, "privileged", pods()[component]) == ""


def test_every_component_has_a_pod_template() -> None:
    assert set(pods()) == {"operator", "uninstall", "test", "test-server", "controller", *NEEDS}


def test_capabilities_match_the_security_page() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    rows = {tuple(cell.strip(" `") for cell in line.split("|")[1:3]) for line in page.splitlines() if line.startswith("| `")}
    explained = {(container, capability) for container, capability in rows if capability.isupper() and "_" in capability}
    used = {
        (container["name"], capability)
        for template in pods().values()
        for container in (*template["spec"].get("initContainers", []), *template["spec"]["containers"])
        for capability in container["securityContext"]["capabilities"].get("add", [])
    }
    assert explained == used
    assert ("modules", "SYS_MODULE") in used


def test_every_long_running_container_has_a_probe() -> None:
    for component, template in pods().items():
        if template["spec"].get("restartPolicy") == "Never":
            continue
        for container in template["spec"]["containers"]:
            assert {"livenessProbe", "readinessProbe"} & set(container), (component, json.dumps(container)[:200])
