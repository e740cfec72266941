"""Admission as the API server does it, from the CRD files themselves: defaults, structural schema, list types, CEL rules.

The API server would prune an unknown field silently; this module reports the field, as `kubectl apply` does by requesting strict
validation.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
from jsonschema.exceptions import ValidationError

from sos_compile.admission import cel_rules
from sos_compile.admission.load import crds
from sos_compile.model.problem import Problem, Reason
from sos_compile.model.world import Json

GROUP = "sos.network"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
NAME = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")  # RFC 1123 subdomain, as Kubernetes requires
LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
MAX_NAME = 253
MAX_PROBLEMS = 64  # per object: users do not read more, and a hostile file could cause millions

Path = tuple[str | int, ...]


def admit(obj: Json, file: str | None = None, old: Json | None = None) -> tuple[Json, list[Problem]]:
    """Return the object with the schema's defaults, and every problem for which the API server would refuse it (at most 64).

    `old` is the object being replaced: with `old`, rules about immutable fields are evaluated as well. Defaults are also filled into `old`,
    as the API server does for stored objects. The given objects are not changed. A namespaced object without metadata.namespace gets
    `default`, as with kubectl.
    """
    full, found = _admit(obj, old)
    return full, [_problem(full, file, finding) for finding in found[:MAX_PROBLEMS]]


@dataclass(frozen=True)
class _Finding:
    path: Path
    message: str
    remedy: str = ""
    reason: Reason = Reason.INVALID


def _admit(obj: Json, old: Json | None) -> tuple[Json, list[_Finding]]:
    kind = obj.get("kind")
    crd = crds().get(kind) if isinstance(kind, str) else None
    if obj.get("apiVersion") != API_VERSION or crd is None:
        known = ", ".join(sorted(crds()))
        message = f"{obj.get('apiVersion')!s} {kind!s} is not a kind of SOS"
        return obj, [_Finding((), message, f"apiVersion: {API_VERSION} and one of {known}", Reason.UNKNOWN_KIND)]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    full = _defaulted(copy.deepcopy(obj), schema)
    found = _metadata(full, crd["spec"]["scope"] == "Namespaced")
    found += [_explain(error) for error in sorted(_validator(str(kind)).iter_errors(full), key=lambda e: [str(p) for p in e.absolute_path])]
    found += list(_duplicates(full, schema, ()))
    if not found:
        found = list(_rules(full, _defaulted(copy.deepcopy(old), schema), schema, ()))
    return full, found


def _problem(obj: Json, file: str | None, finding: _Finding) -> Problem:
    metadata = obj.get("metadata") if isinstance(obj.get("metadata"), dict) else {}
    name, namespace = (str(metadata.get(key) or "") for key in ("name", "namespace"))  # type: ignore[union-attr]
    path = render(finding.path)
    return Problem(str(obj.get("kind") or "object"), namespace, name, path, finding.reason, finding.message, finding.remedy, file)


def render(path: Path) -> str:
    """Return a field path as Kubernetes writes it: `spec.ports[0].endPort`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _metadata(obj: Json, namespaced: bool) -> list[_Finding]:
    metadata = obj.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        return []  # the schema reports this
    found = []
    name = metadata.get("name")
    if not isinstance(name, str) or not NAME.match(name) or len(name) > MAX_NAME:
        found.append(_Finding(("metadata", "name"), f"{name!r} is not a name", "lower-case letters, digits, '-' and '.', at most 253"))
    for field in ("labels", "annotations"):
        texts = metadata.get(field) or {}
        if not isinstance(texts, dict) or not all(isinstance(text, str) for pair in texts.items() for text in pair):
            found.append(_Finding(("metadata", field), "not a map of texts", "put values that look like numbers into quotes"))
    if not namespaced:
        if metadata.get("namespace"):
            found.append(_Finding(("metadata", "namespace"), f"a {obj['kind']} is cluster-scoped", "remove metadata.namespace"))
        return found
    namespace = metadata.setdefault("namespace", "default")
    if not isinstance(namespace, str) or not LABEL.match(namespace) or len(namespace) > 63:
        found.append(
            _Finding(("metadata", "namespace"), f"{namespace!r} is not a namespace", "lower-case letters, digits and '-', at most 63")
        )
    return found


def _defaulted(value: Any, schema: Json) -> Any:
    """Fill in defaults as the API server does: null counts as absent if the field has a default; whole floats become integers."""
    if isinstance(value, dict):
        for name, sub in schema.get("properties", {}).items():
            if "default" in sub and value.get(name) is None:
                value[name] = copy.deepcopy(sub["default"])
            if name in value:
                value[name] = _defaulted(value[name], sub)
    elif isinstance(value, list) and "items" in schema:
        return [_defaulted(item, schema["items"]) for item in value]
    elif isinstance(value, float) and value.is_integer() and schema.get("type") == "integer":
        return int(value)
    return value


