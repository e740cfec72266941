"""The chart's record for a removal without the release: rights and Job of its manifest, and the tools that must keep the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_kube import ROOT, Kube
from operator_rights import granted
from operator_run import NAMESPACE, render

SCENARIOS = sorted((ROOT / "charts" / "sos" / "ci").glob("*-values.yaml"))
KEPT = {"helm.sh/resource-policy": "keep", "kustomize.toolkit.fluxcd.io/prune": "disabled"}
"""Annotations by which Helm and Argo CD (the first) and Flux keep an object."""


def record(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record of rendered objects, and the objects of its manifest."""
    (found,) = [o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["labels"]["app.kubernetes.io/component"] == "removal"]
    return found, list(yaml.safe_load_all(found["data"]["removal.yaml"]))


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_the_record_has_the_operators_rights_and_the_hooks_job(values: Path) -> None:
    objects = render("-f", str(values))
    found, parts = record(objects)
    name = found["metadata"]["name"]
    assert {o["metadata"]["name"] for o in parts} == {name}
    operator = name.replace("-removal", "-operator")
    assert granted(parts, name) == granted(objects, operator) != frozenset()
    (job,) = [o for o in parts if o["kind"] == "Job"]
    enabled = render("-f", str(values), "--set", "uninstall.enabled=true")
    (hook,) = [o for o in enabled if o["kind"] == "Job" and o["metadata"]["name"].endswith("-uninstall")]
    for spec in (job["spec"], hook["spec"]):
        assert spec["template"]["metadata"].pop("labels")
    assert job["spec"]["template"]["spec"].pop("serviceAccountName") == name
    assert hook["spec"]["template"]["spec"].pop("serviceAccountName") == operator
    assert job["spec"] == hook["spec"]


@pytest.mark.parametrize("values", SCENARIOS, ids=lambda p: p.stem)
def test_the_api_server_accepts_the_manifest_of_the_record(installed: Kube, values: Path) -> None:
    found, parts = record(render("-f", str(values)))
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    done = installed.kubectl(*command, stdin=found["data"]["removal.yaml"], check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(parts) == 6


def test_tools_keep_the_record_and_claim_no_object_of_its_manifest() -> None:
    found, parts = record(render("--set", "uninstall.enabled=false"))
    assert found["metadata"]["annotations"] == KEPT
    assert found["metadata"]["namespace"] == NAMESPACE
    for obj in parts:
        labels = obj["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "sos" and labels["app.kubernetes.io/component"] == "removal"
        assert not {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} & labels.keys()
