"""The record of a removal, as values: a ConfigMap of the chart with the manifest of a Job that removes what an operator created. Pure.

The record outlives the release if the release was deleted without its hooks. Its manifest has the rights that the Job needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base.labels import PART_OF
from sos_kubectl.lifecycle.removal import Json, Plan, RemovalError, deadline

COMPONENT = "removal"
SELECTOR = f"{PART_OF},app.kubernetes.io/component={COMPONENT}"
KEY = "removal.yaml"
JOB = "Job"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
"""Kinds of a manifest besides the Job. Another kind is refused: the manifest is applied with the rights of an administrator."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record and the objects of its manifest."""

    namespace: str
    job: Json
    rights: tuple[Json, ...]


def text(config_map: Json) -> str:
    """Return the manifest of a record. Raises RemovalError if there is none."""
    found = (config_map.get("data") or {}).get(KEY)
    if not found:
        raise RemovalError(f"{_name(config_map)} has no {KEY}")
    return str(found)


def documents(printed: str) -> list[Json]:
    """Parse the objects that `kubectl create -o json` prints one after the other."""
    decoder, found, rest = json.JSONDecoder(), list[Json](), printed.lstrip()
    while rest:
        try:
            document, end = decoder.raw_decode(rest)
        except ValueError:
            raise RemovalError(f"kubectl did not print JSON: {rest[:200]!r}") from None
        found += document.get("items", [document])
        rest = rest[end:].lstrip()
    return found


def parse(config_map: Json, objects: list[Json]) -> Record:
    """The record with these objects. Raises RemovalError if the objects are no removal."""
    namespace = config_map["metadata"]["namespace"]
    jobs = [obj for obj in objects if obj["kind"] == JOB]
    others = [obj for obj in objects if obj["kind"] != JOB]
    wrong = sorted({obj["kind"] for obj in others} - set(RIGHTS))
    abroad = sorted({place for obj in objects if (place := obj["metadata"].get("namespace", namespace)) != namespace})
    if wrong or abroad or len(jobs) != 1:
        said = f"objects that belong to no removal: {', '.join(wrong or abroad)}" if wrong or abroad else f"{len(jobs)} Jobs"
        raise RemovalError(f"{_name(config_map)} has {said}: it was changed, so it is not applied")
    return Record(namespace, jobs[0], tuple(others))


def plan(record: Record, timeout: int) -> Plan:
    """The removal by the record's Job, with another time limit."""
    spec = record.job["spec"]
    pod = spec["template"]["spec"]
    containers = [{**pod["containers"][0], "args": ["uninstall", "--timeout", str(timeout)]}]
    limited = {**spec, **deadline(timeout), "template": {**spec["template"], "spec": {**pod, "containers": containers}}}
    job = {key: value for key, value in record.job.items() if key != "status"} | {"spec": limited}
    return Plan(record.namespace, job, record.rights, interrupted=("interrupted: objects may be missing. Run this again to continue.",))


def missing(namespace: str) -> str:
    """Message if there is neither an operator nor a record."""
    where = f" in namespace {namespace}" if namespace else ""
    return (
        f"no operator and no record of one found{where}: install the chart again and repeat this, or remove what is left without the"
        " nodes' confirmation: kubectl sos uninstall --abandon"
    )


def several(records: list[Json]) -> str:
    """Message if the namespace must be chosen."""
    places = ", ".join(sorted(_name(record) for record in records))
    return f"records of several operators ({places}): choose one with --namespace"


def _name(config_map: Mapping[str, Any]) -> str:
    meta = config_map["metadata"]
    return f"ConfigMap {meta['namespace']}/{meta['name']}"
