"""Draw values at the limits of a CRD's schema, for any field. A field that is added to a CRD needs no change here."""

from __future__ import annotations

import random
from typing import Any

from sos_compile.admission import cel_rules
from sos_compile.admission.load import crds

TEXTS = (
    *("", "a", "default", "é" * 31, "a" * 63, "z" * 253, "\u0000", "-x", "Auto", "1%", "100%", "0%", "500m", "1e9", "1Gi", "x:latest"),
    *("10.0.0.0/8", "10.3.0.0/24", "10.3.0.1/24", "10.255.255.255/32", "127.0.0.0/8", "fd00::/64", "0.0.0.0/0", "192.0.2.0/30"),
    *("10.0.0.1", "0.0.0.0", "255.255.255.255", "fd00::1", "0000000000000001", "ffffffffffffffff", "000200000000000a"),
    *("tcp:192.0.2.1:6653", "tcp:255.255.255.255:65535", "https://192.0.2.1:8080", "http://x", "wan0", "w" * 15, "core-1", "eth0.100"),
)
"""Each string field of the schemas accepts some of these texts."""
PATIENCE = 40  # maximum number of draws before a string that violates the rules of its field is used


class SchemaLimits:
    """Draw values of schemas."""

    def __init__(self, source: random.Random) -> None:
        self.r = source

    def spec(self, kind: str, spec: dict[str, Any]) -> None:
        """Replace or add a field or two of a kind's spec."""
        crd = crds().get(kind)
        if crd is None:
            return
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for _ in range(self.r.choice((1, 1, 2))):
            name = self.r.choice(sorted(schema["properties"]))
            spec[name] = self.value(schema["properties"][name])

    def value(self, schema: dict[str, Any]) -> Any:
        """Draw a value at a limit, rarely one beyond it."""
        if "enum" in schema:
            return self.r.choice(schema["enum"])
        if schema.get("x-kubernetes-int-or-string"):
            return self.r.choice((self._number(schema), self._text(schema)))
        return _BY_TYPE[schema["type"]](self, schema)

    def _number(self, schema: dict[str, Any]) -> int:
        low, high = schema.get("minimum", 0), schema.get("maximum", 2**31 - 1)
        return int(self.r.choice((low - 1, high + 1)) if self.r.random() < 0.03 else self.r.choice((low, low + 1, high, high - 1)))

    def _text(self, schema: dict[str, Any]) -> str:
        most = schema.get("maxLength", 300)
        for _ in range(PATIENCE):
            text = self.r.choice((*TEXTS, "x" * most, "é" * most))[:most]
            holds = all(cel_rules.holds(rule["rule"], text, text) for rule in schema.get("x-kubernetes-validations", ()))
            if holds and len(text) >= schema.get("minLength", 0):
                return text
        return self.r.choice(TEXTS)

    def _boolean(self, _schema: dict[str, Any]) -> bool:
        return self.r.random() < 0.5

    def _list(self, schema: dict[str, Any]) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", 4)
        count = self.r.choice((most, most + 1)) if self.r.random() < 0.05 else min(most, self.r.choice((least, least + 1, 2, 3)))
        found = [self.value(schema["items"]) for _ in range(count)]
        kept = {repr(item if isinstance(item, str) else item.get("name", item)): item for item in found if isinstance(item, str | dict)}
        return list(kept.values()) if schema.get("x-kubernetes-list-type") in ("set", "map") else found

    def _object(self, schema: dict[str, Any]) -> dict[str, Any]:
        if "properties" not in schema:
            names = self.r.sample(TEXTS, min(schema.get("maxProperties", 3), self.r.choice((0, 1, 16))))
            each = schema.get("additionalProperties")
            return {name: self.value(each) if isinstance(each, dict) else name for name in names}
        needed = set(schema.get("required", ()))
        return {name: self.value(sub) for name, sub in schema["properties"].items() if name in needed or self.r.random() < 0.5}


_BY_TYPE = {
    "integer": SchemaLimits._number,
    "string": SchemaLimits._text,
    "boolean": SchemaLimits._boolean,
    "array": SchemaLimits._list,
    "object": SchemaLimits._object,
}
