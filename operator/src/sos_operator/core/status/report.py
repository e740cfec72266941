"""Build the status of each object from facts. Pure: the same facts give the same status."""

from __future__ import annotations

import sos_compile
from sos_compile import ObjectKey

from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import CustomResource, SosAgent, SosController, SosLink, SosPeer, SosService, SosSite
from sos_operator.core.status.agent_report import build_agent_report
from sos_operator.core.status.controller_report import build_controller_report
from sos_operator.core.status.peer_report import build_peer_report
from sos_operator.core.status.service_report import build_link_report, build_service_report
from sos_operator.core.status.site_report import build_site_report
from sos_operator.core.status.situation import Report, Situation

UNKNOWN_MAX = 200


def report(obj: CustomResource, situation: Situation) -> Report:
    """The status of one of our objects."""
    facts = situation.compiled.facts.get(ObjectKey(*obj.key))
    if obj.leaving:
        return _departing_report()
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


def _departing_report() -> Report:
    going = Verdict("Accepted", "True", "Terminating", "being deleted: its nodes are removing everything that SOS created on them")
    return Report({}, (going, Verdict("Ready", "False", "Terminating", going.message)))
