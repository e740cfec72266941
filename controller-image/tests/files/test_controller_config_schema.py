"""Check that the controller's configuration types are as strict as the contract (spec/controller-config.schema.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from sos_controller.core.config import Config

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "spec" / "controller-config.schema.json").read_text())
TYPES = msgspec.json.schema(Config)
LIMITS = ("minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "additionalProperties")
PARSED = ("address", "mac", "gateway", "subnet", "client", "prefixes[]", "to[]")
"""Fields that `files/config.py` also parses as addresses or prefixes, which is stricter than a pattern."""


def resolved(document: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = document["$defs"][node["$ref"].rpartition("/")[2]]
    choices = [choice for choice in node.get("anyOf", []) if choice.get("type") != "null"]
    return resolved(document, choices[0]) if choices else node


def limits(node: dict[str, Any], *, parsed: bool) -> dict[str, Any]:
    """Return the limits of a field in one notation: Python's \\Z becomes the $ of a schema."""
    found = {limit: node[limit] for limit in LIMITS if limit in node}
    if "enum" in node or "const" in node:
        found["values"] = sorted(node.get("enum", [node.get("const")]))
    if "pattern" in node and not parsed:
        found["pattern"] = node["pattern"].replace("\\Z", "$")
    return found


def fields(schema: dict[str, Any], types: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    schema, types = resolved(SCHEMA, schema), resolved(TYPES, types)
    parsed = path.endswith(PARSED)
    yield path, limits(schema, parsed=parsed), limits(types, parsed=parsed)
    assert schema.get("properties", {}).keys() == types.get("properties", {}).keys(), path
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, types["properties"][name], f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], types["items"], f"{path}[]")


def test_every_field_has_the_limits_of_the_contract() -> None:
    found = list(fields(SCHEMA, TYPES, "document"))
    assert len(found) > 60
    assert [field for field in found if field[1] != field[2]] == []
