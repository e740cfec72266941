"""Actual acceleration of a service's connections, which may stay plain although everything is installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sos_operator.core.model.conditions import REASON, Verdict
from sos_operator.core.model.remote.controller_view import counted

TYPE = "Accelerating"
_STEPS = (1, 2, 5)


def accelerating(rows: Iterable[Mapping[str, Any] | None]) -> list[Verdict]:
    """The condition of a programmed service, from controllers' reports of its latest connections (spec/northbound.md 1).

    Empty if no controller counts the service's connections: the service is spread over uplinks, or the controller is of an older version.
    """
    told = [row["recent"] for row in rows if row is not None and isinstance(row.get("recent"), Mapping)]
    if not told:
        return []
    worst = next((recent for recent in told if recent.get("plainIsRule") is True), None)
    if worst is None:
        return [Verdict(TYPE, "True", "Accelerating")]
    reason = str(worst.get("leadingReason"))
    reason = reason if REASON.fullmatch(reason) else "PlainTraffic"
    return [Verdict(TYPE, "False", reason, _message(worst, reason))]


def _message(recent: Mapping[str, Any], reason: str) -> str:
    """Return the message, with counts rounded down to 1, 2, 5, 10, ..., so that a status is not written for each connection."""
    plain = recent.get("plain")
    count = counted(plain.get(reason)) if isinstance(plain, Mapping) else 0
    minutes, words = counted(recent.get("seconds")) // 60, str(recent.get("message") or "")
    accelerated = counted(recent.get("accelerated"))
    became = "were refused, as spec.require asks," if recent.get("refused") is True else "went plain"
    return (
        f"{_about(count)} connections of the last {minutes} minutes {became} and {_about(accelerated)} were accelerated: {words};"
        " kubectl sos flows --plain names some"
    )


def _about(count: int) -> str:
    if count < 1:
        return "no"
    power = 10 ** (len(str(count)) - 1)
    return f"{max(step * power for step in _STEPS if step * power <= count)} or more"
