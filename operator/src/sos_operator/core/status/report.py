"""Build the status of each object from facts. Pure: the same facts give the same status."""

from __future__ import annotations

import sos_compile
from sos_compile import ObjectKey

from sos_operator.core.desired.departure import uncleaned
from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import CustomResource, SosAgent, SosController, SosLink, SosPeer, SosService, SosSite
from sos_operator.core.status.agent_report import build_agent_report
from sos_operator.core.status.controller_report import build_controller_report
from sos_operator.core.status.peer_report import build_peer_report
from sos_operator.core.status.service_report import build_link_report, build_service_report
from sos_operator.core.status.site_report import build_site_report
from sos_operator.core.status.situation import NAMED_MAX, Report, Situation

UNKNOWN_MAX = 200


def report(obj: CustomResource, situation: Situation) -> Report:
    """The status of one of our objects."""
    facts = situation.compiled.facts.get(ObjectKey(*obj.key))
    if obj.leaving:
        return _departing_report(obj, situation)
    if facts is None:
        verdict = Verdict("Accepted", "Unknown", "Pending", "not looked at yet")
        return Report({}, (verdict, summary([verdict], "Pending")))
    return _built(obj, facts, situation)


def _built(obj: CustomResource, facts: sos_compile.Facts, situation: Situation) -> Report:
    match obj:
        case SosSite():
            return build_site_report(obj, facts, situation)
        case SosAgent():
            return build_agent_report(obj, facts, situation)
        case SosService():
            return build_service_report(obj, facts, situation)
        case SosController():
            return build_controller_report(obj, facts, situation)
        case SosLink():
            return build_link_report(obj, facts, situation)
        case SosPeer():
            return build_peer_report(obj, facts, situation)
    raise TypeError(f"{obj.kind} has no status builder")


def unknown(error: Exception) -> Report:
    """The status of an object whose status could not be determined."""
    said = " ".join(str(error).split())[:UNKNOWN_MAX]
    message = f"its status cannot be determined: {type(error).__name__}: {said}: this is a bug of SOS, report it with the operator's log"
    return Report({}, (Verdict("Ready", "Unknown", "InternalError", message),))


def _departing_report(obj: CustomResource, situation: Situation) -> Report:
    message = _held_up(obj.name, situation) if isinstance(obj, SosSite) else "being deleted"
    going = Verdict("Accepted", "True", "Terminating", message)
    return Report({}, (going, Verdict("Ready", "False", "Terminating", message)))


def _held_up(site: str, situation: Situation) -> str:
    """Name the nodes that a site's deletion waits for."""
    departing = situation.departing.get(site)
    waiting = uncleaned(departing, situation.seen, situation.answers) if departing else []
    if departing is None or not waiting:
        return "being deleted: nothing that SOS created is left on its nodes"
    states = {node: situation.node_state(site, node) for node in waiting[:NAMED_MAX]}
    named = ", ".join(f"{node} ({state.message})" if state.message else node for node, state in states.items())
    more = f" and {len(waiting) - NAMED_MAX} more" if len(waiting) > NAMED_MAX else ""
    return f"being deleted: {len(waiting)} of {len(departing.nodes)} nodes have not yet removed everything that SOS created: {named}{more}"