@cache
def _validator(kind: str) -> Any:
    schema = crds()[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    prepared = _strict(schema)
    prepared["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(prepared)


def _strict(schema: Json) -> Json:
    """Return the schema as a JSON schema that refuses unknown fields."""
    result = {key: value for key, value in schema.items() if not key.startswith("x-") and key not in {"default", "description"}}
    if "properties" in schema:
        result["properties"] = {name: _strict(sub) for name, sub in schema["properties"].items()}
        result["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields", False))
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        result["items"] = _strict(schema["items"])
    return result


def _explain(error: ValidationError) -> _Finding:
    path: Path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        return _unknown_field(error, path)
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return _Finding((*path, missing), "required, but not given", f"set {render((*path, missing))}")
    return _Finding(path, _MESSAGES.get(str(error.validator), lambda e: str(e.message))(error))


def _unknown_field(error: ValidationError, path: Path) -> _Finding:
    known = list(error.schema.get("properties", {}))
    unknown = next(name for name in error.instance if name not in known)
    close = difflib.get_close_matches(str(unknown), known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"the fields here are {', '.join(known)}"
    return _Finding((*path, unknown), f'unknown field "{render((*path, unknown))}"', remedy)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_TYPES = {"dict": "object", "list": "array", "str": "string", "int": "integer", "bool": "boolean", "float": "number", "NoneType": "null"}
_MESSAGES = {
    "type": lambda e: f"must be of type {e.validator_value}, not {_TYPES.get(type(e.instance).__name__, type(e.instance).__name__)}",
    "enum": lambda e: f"{_shown(e.instance)} is not one of {', '.join(map(str, e.validator_value))}",
    "minimum": lambda e: f"must be at least {e.validator_value}, not {e.instance}",
    "maximum": lambda e: f"must be at most {e.validator_value}, not {e.instance}",
    "maxLength": lambda e: f"has at most {e.validator_value} characters, not {len(e.instance)}",
    "minLength": lambda e: f"has at least {e.validator_value} characters, not {len(e.instance)}",
    "maxItems": lambda e: f"has at most {e.validator_value} entries, not {len(e.instance)}",
    "minItems": lambda e: f"has at least {e.validator_value} entries, not {len(e.instance)}",
    "maxProperties": lambda e: f"has at most {e.validator_value} entries, not {len(e.instance)}",
    "anyOf": lambda e: f"must be a number or a string: {_shown(e.instance)}",
}


def _children(value: Any, schema: Json) -> Iterator[tuple[str | int, Any, Json]]:
    if isinstance(value, dict):
        extra = schema.get("additionalProperties")
        for name, item in value.items():
            sub = schema.get("properties", {}).get(name, extra if isinstance(extra, dict) else None)
            if sub is not None:
                yield name, item, sub
    elif isinstance(value, list) and "items" in schema:
        for i, item in enumerate(value):
            yield i, item, schema["items"]


def _duplicates(value: Any, schema: Json, path: Path) -> Iterator[_Finding]:
    """Duplicate entries in lists of type map or set."""
    if isinstance(value, list) and schema.get("x-kubernetes-list-type") in {"map", "set"}:
        seen: list[Any] = []
        for i, item in enumerate(value):
            key = _list_key(item, schema)
            if key in seen:
                yield _Finding((*path, i), f"the same entry is given twice: {_shown(key)}", "remove one")
            seen.append(key)
    for part, item, sub in _children(value, schema):
        yield from _duplicates(item, sub, (*path, part))


def _list_key(item: Any, schema: Json) -> Any:
    keys = schema.get("x-kubernetes-list-map-keys")
    return {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item


def _rules(value: Any, old: Any, schema: Json, path: Path) -> Iterator[_Finding]:
    """CEL rules that do not hold, outermost first. Rules about oldSelf are evaluated only if there is an old value."""
    for rule in schema.get("x-kubernetes-validations", []):
        if cel_rules.USES_OLD_SELF.search(rule["rule"]) and old is None and not rule.get("optionalOldSelf"):
            continue
        if not cel_rules.holds(rule["rule"], value, old):
            field = tuple(str(rule.get("fieldPath", "")).strip(".").split(".")) if rule.get("fieldPath") else ()
            yield _Finding((*path, *field), rule["message"])
    for part, item, sub in _children(value, schema):
        yield from _rules(item, _old_child(part, item, old, schema), sub, (*path, part))


def _old_child(part: str | int, item: Any, old: Any, schema: Json) -> Any:
    """Return the old value of a child: by name in objects, by key in lists of type map, none in other lists."""
    if isinstance(old, dict):
        return old.get(part)
    if isinstance(old, list) and schema.get("x-kubernetes-list-type") == "map":
        return next((each for each in old if _list_key(each, schema) == _list_key(item, schema)), None)
    return None
