from __future__ import annotations

import copy
from typing import Any

import pytest
from admission_specs import SELECT
from admission_table import CHANGES, TABLE, build
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Reason, admit
from sos_compile.admission.load import crds


@pytest.mark.parametrize(("name", "kind", "spec", "path", "message"), TABLE, ids=[f"{row[1]}-{row[0]}" for row in TABLE])
def test_admission_matches_the_table(name: str, kind: str, spec: dict[str, Any], path: str | None, message: str | None) -> None:
    _, problems = admit(build(kind, spec), "some.yaml")
    if path is None:
        assert problems == []
        return
    assert path in [problem.path for problem in problems]
    assert all(problem.file == "some.yaml" and problem.name == "probe" and problem.kind == kind for problem in problems)
    assert message is None or any(message in problem.message for problem in problems)


@pytest.mark.parametrize(("name", "kind", "before", "after", "message"), CHANGES, ids=[row[0] for row in CHANGES])
def test_changes_are_validated_against_the_old_object(
    name: str, kind: str, before: dict[str, Any], after: dict[str, Any], message: str | None
) -> None:
    old = build(kind, before)  # without defaults, as a user wrote it
    _, problems = admit(build(kind, after), old=old)
    assert old == build(kind, before)
    assert bool(problems) == (message is not None)
    assert message is None or message in problems[0].message


def test_defaults_apply_to_nested_objects() -> None:
    full, problems = admit(build("SosSite", SELECT))
    assert problems == []
    assert full["spec"]["wan"] == {"type": "Overlay"}
    assert full["spec"]["datapath"] == {"rewrite": "Transparent", "type": "Auto"}
    assert full["spec"]["controllers"] == [{"name": "default"}]
    assert full["status"]["conditions"][0]["message"] == "Waiting for the operator"


def test_defaults_apply_to_list_items() -> None:
    full, _ = admit(build("SosSite", {**SELECT, "wan": {"type": "Uplinks", "uplinks": [{"name": "wan0"}]}}))
    assert full["spec"]["wan"]["uplinks"] == [{"name": "wan0", "base": False}]


def test_null_counts_as_absent_for_fields_with_a_default() -> None:
    full, problems = admit(build("SosSite", {**SELECT, "wan": None}))
    assert problems == []
    assert full["spec"]["wan"] == {"type": "Overlay"}


def test_admission_does_not_change_its_input() -> None:
    given_object = build("SosSite", SELECT)
    before = copy.deepcopy(given_object)
    admit(given_object)
    assert given_object == before


@pytest.mark.parametrize(
    "change",
    [
        {"apiVersion": "sos.network/v2"},
        {"kind": "SosThing"},
        {"kind": None},
        {"kind": ["SosSite"]},
        {"apiVersion": "v1", "kind": "ConfigMap"},
    ],
)
def test_other_kinds_are_refused(change: dict[str, Any]) -> None:
    _, problems = admit({**build("SosSite", SELECT), **change})
    assert [problem.reason for problem in problems] == [Reason.UNKNOWN_KIND]


@pytest.mark.parametrize(
    ("kind", "metadata", "path"),
    [
        ("SosSite", {}, "metadata.name"),
        ("SosSite", {"name": "Upper"}, "metadata.name"),
        ("SosSite", {"name": 7}, "metadata.name"),
        ("SosSite", {"name": "a" * 64}, ""),
        ("SosSite", {"name": "a", "namespace": "default"}, "metadata.namespace"),
        ("SosService", {"name": "a", "namespace": "a.b"}, "metadata.namespace"),
        ("SosSite", None, "metadata.name"),
    ],
)
def test_metadata_is_validated(kind: str, metadata: Any, path: str) -> None:
    spec = SELECT if kind == "SosSite" else {"from": {"site": "a"}, "to": {"site": "b"}}
    obj = {**build(kind, spec), "metadata": metadata}
    _, problems = admit(obj if metadata is not None else {key: value for key, value in obj.items() if key != "metadata"})
    assert path in [problem.path for problem in problems]


def test_service_without_a_namespace_is_in_default() -> None:
    obj = build("SosService", {"from": {"site": "a"}, "to": {"site": "b"}})
    del obj["metadata"]["namespace"]
    full, problems = admit(obj)
    assert problems == []
    assert full["metadata"]["namespace"] == "default"


def test_unknown_field_yields_a_suggestion() -> None:
    _, problems = admit(build("SosService", {"from": {"site": "a"}, "to": {"site": "b"}, "prots": []}), "f.yaml")
    assert problems[0].line() == 'f.yaml: SosService default/probe: spec.prots: unknown field "spec.prots" (did you mean ports?)'


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(
    {
        name
        for crd in crds().values()
        for name in crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    }
)


@given(st.sampled_from(sorted(crds())), st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=6), JSON_VALUES)
def test_admission_raises_no_exception_for_any_json(kind: str, spec: dict[str, Any], whole: Any) -> None:
    for value in (spec, whole):
        full, problems = admit(build(kind, value))
        assert isinstance(full, dict)
        assert len(problems) <= 64
        again, same = admit(full)
        if not problems:
            assert (again, same) == (full, [])
