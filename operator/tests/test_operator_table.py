"""Every row of tables/objects.yaml on a real API server, with a running operator: refused or judged, and nobody else notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sos_compile
from conftest import children, populated
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, eventually, operator_running
from operator_table import TABLE, build, create, objects, path_of, send

NODES = {"n1": "west", "n2": "west", "n3": "east", "n4": "middle", "n5": "home", "n6": "ring"}
KINDS = ("configmaps", "daemonsets", "deployments", "services", "secrets")


@pytest.fixture(scope="module")
def stage(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The neighbours, in place and reported on."""
    with populated(installed) as kube:
        kube.kubectl("delete", "nodes", "--all")
        for name, value in NODES.items():
            kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"table": value}}})
        for obj in objects("neighbours"):
            assert create(kube, obj)["kind"] == obj["kind"]
        with operator_running(kube, tmp_path_factory.mktemp("table")) as operator:
            for obj in objects("neighbours"):
                eventually(f"{obj['metadata']['name']} accepted", lambda obj=obj: is_accepted(kube, obj))
            operator.settle(3)
            yield operator


def conditions(kube: Kube, obj: dict[str, Any]) -> dict[str, dict[str, Any]]:
    meta = obj["metadata"]
    found = kube.get(obj["kind"], meta["name"], *(("-n", meta["namespace"]) if "namespace" in meta else ()))
    assert all(
        row["observedGeneration"] == found["metadata"]["generation"] for row in found["status"]["conditions"] if "observedGeneration" in row
    )
    return {row["type"]: row for row in found["status"]["conditions"]}


def is_accepted(kube: Kube, obj: dict[str, Any]) -> bool:
    rows = conditions(kube, obj)
    assert [t for t in ("Accepted", "ResolvedRefs") if rows.get(t, {}).get("status") == "False"] == [], rows
    return rows["Accepted"]["status"] == "True"


def rendered(kube: Kube) -> dict[str, Any]:
    """What the operator made of the objects, without what only tells versions apart."""
    return {f"{kind}/{o['metadata']['name']}": (o.get("spec"), o.get("data")) for kind in KINDS for o in children(kube, kind)}


def told(kube: Kube) -> dict[str, Any]:
    return {o["metadata"]["name"]: conditions(kube, o) for o in objects("neighbours")}


def test_the_table_is_long_enough() -> None:
    assert len(TABLE["accepted"]) >= 15
    assert len(TABLE["refused"]) + len(TABLE["judged"]) >= 60
    names = [name for group in ("neighbours", "accepted", "judged") for name in TABLE[group]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", TABLE["refused"])
def test_the_api_server_refuses_it_with_field_and_remedy(stage: Operator, name: str) -> None:
    row = TABLE["refused"][name]
    answer = create(stage.kube, build(name, row), dry=True)
    assert answer["kind"] == "Status", "it was taken"
    assert [piece for piece in row["says"] if piece not in answer["message"]] == [], answer["message"]
    problems = sos_compile.admit(build(name, row))[1]
    assert any(row["says"][0] in (problem.path or problem.message) for problem in problems), "without a cluster it must be judged the same"


@pytest.mark.parametrize("name", TABLE["changes"])
def test_what_others_depend_on_cannot_be_changed(stage: Operator, name: str) -> None:
    row = TABLE["changes"][name]
    kind, object_name = row["object"].split("/")
    path = path_of(build(object_name, TABLE["neighbours"][object_name]), with_name=True)
    answer = send(stage.kube, "PATCH", path, {"spec": row["patch"]}, dry=True)
    assert answer["kind"] == "Status", f"the {kind} was changed"
    assert [piece for piece in row["says"] if piece not in answer["message"]] == [], answer["message"]


def test_what_is_wrong_is_told_in_the_object_itself_and_neighbours_do_not_notice(stage: Operator) -> None:
    kube = stage.kube
    before = rendered(kube), told(kube)
    judged = objects("judged")
    for obj in judged:
        assert create(kube, obj)["kind"] == obj["kind"], obj

    def verdict(obj: dict[str, Any]) -> bool:
        row, rows = TABLE["judged"][obj["metadata"]["name"]], conditions(kube, obj)
        found = rows.get(row["condition"], {})
        assert (found.get("status"), found.get("reason")) == ("False", row["reason"]), rows
        assert [piece for piece in row["says"] if piece not in found["message"]] == [], found["message"]
        assert (rows["Ready"]["status"], rows["Ready"]["reason"]) == ("False", row["reason"])
        return True

    try:
        for obj in judged:
            eventually(f"the verdict on {obj['metadata']['name']}", lambda obj=obj: verdict(obj))
        stage.settle(2)
        assert (rendered(kube), told(kube)) == before
    finally:
        delete(kube, judged)


def test_what_is_right_is_accepted(stage: Operator) -> None:
    kube, right = stage.kube, objects("accepted")
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": NAMESPACE}, "stringData": {"token": "t"}})
    for obj in right:
        assert create(kube, obj)["kind"] == obj["kind"], obj
    try:
        for obj in right:
            eventually(f"{obj['metadata']['name']} accepted", lambda obj=obj: is_accepted(kube, obj))
    finally:
        delete(kube, right)
        kube.kubectl("delete", "secret", "theirs", "-n", NAMESPACE)


def delete(kube: Kube, objs: list[dict[str, Any]]) -> None:
    for obj in objs:
        send(kube, "DELETE", path_of(obj, with_name=True), {}, dry=False)
