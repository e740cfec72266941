"""Convert verdicts to `status.conditions` with stable transition times; compute the summary and the transitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sos_operator.core.model.objects import Condition

Status = Literal["True", "False", "Unknown"]
READY = "Ready"
REFUSALS = frozenset({"Accepted", "ResolvedRefs"})
REASON = re.compile("[A-Za-z][A-Za-z0-9]{0,62}")  # CamelCase, as the API conventions require and the schema accepts
MESSAGE_MAX = 1024  # maximum length of a message; the schema accepts 4,096, but longer texts do not help in a table


@dataclass(frozen=True, slots=True)
class Verdict:
    """Desired content of one condition."""

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
    """The Ready condition: True with `reason` if all verdicts are True, else a copy of the first False verdict, or else the first Unknown.

    False comes before Unknown because it is certain. Among verdicts of the same status the first wins: `verdicts` are in order from cause
    to effect.
    """
    for wanted in ("False", "Unknown"):
        for verdict in verdicts:
            if verdict.status == wanted:
                return Verdict(READY, verdict.status, verdict.reason, verdict.message)
    return Verdict(READY, "True", reason, message)


def build_conditions(verdicts: Iterable[Verdict], previous: Iterable[Condition], generation: int, now: str) -> list[dict[str, Any]]:
    """Conditions to write, sorted by type. `now` (RFC 3339) becomes lastTransitionTime only where the status changed."""
    before = {c.type: c for c in previous}
    built = []
    for verdict in sorted(verdicts, key=lambda v: v.type):
        old = before.get(verdict.type)
        # The schema's default condition is dated 1970. It was not observed, so its time is not kept.
        same = old is not None and old.status == verdict.status and not old.changed.startswith("1970-")
        built.append(
            {
                "type": verdict.type,
                "status": verdict.status,
                "reason": verdict.reason,
                "message": verdict.message[:MESSAGE_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": (old.changed if same and old is not None else "") or now,
            }
        )
    return built


def transitions(previous: Iterable[Condition], built: Iterable[Mapping[str, Any]]) -> list[Transition]:
    """Conditions whose status changed, except those that only repeat another condition's message.

    The conditions of a new object have no earlier status, so their first status is reported only if the object was refused.
    """
    before = {c.type: c.status for c in previous}
    changed: list[Transition] = []
    for condition in sorted(built, key=lambda c: (c["type"] == READY, c["type"])):
        old, new = before.get(condition["type"]), condition["status"]
        refused = condition["type"] in REFUSALS and new == "False"
        if old == new or (old is None and not refused):
            continue
        transition = Transition(condition["type"], old or "", new, condition["reason"], condition["message"])
        repeated = any((t.status, t.reason, t.message) == (new, transition.reason, transition.message) for t in changed)
        if not repeated:
            changed.append(transition)
    return changed
