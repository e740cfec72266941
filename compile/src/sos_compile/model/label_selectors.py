"""Kubernetes label selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the plugin imports this module without pydantic (scripts/plugin.py)
    from sos_compile.model.world import Json


def selects(selector: Json, labels: dict[str, str]) -> bool:
    """Return whether a label selector matches labels, as in Kubernetes (an empty selector matches everything)."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_expression_holds(each, labels) for each in selector.get("matchExpressions", []))


def _expression_holds(expression: Json, labels: dict[str, str]) -> bool:
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
        case "Exists":
            return value is not None
        case _:
            return value is None
