"""The CRDs on a real API server, and `sos_compile.admit`, which must judge as the API server does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import sos_compile
import yaml
from operator_kube import ROOT, Kube

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*/*.yaml") if path.parent.name != "bad")
BAD = sorted((ROOT / "examples" / "bad").glob("*.yaml"))
SELECTOR = {"matchLabels": {"a": "b"}}
TWO_BASES = {"type": "Uplinks", "uplinks": [{"name": "a", "base": True}, {"name": "b", "base": True}]}


def site(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "table"}, "spec": spec}


def service(**spec: Any) -> dict[str, Any]:
    base = {"from": {"site": "a"}, "to": {"site": "b"}}
    meta = {"name": "table", "namespace": "default"}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": {**base, **spec}}


def controller(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "table"}, "spec": spec}


def agent(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": "table"}, "spec": spec}


VALID = {
    "site by nodes": site(nodeSelector=SELECTOR, prefixes=["10.1.0.0/16"]),
    "site of switches": site(datapaths=[{"dpid": "00000000000000ab"}]),
    "remote site": site(remote=True, siteID=7, prefixes=["10.2.0.0/16"]),
    "uplinks": site(nodeSelector=SELECTOR, prefixes=["10.1.0.0/16"], wan={"type": "Uplinks", "uplinks": [{"name": "w0", "base": True}]}),
    "service, all ports": service(),
    "service, ranges": service(ports=[{"port": 1}, {"port": 5, "endPort": 9}]),
    "controller": controller(),
    "external controller": controller(type="External", external={"endpoints": ["tcp:192.0.2.1:6653"]}),
    "agents": agent(limits={"sessions": 10}, drainSeconds=0),
}
INVALID = {
    "no place": (site(prefixes=["10.1.0.0/16"]), "spec"),
    "remote and nodes": (site(remote=True, siteID=7, nodeSelector=SELECTOR), "spec"),
    "host bits": (site(nodeSelector=SELECTOR, prefixes=["10.1.0.5/16"]), "spec.prefixes[0]"),
    "no prefix": (site(nodeSelector=SELECTOR, prefixes=["10.1.0.0/99"]), "spec.prefixes[0]"),
    "IPv6": (site(nodeSelector=SELECTOR, prefixes=["2001:db8::/32"]), "spec.prefixes[0]"),
    "empty selector": (site(nodeSelector={}), "spec.nodeSelector"),
    "site id too large": (site(nodeSelector=SELECTOR, siteID=65536), "spec.siteID"),
    "two base uplinks": (site(nodeSelector=SELECTOR, prefixes=["10.1.0.0/16"], wan=TWO_BASES), "spec"),
    "uplinks without any": (site(nodeSelector=SELECTOR, wan={"type": "Uplinks"}), "spec.wan"),
    "unknown enum": (site(nodeSelector=SELECTOR, wan={"type": "Carrier"}), "spec.wan.type"),
    "range backwards": (service(ports=[{"port": 90, "endPort": 80}]), "spec.ports[0]"),
    "to itself": (service(to={"site": "a"}), "spec"),
    "port 0": (service(ports=[{"port": 0}]), "spec.ports[0].port"),
    "percent": (service(percent=101), "spec.percent"),
    "external without": (controller(type="External"), "spec"),
    "memory": (agent(limits={"memoryMiB": 64, "sessionMemoryMiB": 65}), "spec.limits"),
    "unknown field": (service(transprt={}), "transprt"),
    "missing spec": ({k: v for k, v in agent().items() if k != "spec"}, "spec"),
}


def dry_run(kube: Kube, obj: dict[str, Any]) -> tuple[bool, str]:
    """The API server's verdict, with the strict decoding that `kubectl apply` asks for."""
    done = kube.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(obj), check=False)
    return done.returncode == 0, done.stderr


def objects(path: Path) -> list[dict[str, Any]]:
    return [item.obj for item in sos_compile.load([path])]


@pytest.mark.parametrize("name", VALID)
def test_valid_objects_are_taken_by_both(installed: Kube, name: str) -> None:
    good, words = dry_run(installed, copy.deepcopy(VALID[name]))
    assert good, words
    assert sos_compile.admit(VALID[name])[1] == []


@pytest.mark.parametrize("name", INVALID)
def test_invalid_objects_are_refused_by_both_with_the_field(installed: Kube, name: str) -> None:
    obj, path = INVALID[name]
    good, words = dry_run(installed, copy.deepcopy(obj))
    assert not good
    assert path in words
    problems = sos_compile.admit(obj)[1]
    assert problems
    assert any(path in (problem.path or problem.message) for problem in problems), problems


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_are_taken_by_both(installed: Kube, path: Path) -> None:
    for obj in objects(path):
        if obj.get("metadata", {}).get("namespace"):
            installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": obj["metadata"]["namespace"]}})
        good, words = dry_run(installed, obj)
        assert good, words
        if obj["apiVersion"].startswith("sos.network/"):
            assert sos_compile.admit(obj, str(path))[1] == []


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.name)
def test_bad_examples_get_the_same_verdict(installed: Kube, path: Path) -> None:
    for obj in objects(path):
        good, words = dry_run(installed, obj)
        problems = sos_compile.admit(obj, str(path))[1]
        assert good == (problems == []), (words, problems)
        if not good:
            fields = [problem.path for problem in problems]
            assert any(field in words for field in fields), (words, fields)
            assert problems[0].line().startswith(f"{path}: {obj['kind']} ")


def test_defaults_are_the_same(installed: Kube) -> None:
    """What the API server fills in is what the compilation fills in for files."""
    for name, obj in VALID.items():
        done = installed.kubectl("create", "--dry-run=server", "-f", "-", "-o", "yaml", stdin=yaml.safe_dump(obj))
        assert sos_compile.admit(obj)[0]["spec"] == yaml.safe_load(done.stdout)["spec"], name


def test_immutable_fields(installed: Kube) -> None:
    old = site(nodeSelector=SELECTOR, siteID=9)
    installed.apply(old)
    try:
        done = installed.kubectl("patch", "sossite", "table", "--type=merge", "-p", '{"spec":{"siteID":10}}', check=False)
        assert "spec.siteID is immutable" in done.stderr
        assert sos_compile.admit(site(nodeSelector=SELECTOR, siteID=10), old=old)[1]
        status = installed.get("sossite", "table")["status"]["conditions"]
        assert [(c["type"], c["status"], c["reason"]) for c in status] == [("Ready", "Unknown", "Pending")], "before any operator ran"
    finally:
        installed.kubectl("delete", "sossite", "table")


def test_the_kinds_are_described_and_listed_together(installed: Kube) -> None:
    assert "nodeSelector" in installed.kubectl("explain", "sossite.spec").stdout
    found = installed.kubectl("api-resources", "--categories=sos", "-o", "name").stdout.split()
    assert sorted(found) == [f"sos{kind}.sos.network" for kind in ("agents", "controllers", "links", "services", "sites")]
