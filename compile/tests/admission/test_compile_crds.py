"""Test conventions of the CRDs: every field has a description, and every value is bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from admission_specs import machine
from admission_table import CHANGES, TABLE, build
from sos_compile import admit
from sos_compile.admission import cel_rules
from sos_compile.admission.load import crds

KINDS = {
    "SosSite": "sossite",
    "SosAgent": "sosag",
    "SosService": "sossvc",
    "SosController": "sosctrl",
    "SosLink": "soslink",
    "SosPeer": "sospeer",
}


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, sub in schema.get("properties", {}).items():
        yield from fields(sub, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = crds()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


ALL = [(kind, path, schema) for kind in sorted(KINDS) for path, schema in fields(schema_of(kind))]


def test_crds_define_the_expected_kinds() -> None:
    assert {kind: crd["spec"]["names"]["shortNames"][0] for kind, crd in crds().items()} == KINDS
    for kind, crd in crds().items():
        assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.sos.network"
        assert crd["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sos"
        assert crd["spec"]["names"]["categories"] == ["sos"]
        assert crd["spec"]["scope"] == ("Namespaced" if kind == "SosService" else "Cluster")
        assert crd["spec"]["versions"][0]["subresources"] == {"status": {}}


def test_every_field_has_a_description() -> None:
    # The API server refuses a description of metadata.
    named = [(kind, path, schema) for kind, path, schema in ALL if not path.endswith(("[]", "{}", ".metadata"))]
    missing = [f"{kind}{path}" for kind, path, schema in named if not schema.get("description")]
    assert missing == []


def test_every_string_list_and_map_is_bounded() -> None:
    for kind, path, schema in ALL:
        if path.split(".")[1:2] in (["apiVersion"], ["kind"], ["metadata"]):
            continue
        if schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time":
            assert "maxLength" in schema, f"{kind}{path}"
        if schema.get("type") == "array":
            assert "maxItems" in schema, f"{kind}{path}"
            assert "x-kubernetes-list-type" in schema, f"{kind}{path}"
        if isinstance(schema.get("additionalProperties"), dict):
            assert "maxProperties" in schema, f"{kind}{path}"
        if schema.get("type") == "integer" and ".spec." in path:
            assert {"minimum", "maximum"} <= set(schema), f"{kind}{path}"


REMEDY = re.compile(r"\b(add|change|choose|delete|lower|must be|name|raise|remove|replace|set|shorten|swap|write)\b")


def test_every_validation_message_names_a_remedy() -> None:
    said = {rule["message"] for _, _, schema in ALL for rule in schema.get("x-kubernetes-validations", [])}
    assert [message for message in said if not REMEDY.search(message)] == []


def test_no_enumeration_has_one_value() -> None:
    assert [f"{kind}{path}" for kind, path, schema in ALL if len(schema.get("enum", [1, 2])) < 2] == []


def test_objects_with_only_default_values_are_valid() -> None:
    for kind in ("SosAgent", "SosController"):
        _, problems = admit(build(kind, {}))
        assert problems == []


def test_every_status_starts_as_pending() -> None:
    for kind in KINDS:
        default = schema_of(kind)["properties"]["status"]["default"]["conditions"][0]
        assert (default["type"], default["status"], default["reason"]) == ("Ready", "Unknown", "Pending")
        properties = schema_of(kind)["properties"]["status"]["properties"]
        assert properties["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
        assert "observedGeneration" in properties


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_columns_name_existing_fields(kind: str) -> None:
    known = {path for path, _ in fields(schema_of(kind))}
    for column in crds()[kind]["spec"]["versions"][0]["additionalPrinterColumns"]:
        path = column["jsonPath"]
        if ".conditions[" not in path and not path.startswith(".metadata"):
            assert path.replace("[0]", "") in known, path
    assert [column["name"] for column in crds()[kind]["spec"]["versions"][0]["additionalPrinterColumns"]][-1:] != []


def test_service_columns_match_the_design() -> None:
    columns = [c["name"].upper() for c in crds()["SosService"]["spec"]["versions"][0]["additionalPrinterColumns"] if not c.get("priority")]
    assert columns == ["FROM", "TO", "PORTS", "MODE", "READY", "REASON", "DATAPATHS", "AGE"]


def test_table_violates_every_validation_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this test, a rule that can never fail would stay undetected."""
    broken: set[str] = set()
    judge = cel_rules.holds

    def spy(rule: str, value: Any, old: Any = None) -> bool:
        result = judge(rule, value, old)
        if not result:
            broken.add(rule)
        return result

    monkeypatch.setattr(cel_rules, "holds", spy)
    for _, kind, spec, _, _ in TABLE:
        admit(build(kind, spec))
    for _, kind, before, after, _ in CHANGES:
        admit(build(kind, after), old=build(kind, before))
    admit(build("SosSite", {"nodeSelector": {"matchLabels": {"a": "b"}}}, name="a" * 64))
    admit(build("SosService", {"from": {"site": "a"}, "to": {"site": "b"}}, name="a" * 190))
    admit(build("SosPeer", machine(), name="gw.example"))
    everything = {rule["rule"] for _, _, schema in ALL for rule in schema.get("x-kubernetes-validations", [])}
    assert everything - broken == set()


COSTLY = re.compile(r"== *cidr\(|\bcidr\((\w|\.)+\)(\.(masked|ip)\(\))* *[=!]=")


def test_the_api_server_of_1_31_can_estimate_the_cost_of_every_rule() -> None:
    """Kubernetes 1.31 takes prefixes that are compared, and the text of an int-or-string whatever its maxLength, for as long as a request,
    and refuses a CRD whose rules could cost too much. Later versions accept these rules; the nightly suite runs on 1.31."""
    for kind, path, schema in ALL:
        for rule in [each["rule"] for each in schema.get("x-kubernetes-validations", [])]:
            assert not COSTLY.search(rule), f"{kind}{path}"
            in_map = path.endswith("{}") and schema.get("x-kubernetes-int-or-string")
            assert not (in_map and ".matches(" in rule), f"{kind}{path}"


@pytest.mark.parametrize("rule", ["1 +", "self.nowhere", "unknown(self)", "1"])
def test_invalid_cel_rule_raises_a_rule_error(rule: str) -> None:
    with pytest.raises(cel_rules.RuleError):
        cel_rules.holds(rule, {})
