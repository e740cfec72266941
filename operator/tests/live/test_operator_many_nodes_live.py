"""An Overlay site with many nodes on a real API server: its documents fit into their ConfigMap, as their common content is stored once
(docs/adr/0085)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from operator_fixtures import becomes, children, populated
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running
from sos_compile.documents.parts import file_name, standalone
from sos_compile.model.formats.shared import content_hash

COUNT = 150
MAP = "sos-node-many"
SITE = {
    "apiVersion": "sos.network/v1alpha1",
    "kind": "SosSite",
    "metadata": {"name": "many"},
    "spec": {"nodeSelector": {"matchLabels": {"sos.network/site": "many"}}, "wan": {"type": "Overlay"}},
}


def add(kube: Kube, *numbers: int) -> None:
    """Add nodes with addresses."""
    labels = {"sos.network/site": "many"}
    kube.apply(*({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"m{n}", "labels": labels}} for n in numbers))
    for n in numbers:
        kube.patch_status("node", f"m{n}", "", {"addresses": [{"type": "InternalIP", "address": f"172.18.{n // 250}.{n % 250 + 1}"}]})


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("many")
    with populated(installed) as kube, operator_running(kube, folder, SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1") as running:
        add(kube, *range(COUNT))
        kube.apply({"apiVersion": "sos.network/v1alpha1", "kind": "SosController", "metadata": {"name": "default"}, "spec": {}}, SITE)
        yield running


def documents(kube: Kube) -> dict[str, dict[str, Any]]:
    """The node-configs of the site with their parts, each of which must be there."""
    if MAP not in [each["metadata"]["name"] for each in children(kube, "configmaps")]:
        return {}
    files = {name: json.loads(text) for name, text in kube.get("configmap", MAP, "-n", NAMESPACE)["data"].items()}
    found = {}
    for name, document in files.items():
        if not name.startswith("part-"):
            parts = {part: files[file_name(part)] for part in document.get("include", ())}
            assert all(content_hash(content) == part for part, content in parts.items())
            found[document["node"]] = standalone(document, parts)
    return found


def meshes(kube: Kube) -> list[int]:
    """The sizes of all nodes' meshes."""
    return sorted(len(each.get("mesh", {}).get("nodes", ())) for each in documents(kube).values())


def test_all_nodes_know_each_other_also_after_one_has_joined(operator: Operator) -> None:
    kube = operator.kube
    eventually("the documents", lambda: meshes(kube) == [COUNT] * COUNT, 120)
    size = sum(map(len, kube.get("configmap", MAP, "-n", NAMESPACE)["data"].values()))
    assert size < 1_000_000
    becomes(kube, "sossite/many", "Accepted", "True", "Accepted")
    before = documents(kube)
    add(kube, COUNT)
    eventually("the new documents", lambda: meshes(kube) == [COUNT + 1] * (COUNT + 1), 120)
    generations = {name: (each["generation"], before[name]["generation"]) for name, each in documents(kube).items() if name in before}
    assert all(now > then for now, then in generations.values())
    names = list(kube.get("configmap", MAP, "-n", NAMESPACE)["data"])
    assert sum(name.startswith("part-") for name in names) == 2, "parts that no document names are removed"


def test_the_deleted_site_leaves_nothing(operator: Operator) -> None:
    kube = operator.kube
    kube.kubectl("delete", "sossite", "many", "--wait=false")
    eventually("no site", lambda: not kube.items("sossites"), 120)
    eventually("no documents", lambda: MAP not in [each["metadata"]["name"] for each in children(kube, "configmaps")], 60)
