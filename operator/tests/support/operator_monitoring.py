"""Prometheus for tests: definitions of Prometheus Operator's kinds, metrics of SOS programs, and parsed queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import promql_parser
import yaml
from operator_kube import ROOT, Kube

# Labels that Prometheus adds to every sample of a target; the PodMonitors of core/desired/release.py add node and site.
TARGET_LABELS = {"namespace", "pod", "job", "instance", "container", "endpoint", "node", "site"}
TEXT = {"type": "string"}
TEXTS = {"type": "object", "additionalProperties": TEXT}


def listed(**properties: Any) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": properties}}


RULE = {"action": TEXT, "sourceLabels": {"type": "array", "items": TEXT}, "regex": TEXT, "targetLabel": TEXT}
SPECS = {
    "PodMonitor": {
        "selector": {"type": "object", "properties": {"matchLabels": TEXTS}},
        "podMetricsEndpoints": listed(path=TEXT, interval=TEXT, relabelings=listed(**RULE)),
    },
    "PrometheusRule": {
        "groups": listed(name=TEXT, rules=listed(**{"alert": TEXT, "expr": TEXT, "for": TEXT, "labels": TEXTS, "annotations": TEXTS})),
    },
}


@contextmanager
def served(kube: Kube, kind: str) -> Iterator[None]:
    """Make the API server accept objects of a kind, with only the fields that SOS uses."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": SPECS[kind]}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
    kube.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(crd))
    kube.kubectl("wait", "--for=condition=Established", "crd", crd["metadata"]["name"], "--timeout=30s")
    try:
        yield
    finally:
        kube.kubectl("delete", "crd", crd["metadata"]["name"])


@dataclass(frozen=True)
class Metric:
    type: str
    labels: frozenset[str]


@cache
def metrics() -> dict[str, Metric]:
    """Every metric that can be queried, with its labels, from the tables in spec/metrics."""
    found = {}
    for path in sorted((ROOT / "spec" / "metrics").glob("*.tsv")):
        for line in path.read_text().splitlines():
            name, type_, labels, _ = line.split("\t")
            own = frozenset(filter(None, labels.split(",")))
            histogram = {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
            found |= {
                each: Metric(type_, each_labels) for each, each_labels in (histogram if type_ == "histogram" else {name: own}).items()
            }
    return found | {"up": Metric("gauge", frozenset())}


@dataclass(frozen=True)
class Query:
    """Parts of a query: metrics with the labels of their matchers; labels of the grouping; metrics inside rate or increase."""

    chosen: dict[str, set[str]]
    grouped: set[str]
    increasing: set[str]


def taken_apart(text: str) -> Query:
    """Parse a query; raise ValueError if it is not PromQL."""
    query = Query({}, set(), set())
    _walk(promql_parser.parse(text), query, False)
    return query


def _walk(part: Any, query: Query, increase: bool) -> None:
    if isinstance(part, promql_parser.VectorSelector):
        query.chosen.setdefault(part.name, set()).update(matcher.name for matcher in part.matchers.matchers)
        if increase:
            query.increasing.add(part.name)
        return
    if isinstance(part, promql_parser.AggregateExpr) and part.modifier is not None:
        query.grouped.update(part.modifier.labels)
    if isinstance(part, promql_parser.Call):
        for argument in part.args:
            _walk(argument, query, part.func.name in ("rate", "increase", "irate"))
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        below = getattr(part, name, None)
        if below is not None:
            _walk(below, query, increase)


def complaints(text: str) -> list[str]:
    """Errors of a query over SOS metrics; empty for a correct query."""
    try:
        query = taken_apart(text)
    except ValueError as error:
        return [f"not PromQL: {error}"]
    known = metrics()
    wrong = [f"no program has {name}" for name in query.chosen if name not in known]
    own = set().union(*(known[name].labels for name in query.chosen if name in known))
    for name, labels in query.chosen.items():
        if name in known:
            wrong += [f"{name} has no label {label}" for label in labels - known[name].labels - TARGET_LABELS]
    wrong += [f"nothing here has a label {label}" for label in query.grouped - own - TARGET_LABELS]
    wrong += [f"{name} is a gauge: no rate" for name in query.increasing if name in known and known[name].type == "gauge"]
    counters = {name for name in query.chosen if name in known and known[name].type == "counter"}
    wrong += [f"{name} only grows: use rate or increase" for name in counters - query.increasing]
    return wrong if query.chosen else ["no metric in it"]
