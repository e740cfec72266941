"""Check of helm commands: verbs, options, and values against the chart's schema.

The tables have what the pages use; a test compares them with the help of helm itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from shell_blocks import options
from shell_blocks.shell import is_placeholder

WITH_VALUE = ("-n", "--namespace", "--kube-context", "-f", "--values", "--set", "--set-string", "--version", "--timeout", "--revision")
FLAGS = (
    *("--create-namespace", "--wait", "--reuse-values", "--reset-then-reuse-values", "--no-hooks", "--install", "--atomic"),
    *("--dry-run", "--help", "-h"),
)
OPERANDS = {
    "install": 2, "upgrade": 2, "template": 2, "uninstall": 1, "test": 1, "rollback": 1, "push": 2, "pull": 1, "lint": 1, "list": 0,
    "status": 1, "history": 1, "get": 2, "package": 1, "registry": 1, "show": 2,
}  # fmt: skip
"""Verbs, each with the least number of its operands."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Schemas:
    """Schema of the chart's values, and of the specs that some of the values are."""

    values: Json
    specs: Mapping[str, Json]


def read_schemas(top: Path) -> Schemas:
    """Read the schemas of a repository."""
    values = yaml.safe_load((top / "charts/sos/values.schema.json").read_text(encoding="utf-8"))
    specs = {}
    for part in ("controller", "agent"):
        crd = yaml.safe_load((top / f"crds/sos{part}s.sos.network.yaml").read_text(encoding="utf-8"))
        specs[f"defaults.{part}.spec"] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return Schemas(values, specs)


def problems(words: Sequence[str], schemas: Schemas, *, mention: bool) -> Iterator[str]:
    """Report unknown verbs, options and values in the words after `helm`."""
    given = options.split(words, WITH_VALUE, FLAGS)
    yield from (f"helm: unknown option {name}" for name in given.unknown)
    if not given.operands:
        if not mention:
            yield "helm: no verb"
        return
    verb, *operands = given.operands
    if verb not in OPERANDS:
        yield f"helm: unknown verb {verb}"
    elif len(operands) < OPERANDS[verb] and not mention:
        yield f"helm {verb}: too few arguments"
    for text in given.values("--set"):
        for pair in text.split(","):
            yield from wrong_value(pair, schemas)


def wrong_value(pair: str, schemas: Schemas) -> Iterator[str]:
    """Report a value KEY=VALUE that the schemas do not have, or not with this value."""
    path, equals, text = pair.partition("=")
    if not equals:
        yield f"helm --set {pair}: write KEY=VALUE"
        return
    schema: Json | None = schemas.values
    names = path.split(".")
    for at, name in enumerate(names):
        schema = _below(schema, name.partition("[")[0], schemas.values)
        schema = schemas.specs.get(".".join(names[: at + 1]), schema)
        if schema is None:
            yield f"helm --set {path}: the chart has no value {'.'.join(names[: at + 1])}"
            return
    if not is_placeholder(text) and schema:
        whole = {**schema, "definitions": schemas.values.get("definitions", {})}
        for error in jsonschema.Draft7Validator(whole).iter_errors(yaml.safe_load(text)):
            yield f"helm --set {pair}: {error.message}"


def _below(schema: Json | None, name: str, root: Json) -> Json | None:
    """Schema of a property; {} where anything is allowed, None where it does not exist."""
    if not schema:
        return schema
    if "$ref" in schema:
        return _below(_resolved(schema["$ref"], root), name, root)
    properties = schema.get("properties", {})
    if name in properties:
        found: Json = properties[name]
        return _resolved(found["$ref"], root) if "$ref" in found else found
    others = schema.get("additionalProperties", not properties)
    return others if isinstance(others, dict) else {} if others else None


def _resolved(reference: str, root: Json) -> Json:
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return dict(found)
