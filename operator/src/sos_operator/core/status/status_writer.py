"""Statuses to write, and their events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sos_operator.core.model.conditions import READY, Transition, build_conditions, transitions
from sos_operator.core.model.custom_resources import CustomResource
from sos_operator.core.model.kinds import CONTROLLER, EVENT, SERVICE, SITE
from sos_operator.core.model.objects import Object, Resource
from sos_operator.core.status.situation import Report

# Fields that change constantly: a change in these fields alone is written at most every COARSE_SECONDS, because each write wakes all
# watchers.
COARSE_FIELDS = frozenset({"sessions", "gain", "links"})
COARSE_SECONDS = 60.0
OUR_CONDITIONS = frozenset(
    {
        "Accelerating", "Accepted", "AgentsRegistered", "Available", "BridgesReady", "Connected", "DatapathsConnected", "Deployed",
        "InterfacesAttached", "PodsAttachable",
        "Programmed", "Ready", "Registered", "ResolvedRefs", "ServicesOverlap", "Shadowed", "ShadowsOthers", "Up",
    }
)  # fmt: skip
"""Condition types the operator writes; other writers' conditions on the same object are not compared."""
# Fields that keep their last values while a report omits them. A report of an object that is not accepted omits them.
KEPT_FIELDS = {SITE.kind: ("siteID", "nodes"), CONTROLLER.kind: ("controllerID",), SERVICE.kind: ("claim",)}
EVENT_MESSAGE_MAX = 1024


@dataclass(frozen=True, slots=True)
class Write:
    """A status to apply, and the transitions it contains."""

    obj: CustomResource
    status: dict[str, Any]
    transitions: tuple[Transition, ...]


def plan_write(obj: CustomResource, report: Report, now: str, since_last_s: float) -> Write | None:
    """Return the status write that an object needs; None if its present status is equal. `since_last_s`: seconds since the last write to
    the object."""
    old, generation = obj.status, obj.meta.generation
    conditions = build_conditions(report.verdicts, obj.conditions, generation, now)
    kept = {key: old[key] for key in KEPT_FIELDS.get(obj.kind, ()) if key in old}
    status = kept | report.fields | {"observedGeneration": generation, "conditions": conditions}
    if _essence(status) == _essence(old) and (since_last_s < COARSE_SECONDS or _coarse(status) == _coarse(old)):
        return None
    return Write(obj, status, tuple(transitions(obj.conditions, conditions)))


def _coarse(status: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in status.items() if k in COARSE_FIELDS}


def _essence(status: Mapping[str, Any]) -> dict[str, Any]:
    plain = {k: v for k, v in status.items() if k not in COARSE_FIELDS and k != "conditions"}
    rows = sorted((c for c in status.get("conditions") or [] if c.get("type") in OUR_CONDITIONS), key=lambda c: str(c["type"]))
    return plain | {"conditions": rows}


def build_event(obj: Resource, transition: Transition, name: str, now: str) -> Object:
    """An Event about a condition that changed. Events about cluster-scoped objects live in namespace default (API convention)."""
    good = transition.status == "True"
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": obj.meta.namespace or "default"},
        "involvedObject": {
            "apiVersion": obj.api_version,
            "kind": obj.kind,
            "name": obj.name,
            "namespace": obj.meta.namespace,
            "uid": obj.meta.uid,
            "resourceVersion": obj.meta.resource_version,
        },
        "type": "Normal" if good or transition.status == "Unknown" else "Warning",
        "reason": transition.reason if not good or transition.type == READY else transition.type,
        "message": f"{transition.type} is now {transition.status}: {transition.message or transition.reason}"[:EVENT_MESSAGE_MAX],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "sos-operator"},
        "reportingComponent": "sos-operator",
        "reportingInstance": "",
    }


def still_pending(report: Report) -> bool:
    """True for an object that is accepted but not ready yet: polling may soon show a better status. A refused object needs a change by its
    author."""
    by_type = {v.type: v for v in report.verdicts}
    refused = any(v.status == "False" for t, v in by_type.items() if t in ("Accepted", "ResolvedRefs"))
    ready = by_type.get(READY)
    return not refused and ready is not None and ready.status != "True"
