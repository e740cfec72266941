"""`kubectl sos status`: one line per object, then messages of objects that are not ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import tables

Json = dict[str, Any]

_ORDER = ("SosController", "SosPeer", "SosSite", "SosAgent", "SosLink", "SosService")


@dataclass(frozen=True, slots=True)
class Row:
    """One object. `ready` is the status of its Ready condition: True, False or Unknown."""

    kind: str
    name: str
    ready: str
    reason: str
    message: str
    detail: str


def rows(objects: Iterable[Json], held_up: Mapping[str, str] | None = None) -> list[Row]:
    """The objects in order of dependency. `held_up`: messages about SosSites in deletion while no operator runs, by name."""
    found = [_row(obj, held_up or {}) for obj in objects]
    return sorted(found, key=lambda row: (_ORDER.index(row.kind) if row.kind in _ORDER else len(_ORDER), row.name))


def is_ready(found: Iterable[Row]) -> bool:
    """True if there are objects, and all of them are ready."""
    rows = list(found)
    return bool(rows) and all(row.ready == "True" for row in rows)


def lines(found: list[Row], colour: bool) -> list[str]:
    """Return the lines to print."""
    if not found:
        return ["no SOS objects: label nodes, then kubectl apply -f examples/01-two-sites"]
    head = ("KIND", "NAME", "READY", "REASON", "")
    printed = tables.table(head, [(row.kind, row.name, row.ready, row.reason, row.detail) for row in found])
    shown = [printed[0]]
    for row, line in zip(found, printed[1:], strict=True):
        shown.append(tables.coloured(line, {"True": "", "False": tables.BAD}.get(row.ready, tables.WAITING), colour))
        if row.ready != "True" and row.message:
            shown += tables.wrapped(row.message)
    return shown


def as_json(found: list[Row]) -> Json:
    """The rows for programs."""
    objects = [
        {"kind": r.kind, "name": r.name, "ready": r.ready, "reason": r.reason, "message": r.message, "detail": r.detail} for r in found
    ]
    return {"ready": is_ready(found), "objects": objects}


def _row(obj: Json, held_up: Mapping[str, str]) -> Row:
    meta, status = obj["metadata"], obj.get("status") or {}
    ready: Json = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    name = "/".join(part for part in (meta.get("namespace"), meta["name"]) if part)
    behind = status.get("observedGeneration", meta.get("generation")) != meta.get("generation")
    state, reason = str(ready.get("status", "Unknown")), str(ready.get("reason", "Pending"))
    message = str(ready.get("message", ""))
    if behind:
        state, reason, message = "Unknown", "Pending", "The operator has not seen this spec yet; the figures are about an earlier one."
    if obj["kind"] == "SosSite" and name in held_up:
        state, reason, message = "False", "Terminating", held_up[name]
    return Row(obj["kind"], name, state, reason, message, _detail(obj["kind"], obj.get("spec") or {}, status))


def _detail(kind: str, spec: Json, status: Json) -> str:
    if kind == "SosSite":
        return _figures(status, nodesReady="nodes", datapathsConnected="datapaths", agentsRegistered="agents")
    if kind == "SosController":
        return _figures(status, datapaths="datapaths", registeredAgents="agents", links="links", sessions="sessions")
    if kind == "SosService":
        way = f"{status['from']} to {status['to']}" if status.get("from") and status.get("to") else ""
        source = f"source {status['source']}" if str(status.get("source", "")).startswith("Agent") else ""
        gain = f"gain {status['gain']}" if status.get("gain") else ""
        figures = _figures(status, datapaths="datapaths", sessions="sessions")
        return _listed(way, source, str(spec.get("mode", "")), figures, gain)
    if kind == "SosPeer":
        return _listed(f"sites {status['siteNames']}" if status.get("siteNames") else "", *_transport(spec))
    if kind == "SosLink":
        ends = (str((spec.get(end) or {}).get("site", "")) for end in ("a", "b"))
        cost = f"cost {spec['cost']}" if "cost" in spec and "transport" not in spec else ""
        return _listed(*ends, cost, *_transport(spec))
    return _figures(status, registered="registered", desired="wanted")


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _transport(spec: Json) -> tuple[str, ...]:
    """The declared transport of a pair of sites, as far as it is not left to the agents."""
    declared = spec.get("transport") or {}
    streams = f"{declared['streams']} streams" if declared.get("streams", "Auto") != "Auto" else ""
    congestion = declared.get("congestionControl", "Auto")
    encryption = {"TLS": "TLS", "None": "no encryption"}.get(declared.get("encryption", ""), "")
    return streams, congestion if congestion != "Auto" else "", declared.get("protocol", ""), encryption


def _figures(status: Json, **names: str) -> str:
    return ", ".join(f"{status[field]} {name}" for field, name in names.items() if status.get(field) is not None)
