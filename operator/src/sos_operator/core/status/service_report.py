"""Status of a SosService and of a SosLink, as controllers report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sos_compile
from sos_compile import ObjectKey, Reason

from sos_operator.core.model.conditions import REASON, Verdict, summary
from sos_operator.core.model.custom_resources import SosLink, SosService
from sos_operator.core.model.remote.controller_view import ControllerView, counted, ids
from sos_operator.core.status import overlaps
from sos_operator.core.status.acceleration import accelerating
from sos_operator.core.status.direct_agents import programmed
from sos_operator.core.status.situation import (
    Report,
    Situation,
    accepted_verdict,
    datapath_names,
    listed_names,
    site_controllers,
    unreachable_message,
)

GAIN_MAX = 32


def build_service_report(obj: SosService, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosService."""
    fields: dict[str, Any] = {key: facts.text[key] for key in ("from", "to", "source", "ports") if key in facts.text}
    claim = situation.compiled.allocations.claims.get(obj.id)
    fields |= {"claim": {"number": claim.number, "scope": claim.scope}} if claim else {}
    accepted = accepted_verdict(obj, facts, situation, with_references=False)
    if accepted.status != "True":
        return Report(fields, (accepted, summary([accepted], "")))
    if not facts.resolved:
        resolved = Verdict("ResolvedRefs", "False", facts.reason, facts.message)
        programmed = Verdict("Programmed", "False", "NotResolved", _installed_anyway(facts))
        return Report(fields, (accepted, resolved, programmed, summary([accepted, resolved], "")))
    resolved = Verdict("ResolvedRefs", "True", "ResolvedRefs")
    if not facts.controllers:
        return _routed_report(obj, facts, situation, fields, [accepted, resolved])
    views = situation.controllers(facts.controllers)
    installed, needed, acknowledged, sessions = _programmed(obj.id, views, situation)
    fields["datapaths"] = f"{acknowledged}/{needed}"
    # Sessions open and close by the hundred: a changed count alone is written at most once a minute (status_writer).
    fields["sessions"] = sessions
    if gain := _gain(obj.id, views):
        fields["gain"] = gain
    verdicts = [accepted, resolved, installed]
    shared = overlaps.service_verdicts(ObjectKey(*obj.key), facts.shadow)
    ready = summary([*verdicts, *overlaps.unready(shared)], "Programmed", installed.message)
    rows = [view.service(obj.id) for view in views if view.asked]
    traffic = accelerating(rows) if installed.status == "True" else []
    return Report(fields, (*verdicts, *shared, *traffic, ready))


def _installed_anyway(facts: sos_compile.Facts) -> str:
    if facts.reason == Reason.NOT_ENCRYPTED:
        return "only entries that refuse its connections are installed"
    return "nothing is installed for a service whose references do not resolve"


def _routed_report(
    obj: SosService, facts: sos_compile.Facts, situation: Situation, fields: dict[str, Any], before: list[Verdict]
) -> Report:
    """Return the status of a service between sites without bridges."""
    installed = programmed(obj.id, situation, *facts.sites)
    verdicts = [*before, installed]
    shared = overlaps.service_verdicts(ObjectKey(*obj.key), facts.shadow)
    ready = summary([*verdicts, *overlaps.unready(shared)], "Programmed", installed.message)
    return Report(fields, (*verdicts, *shared, ready))


def _programmed(id_: str, views: list[ControllerView], situation: Situation) -> tuple[Verdict, int, int, int]:
    asked = [view for view in views if view.asked]
    if not asked:
        return Verdict("Programmed", "Unknown", "NotObserved", "its controllers are not observed by this operator"), 0, 0, 0
    rows = [(view, view.service(id_)) for view in asked]
    needed = sum(len(ids(row, "needed")) for _, row in rows if row)
    acknowledged = sum(len(ids(row, "acknowledged")) for _, row in rows if row)
    sessions = counted(sum(counted(row.get("sessions")) for _, row in rows if row))
    return _programmed_verdict(rows, acknowledged, situation), needed, acknowledged, sessions


def _gain(id_: str, views: list[ControllerView]) -> str:
    """Speed-up over the control group, from the first controller that reports a gain; "" if none does."""
    rows = [view.service(id_) for view in views if view.asked]
    known = [row["gain"] for row in rows if row and isinstance(row.get("gain"), int | float)]
    return f"{known[0]:.1f}x"[:GAIN_MAX] if known else ""


def _programmed_verdict(rows: list[tuple[ControllerView, Mapping[str, Any] | None]], acknowledged: int, situation: Situation) -> Verdict:
    for view, row in rows:
        if not view.reachable:
            return Verdict("Programmed", "Unknown", "ControllerUnreachable", unreachable_message(view))
        if view.push_error:
            return Verdict("Programmed", "False", "ConfigRefused", f"controller {view.name}: {view.push_error}")
        if not view.current or row is None:
            return Verdict("Programmed", "False", "Programming", f"controller {view.name} has not taken over the present configuration yet")
        if row.get("state") != "Programmed":
            missing = ids(row, "needed") - ids(row, "acknowledged")
            names = datapath_names(missing, situation).values()
            message = str(row.get("message") or "") or (f"waiting for datapaths {listed_names(names)}" if missing else "")
            reason = str(row.get("reason"))
            return Verdict("Programmed", "False", reason if row.get("reason") and REASON.fullmatch(reason) else "Programming", message)
    said = sorted({str(row["message"]) for _, row in rows if row and row.get("message")})
    return Verdict("Programmed", "True", "Programmed", "; ".join([f"acknowledged by {acknowledged} datapaths", *said]))


def build_link_report(obj: SosLink, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosLink."""
    accepted = accepted_verdict(obj, facts, situation)
    if accepted.status != "True":
        return Report({}, (accepted, summary([accepted], "")))
    if obj.transport:
        message = f"transport of all streams between {' and '.join(facts.sites)}"
        return Report({}, (accepted, summary([accepted], "Accepted", message)))
    up = _up(obj, situation)
    return Report({}, (accepted, up, summary([accepted, up], "Up", up.message)))


def _up(link: SosLink, situation: Situation) -> Verdict:
    """Return the condition Up: True if a controller that serves both sites receives probes over the link."""
    ends = link.ends
    names = set(site_controllers(ends[0][0], situation)).intersection(site_controllers(ends[1][0], situation))
    asked = [view for view in situation.controllers(names) if view.asked]
    between = " and ".join(f"{uplink} of {site}" for site, uplink in ends)
    if not asked:
        return Verdict("Up", "Unknown", "NotObserved", f"no controller that can be asked has both sites, {ends[0][0]} and {ends[1][0]}")
    states = {view.name: view.link(*ends) for view in asked if view.reachable}
    if any(states.values()):
        return Verdict("Up", "True", "Up", f"probes pass between {between}")
    if lost := [view for view in asked if not view.reachable]:
        return Verdict("Up", "Unknown", "ControllerUnreachable", unreachable_message(lost[0]))
    if None in states.values():
        return Verdict("Up", "Unknown", "Programming", "the controller has not taken over the present configuration yet")
    return Verdict(
        "Up", "False", "Down", f"no probe passes between {between}: are both devices there, and is the wire between them in place?"
    )
