"""View of `kubectl sos version`: the versions of the plugin and of the workloads of SOS in a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import tables

Json = dict[str, Any]

COMPONENT = "app.kubernetes.io/component"
ORDER = ("operator", "controller", "agent", "node")
IMAGE = re.compile(r"(?:.*/)?(?P<name>[^/:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>\S+))?")
"""An image reference; a registry's port is before the last slash."""


@dataclass(frozen=True, slots=True)
class Row:
    """Workloads of one component, in one namespace, that run the same image."""

    component: str
    namespace: str
    version: str
    image: str
    workloads: int


def version_of(image: str) -> str:
    """Return the tag of an image; without a tag, the beginning of its digest."""
    found = IMAGE.fullmatch(image)
    if found is None:
        return ""
    return found["tag"] or (found["digest"] or "latest").removeprefix("sha256:")[:12]


def rows(workloads: Iterable[Json]) -> list[Row]:
    """Return one row for each component, namespace and image of Deployments and DaemonSets of SOS."""
    counted: dict[tuple[str, str, str], int] = {}
    for workload in workloads:
        component = (workload["metadata"].get("labels") or {}).get(COMPONENT, "")
        for container in workload["spec"]["template"]["spec"]["containers"]:
            key = (component, workload["metadata"]["namespace"], container["image"])
            counted[key] = counted.get(key, 0) + 1
    known = {name: place for place, name in enumerate(ORDER)}
    order = sorted(counted, key=lambda key: (known.get(key[0], len(known)), key))
    return [
        Row(component, namespace, version_of(image), image, counted[component, namespace, image]) for component, namespace, image in order
    ]


def skew(plugin: str, found: Sequence[Row]) -> str:
    """Return a sentence if an operator's version differs from the plugin's; "" otherwise. A digest or a branch is no version."""
    others = sorted({row.version for row in found if row.component == "operator" and re.match(r"v?\d+\.\d+", row.version)})
    different = [version for version in others if version.removeprefix("v") != plugin]
    return f"the plugin is {plugin}, the operator {', '.join(different)}: use the plugin of the operator's release" if different else ""


def as_json(plugin: str, found: Sequence[Row] | None) -> Json:
    """The versions for programs; `components` is missing if the cluster was not queried."""
    document: Json = {"plugin": plugin}
    if found is not None:
        document["components"] = [
            {"component": row.component, "namespace": row.namespace, "version": row.version, "image": row.image, "workloads": row.workloads}
            for row in found
        ]
    return document


def lines(plugin: str, found: Sequence[Row] | None) -> list[str]:
    """The versions for a terminal."""
    first = [f"kubectl-sos {plugin}"]
    if found is None:
        return first
    if not found:
        return [*first, "SOS is not installed in this cluster"]
    head = ("COMPONENT", "VERSION", "NAMESPACE", "WORKLOADS", "IMAGE")
    return [*first, *tables.table(head, [(row.component, row.version, row.namespace, str(row.workloads), row.image) for row in found])]
