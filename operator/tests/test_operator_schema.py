"""The CRDs on a real API server, and `sos_compile.admit`, which must judge as the API server does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sos_compile
import yaml
from operator_kube import ROOT, Kube
from operator_run import NAMESPACE
from operator_table import PLURALS, create
from operator_table import objects as table

UNITS = {"Mbps": "Mbit/s", "KiB": "KiB", "MiB": "MiB", "Seconds": "seconds", "mtu": "bytes", "percent": "percent"}
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*/*.yaml") if path.parent.name != "bad")
BAD = sorted((ROOT / "examples" / "bad").glob("*.yaml"))
SELECTOR = {"matchLabels": {"a": "b"}}


def site(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "immutable"}, "spec": spec}


def dry_run(kube: Kube, obj: dict[str, Any]) -> tuple[bool, str]:
    """The API server's verdict, with the strict decoding that `kubectl apply` asks for."""
    done = kube.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(obj), check=False)
    return done.returncode == 0, done.stderr


def objects(path: Path) -> list[dict[str, Any]]:
    return [item.obj for item in sos_compile.load([path])]


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
    installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for obj in [*table("neighbours"), *table("accepted")]:
        full, problems = sos_compile.admit(obj)
        assert problems == [], obj
        assert full["spec"] == create(installed, obj, dry=True)["spec"], obj


def test_every_field_is_explained(installed: Kube) -> None:
    """By the document that `kubectl explain` reads: what a field is, in more words than its name, with its unit and the bound of a list."""
    schemas = installed.get_raw("/openapi/v3/apis/sos.network/v1alpha1")["components"]["schemas"]
    for kind in PLURALS:
        for path, schema in fields(schemas[f"network.sos.v1alpha1.{kind}"], kind):
            text = schema.get("description", "")
            name = path.rpartition(".")[2]
            assert len(text) >= 20 and text.lower().rstrip(".") != name.lower(), f"{path}: {text!r}"
            unit = next((words for suffix, words in UNITS.items() if name.endswith(suffix)), "")
            assert unit in text, f"{path}: {text!r} does not name its unit, {unit}"
            most = f"{schema['maxItems']:,}" if "maxItems" in schema else ""
            assert re.search(rf"\b{most}\b", text), f"{path}: {text!r} does not say how many there may be, {most}"
        shown = installed.kubectl("explain", kind.lower()).stdout
        assert schemas[f"network.sos.v1alpha1.{kind}"]["description"].split(".")[0][:60] in " ".join(shown.split())


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, sub in schema.get("properties", {}).items():
        if name in ("apiVersion", "kind", "metadata"):
            continue  # every object's
        yield f"{path}.{name}", sub
        yield from fields(sub, f"{path}.{name}")
        yield from fields(sub.get("items", {}), f"{path}.{name}")


def test_immutable_fields(installed: Kube) -> None:
    old = site(nodeSelector=SELECTOR, siteID=9)
    installed.apply(old)
    try:
        done = installed.kubectl("patch", "sossite", "immutable", "--type=merge", "-p", '{"spec":{"siteID":10}}', check=False)
        assert "spec.siteID is immutable" in done.stderr
        assert sos_compile.admit(site(nodeSelector=SELECTOR, siteID=10), old=old)[1]
        status = installed.get("sossite", "immutable")["status"]["conditions"]
        assert [(c["type"], c["status"], c["reason"]) for c in status] == [("Ready", "Unknown", "Pending")], "before any operator ran"
    finally:
        installed.kubectl("delete", "sossite", "immutable")


def test_the_kinds_are_described_and_listed_together(installed: Kube) -> None:
    assert "nodeSelector" in installed.kubectl("explain", "sossite.spec").stdout
    found = installed.kubectl("api-resources", "--categories=sos", "-o", "name").stdout.split()
    assert sorted(found) == [f"sos{kind}.sos.network" for kind in ("agents", "controllers", "links", "services", "sites")]
