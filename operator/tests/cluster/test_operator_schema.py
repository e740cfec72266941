"""Agreement of the CRDs on a real API server with `sos_compile.admit`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
EVERYBODYS = ("apiVersion", "kind", "metadata")
SELECTOR = {"matchLabels": {"a": "b"}}


def site(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": "immutable"}, "spec": spec}


def dry_run(kube: Kube, obj: dict[str, Any]) -> tuple[bool, str]:
    """The API server's verdict, with strict decoding as in `kubectl apply`."""
    done = kube.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=yaml.safe_dump(obj), check=False)
    return done.returncode == 0, done.stderr


def objects(path: Path) -> list[dict[str, Any]]:
    return [item.obj for item in sos_compile.load([path])]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_examples_are_accepted_by_api_server_and_compiler(installed: Kube, path: Path) -> None:
    for obj in objects(path):
        if obj.get("metadata", {}).get("namespace"):
            installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": obj["metadata"]["namespace"]}})
        good, words = dry_run(installed, obj)
        assert good, words
        if obj["apiVersion"].startswith("sos.network/"):
            assert sos_compile.admit(obj, str(path))[1] == []


@pytest.mark.parametrize("path", BAD, ids=lambda p: p.name)
def test_bad_examples_get_the_same_verdict_from_both(installed: Kube, path: Path) -> None:
    for obj in objects(path):
        good, words = dry_run(installed, obj)
        problems = sos_compile.admit(obj, str(path))[1]
        assert good == (problems == []), (words, problems)
        if not good:
            fields = [problem.path for problem in problems]
            assert any(field in words for field in fields), (words, fields)
            assert problems[0].line().startswith(f"{path}: {obj['kind']} ")


def test_api_server_and_compiler_set_the_same_defaults(installed: Kube) -> None:
    """The API server and the compiler fill in the same defaults."""
    installed.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for obj in [*table("neighbours"), *table("accepted")]:
        full, problems = sos_compile.admit(obj)
        assert problems == [], obj
        assert full["spec"] == create(installed, obj, dry=True)["spec"], obj


def test_every_published_field_has_a_description(installed: Kube) -> None:
    """The schema for `kubectl explain` describes each field in a sentence, with its unit and the bound of a list."""
    for kind, schema in served(installed).items():
        for path, field in fields(schema, kind):
            text = field.get("description", "")
            name = path.rpartition(".")[2]
            assert len(text) >= 20 and len(text.split()) >= 3 and text.lower().rstrip(".") != name.lower(), f"{path}: {text!r}"
            assert text[0].isupper() and text.endswith((".", ")")), f"{path}: {text!r} is no sentence"
            unit = next((words for suffix, words in UNITS.items() if name.endswith(suffix)), "")
            assert unit in text, f"{path}: {text!r} does not name its unit, {unit}"
            most = f"{field['maxItems']:,}" if "maxItems" in field else ""
            assert re.search(rf"\b{most}\b", text), f"{path}: {text!r} does not say how many there may be, {most}"


@pytest.mark.parametrize("kind", PLURALS)
def test_kubectl_explains_every_field(installed: Kube, kind: str) -> None:
    """Runs `kubectl explain`: its tree has all fields, and it prints the descriptions of the upper two levels and of the deepest field."""
    known = dict(fields(served(installed)[kind], kind.lower()))
    assert tree(installed.kubectl("explain", kind.lower(), "--recursive").stdout, kind.lower()) == set(known)
    deepest = max(known, key=lambda path: path.count("."))
    asked = [path for path in known if path.count(".") <= 2 and ".status." not in path] + [deepest]
    with ThreadPoolExecutor(4) as pool:
        for path, shown in zip(asked, pool.map(lambda path: installed.kubectl("explain", path).stdout, asked), strict=True):
            assert words(known[path]["description"]) in words(shown), f"{path}: {shown}"
    assert words(served(installed)[kind]["description"]) in words(installed.kubectl("explain", kind.lower()).stdout)


def served(kube: Kube) -> dict[str, dict[str, Any]]:
    """Schemas published by the API server, by kind."""
    schemas = kube.get_raw("/openapi/v3/apis/sos.network/v1alpha1")["components"]["schemas"]
    return {kind: schemas[f"network.sos.v1alpha1.{kind}"] for kind in PLURALS}


def words(text: str) -> str:
    return " ".join(text.split())


def tree(shown: str, kind: str) -> set[str]:
    """Paths of the fields in the output of `kubectl explain --recursive`, which indents each level by two columns."""
    found, path = set(), [kind]
    for line in shown.partition("FIELDS:\n")[2].splitlines():
        row = re.fullmatch(r"((?:  )+)(\w+)\t<.*", line)
        if row:
            path = [*path[: len(row[1]) // 2], row[2]]
            found.add(".".join(path))
    return {each for each in found if each.split(".")[1] not in EVERYBODYS}


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, sub in schema.get("properties", {}).items():
        if "." not in path and name in EVERYBODYS:
            continue
        yield f"{path}.{name}", sub
        yield from fields(sub, f"{path}.{name}")
        yield from fields(sub.get("items", {}), f"{path}.{name}")


def test_changes_of_immutable_fields_are_refused(installed: Kube) -> None:
    old = site(nodeSelector=SELECTOR, siteID=9)
    installed.apply(old)
    try:
        done = installed.kubectl("patch", "sossite", "immutable", "--type=merge", "-p", '{"spec":{"siteID":10}}', check=False)
        assert "spec.siteID is immutable" in done.stderr
        assert sos_compile.admit(site(nodeSelector=SELECTOR, siteID=10), old=old)[1]
        status = installed.get("sossite", "immutable")["status"]["conditions"]
        assert [(c["type"], c["status"], c["reason"]) for c in status] == [("Ready", "Unknown", "Pending")], (
            "the default status without an operator"
        )
    finally:
        installed.kubectl("delete", "sossite", "immutable")


def test_the_kinds_are_described_and_listed_together(installed: Kube) -> None:
    assert "nodeSelector" in installed.kubectl("explain", "sossite.spec").stdout
    found = installed.kubectl("api-resources", "--categories=sos", "-o", "name").stdout.split()
    assert sorted(found) == [f"sos{kind}.sos.network" for kind in ("agents", "controllers", "links", "peers", "services", "sites")]
