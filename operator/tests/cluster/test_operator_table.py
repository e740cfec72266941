"""Rows of tables/objects.yaml on a real API server with a running operator: refused or reported, without effect on others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sos_compile
from operator_controller import Controller
from operator_fixtures import becomes, children, populated
from operator_kube import Kube
from operator_run import NAMESPACE, Operator, controller_keys, eventually, operator_running
from operator_table import TABLE, build, create, objects, path_of, send
from sos_compile.admission.load import crds

NODES = {"n1": "west", "n2": "west", "n3": "east", "n4": "middle", "n5": "home", "n6": "ring"}
KINDS = ("configmaps", "daemonsets", "deployments", "services", "secrets", "networkpolicies", "poddisruptionbudgets")
RECORD = "sos-operator-state"
"""ConfigMap with the operator's record of issued generations."""


@dataclass(frozen=True)
class Stage:
    """The operator, the controller that it configures, and the children of the `neighbours` rows."""

    operator: Operator
    controller: Controller
    children: dict[str, str]

    @property
    def kube(self) -> Kube:
        return self.operator.kube


@pytest.fixture(scope="module")
def stage(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Create the `neighbours` rows and a controller, and wait until the rows are accepted and the controller is configured."""
    with populated(installed) as kube:
        kube.kubectl("delete", "nodes", "--all")
        for name, value in NODES.items():
            kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"table": value}}})
        for obj in objects("neighbours"):
            assert create(kube, obj)["kind"] == obj["kind"]
        controller = Controller(kube, tmp_path_factory.mktemp("controller"))
        with operator_running(kube, tmp_path_factory.mktemp("table"), SOS_CONTROLLER_API_OVERRIDE=f"default={controller.url}") as operator:
            eventually("the Secrets of the controller", lambda: controller_keys(kube))
            try:
                controller.start()
                for obj in objects("neighbours"):
                    eventually(f"{obj['metadata']['name']} accepted", lambda obj=obj: is_accepted(kube, obj))
                becomes(kube, "soscontroller/default", "Ready", "True", "Available")
                operator.settle(3)
                yield Stage(operator, controller, children_of(kube))
            finally:
                controller.kill()


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


def children_of(kube: Kube) -> dict[str, str]:
    """Resource versions of the children of `neighbours`: all children except those of the rows that tests create and delete."""
    passing = {name for group in ("judged", "accepted") for name in TABLE[group]}
    found = [child for kind in KINDS for child in children(kube, kind)]
    found = [child for child in found if child["metadata"]["name"] != RECORD]
    kept = [child for child in found if passing.isdisjoint(owner["name"] for owner in child["metadata"].get("ownerReferences", ()))]
    return {f"{child['kind']}/{child['metadata']['name']}": child["metadata"]["resourceVersion"] for child in kept}


def gone(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return set(before) - set(after)


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)}


def neighbours_of(stage: Stage) -> dict[str, Any]:
    """State of `neighbours`: children, conditions with their transition times, and the controller's configuration."""
    kube = stage.kube
    told = {obj["metadata"]["name"]: conditions(kube, obj) for obj in objects("neighbours")}
    assert all(rows["Accepted"]["status"] == "True" for rows in told.values())
    assert told["default"]["Ready"]["status"] == "True"
    return {**children_of(kube), **told, "configuration": stage.controller.get("/v1/config")}


def test_the_table_is_long_enough() -> None:
    assert len(TABLE["accepted"]) >= 15
    assert len(TABLE["refused"]) + len(TABLE["judged"]) >= 60
    names = [name for group in ("neighbours", "accepted", "judged") for name in TABLE[group]]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", TABLE["refused"])
def test_invalid_objects_are_refused_with_field_and_remedy(stage: Stage, name: str) -> None:
    row = TABLE["refused"][name]
    field, *remedy = row["says"]
    answer = create(stage.kube, build(name, row), dry=True)
    assert answer["kind"] == "Status", "the object was accepted"
    assert field in named_fields(answer["message"]), answer["message"]
    assert remedy and [piece for piece in remedy if piece not in answer["message"]] == [], answer["message"]
    assert (row.get("words") == "server") == (not spoken_by_a_rule(row["kind"], answer["message"])), (
        "the source of the message differs from the table"
    )
    problems = sos_compile.admit(build(name, row))[1]
    assert [problem.path for problem in problems] == [with_dots(field)], "the compiler must report the same field without a cluster"


@pytest.mark.parametrize("name", TABLE["changes"])
def test_immutable_fields_of_existing_objects_cannot_be_changed(stage: Stage, name: str) -> None:
    answer = change(stage.kube, TABLE["changes"][name], dry=True)
    assert answer["kind"] == "Status", "the change was accepted"
    assert [piece for piece in TABLE["changes"][name]["says"] if piece not in answer["message"]] == [], answer["message"]


def change(kube: Kube, row: dict[str, Any], *, dry: bool) -> dict[str, Any]:
    _, name = row["object"].split("/")
    path = path_of(build(name, TABLE["neighbours"][name]), with_name=True)
    return send(kube, "PATCH", path, {"spec": row["patch"]}, dry=dry)


def with_dots(field: str) -> str:
    """Convert a path of the API server, which writes map keys in brackets, to dots."""
    return re.sub(r"\[([a-z]+)\]", r".\1", field)


def named_fields(message: str) -> list[str]:
    """Fields named in the message of an API server's Status."""
    return re.findall(r"(?:is invalid: \[?|, |unknown field \")((?:spec|metadata)[^:\" ]*)[:\"]", message)


def spoken_by_a_rule(kind: str, message: str) -> bool:
    return any(said in message for said in rule_messages(crds()[kind]["spec"]["versions"][0]["schema"]))


def rule_messages(schema: dict[str, Any]) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for below in schema.values():
        yield from rule_messages(below) if isinstance(below, dict) else ()


def test_an_invalid_object_is_reported_in_its_status_without_effect_on_others(stage: Stage) -> None:
    """All rows of `judged` exist simultaneously, after attempts to create all rows of `refused`."""
    kube, judged = stage.kube, objects("judged")
    before = neighbours_of(stage)
    for obj in objects("refused"):
        assert create(kube, obj)["kind"] == "Status", obj
    for row in TABLE["changes"].values():
        assert change(kube, row, dry=False)["kind"] == "Status", row
    with beside(kube):
        try:
            for obj in judged:
                assert create(kube, obj)["kind"] == obj["kind"], obj
            for obj in judged:
                eventually(f"the verdict on {obj['metadata']['name']}", lambda obj=obj: verdict(kube, obj))
            stage.operator.settle(2)
            assert differing(neighbours_of(stage), before) == {}
        finally:
            delete(kube, judged)
    stage.operator.settle(2)
    assert differing(neighbours_of(stage), before) == {}, "neighbours are unchanged after the deletion of the rows"


def verdict(kube: Kube, obj: dict[str, Any]) -> bool:
    row, rows = TABLE["judged"][obj["metadata"]["name"]], conditions(kube, obj)
    found = rows.get(row["condition"], {})
    expected = (row.get("status", "False"), row["reason"])
    assert (found.get("status"), found.get("reason")) == expected, rows
    assert [piece for piece in row["says"] if piece not in found["message"]] == [], found["message"]
    assert (rows["Ready"]["status"], rows["Ready"]["reason"]) == expected
    return True


@contextmanager
def beside(kube: Kube) -> Iterator[None]:
    """Objects of other owners that exist beforehand."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": NAMESPACE}, "stringData": {"token": "t"}}
    theirs = [secret, *(row["beside"] for row in TABLE["judged"].values() if "beside" in row)]
    kube.apply(*theirs)
    yield
    for obj in theirs:
        kube.kubectl("delete", obj["kind"], obj["metadata"]["name"], "-n", NAMESPACE)


def test_valid_objects_are_accepted_beside_existing_ones(stage: Stage) -> None:
    kube, right = stage.kube, objects("accepted")
    with beside(kube):
        for obj in right:
            assert create(kube, obj)["kind"] == obj["kind"], obj
        try:
            for obj in [*right, *objects("neighbours")]:
                eventually(f"{obj['metadata']['name']} accepted", lambda obj=obj: is_accepted(kube, obj))
            assert not gone(stage.children, children_of(kube)), "no child of neighbours is deleted"
        finally:
            delete(kube, right)


def delete(kube: Kube, objs: list[dict[str, Any]]) -> None:
    for obj in objs:
        send(kube, "DELETE", path_of(obj, with_name=True), {}, dry=False)
