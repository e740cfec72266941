"""From verdicts to `status.conditions`: times that stay put, a summary, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["True", "False", "Unknown"]
READY = "Ready"
MESSAGE_MAX = 1024  # the schema takes 4,096; longer texts do not help anybody who reads a table


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition should say now."""

    type: str
    status: Status
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition whose status changed, for an event."""

    type: str
    before: str
    status: str
    reason: str
    message: str


def summary(verdicts: Sequence[Verdict], reason: str, message: str = "") -> Verdict:
    """The Ready condition: True with `reason` if all hold, else what the first False one says, else the first Unknown one.

    False comes before Unknown because it is certain; order within the same status is the order of `verdicts`, which goes
    from causes to effects.
    """
    for wanted in ("False", "Unknown"):
        for verdict in verdicts:
            if verdict.status == wanted:
                return Verdict(READY, verdict.status, verdict.reason, verdict.message)
    return Verdict(READY, "True", reason, message)


def build_conditions(verdicts: Iterable[Verdict], previous: Iterable[Mapping[str, Any]], generation: int, now: str) -> list[dict[str, Any]]:
    """Conditions to write, sorted by type. `now` (RFC 3339) becomes lastTransitionTime only where the status changed."""
    before = {c.get("type"): c for c in previous}
    built = []
    for verdict in sorted(verdicts, key=lambda v: v.type):
        old = before.get(verdict.type)
        # The schema's default condition carries the epoch: it is nobody's observation, so its time is not kept.
        same = old is not None and old.get("status") == verdict.status and not str(old.get("lastTransitionTime", "")).startswith("1970-")
        built.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message[:MESSAGE_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same and old is not None else now,
            }
        )
    return built


def transitions(previous: Iterable[Mapping[str, Any]], built: Iterable[Mapping[str, Any]]) -> list[Transition]:
    """Conditions whose status is another than before (a new condition counts unless it starts out True or Unknown)."""
    before = {c.get("type"): str(c.get("status")) for c in previous}
    changed = []
    for condition in built:
        old = before.get(condition["type"])
        if old != condition["status"] and not (old is None and condition["status"] != "False"):
            changed.append(Transition(condition["type"], old or "", condition["status"], condition["reason"], condition["message"]))
    return changed
