"""Fault isolation on a real API server: an object that causes an exception affects no other object, and the operator keeps running."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from operator_fixtures import becomes, children
from operator_kube import ROOT, Kube
from operator_run import Operator, eventually

LONG = "a" * 243  # with a namespace of ten characters, one character longer than a service id allows
CRD = ROOT / "crds" / "sosservices.sos.network.yaml"
RULES = "/spec/versions/0/schema/openAPIV3Schema/x-kubernetes-validations"


def service(name: str, namespace: str) -> dict[str, Any]:
    spec = {"from": {"site": "west"}, "to": {"site": "east"}}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@contextmanager
def crd_without_the_rule(kube: Kube) -> Iterator[None]:
    """Use the CRD of a release without a rule about names: objects from that release still exist after an upgrade."""
    rules = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"]
    assert len(rules) == 1
    # Patched instead of replaced, so that the CRD keeps the labels and annotations of its release.
    target = ("patch", "crd", "sosservices.sos.network", "--type=json", "-p")
    kube.kubectl(*target, json.dumps([{"op": "remove", "path": RULES}]))
    try:
        yield
    finally:
        kube.kubectl(*target, json.dumps([{"op": "add", "path": RULES, "value": rules}]))


def test_a_long_name_is_refused_or_sets_only_its_own_condition(example: Operator) -> None:
    kube = example.kube
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant-bxx"}})
    with pytest.raises(AssertionError, match="189 characters"):
        kube.apply(service(LONG, "tenant-bxx"))
    with crd_without_the_rule(kube):
        eventually("the former rules are in force", lambda: taken(kube, service(LONG, "tenant-bxx")))
    becomes(kube, f"sosservice/tenant-bxx/{LONG}", "Accepted", "False", "Invalid")
    kube.apply(service("after", "sos-system"))
    becomes(kube, "sosservice/sos-system/after", "Accepted", "True", "Accepted")
    eventually("the other service in the controller's document", lambda: "sos-system/after" in services_of(kube))
    assert example.process.poll() is None
    assert "sos_operator_bugs_total{" not in example.http("/metrics")[1], "an object that violates a known rule is no bug"
    kube.clear("sosservices", "-A")


def services_of(kube: Kube) -> list[str]:
    """Services in the document of the default controller."""
    maps = {each["metadata"]["name"]: each["data"] for each in children(kube, "configmaps")}
    return [service["id"] for service in json.loads(maps["sos-controller-default"]["config.json"])["services"]]


def taken(kube: Kube, obj: dict[str, Any]) -> bool:
    kube.apply(obj)
    return True


BAD_SITES = [
    ({"prefixes": ["224.0.0.0/8"]}, "hosts cannot have addresses of"),
    ({"prefixes": ["198.18.0.0/15"]}, "hosts cannot have addresses of"),
    ({"prefixes": ["0.0.0.0/0"]}, "hosts cannot have addresses of"),
    ({"wan": {"uplinks": [{"name": "br-sos"}]}}, "are no uplinks"),
    ({"wan": {"uplinks": [{"name": "sosag0"}]}}, "are no uplinks"),
]


@pytest.mark.parametrize(("spec", "words"), BAD_SITES)
def test_impossible_settings_are_rejected_with_a_remedy(installed: Kube, spec: dict[str, Any], words: str) -> None:
    select = {"nodeSelector": {"matchLabels": {"sos.network/site": "a"}}}
    site = {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "refused"}, "spec": {**select, **spec}}
    with pytest.raises(AssertionError, match=words):
        installed.apply(site)
