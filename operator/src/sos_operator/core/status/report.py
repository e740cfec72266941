"""Build the status of each object from facts. Pure: the same facts give the same status."""

from __future__ import annotations

from sos_compile import ObjectKey

from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.kinds import AGENT, CONTROLLER, LINK, PEER, SERVICE, SITE
from sos_operator.core.model.objects import Object
from sos_operator.core.model.world import leaving
from sos_operator.core.status.agent_report import build_agent_report
from sos_operator.core.status.controller_report import build_controller_report
from sos_operator.core.status.peer_report import build_peer_report
from sos_operator.core.status.service_report import build_link_report, build_service_report
from sos_operator.core.status.site_report import build_site_report
from sos_operator.core.status.situation import Report, Situation

UNKNOWN_MAX = 200


def report(obj: Object, situation: Situation) -> Report:
    """The status of one of our objects."""
    meta = obj["metadata"]
    facts = situation.compiled.facts.get(ObjectKey(obj["kind"], meta.get("namespace") or "", meta["name"]))
    if leaving(obj):
        return _departing_report()
    if facts is None:
        verdict = Verdict("Accepted", "Unknown", "Pending", "not looked at yet")
        return Report({}, (verdict, summary([verdict], "Pending")))
    builders = {
        SITE.kind: build_site_report,
        AGENT.kind: build_agent_report,
        SERVICE.kind: build_service_report,
        CONTROLLER.kind: build_controller_report,
        LINK.kind: build_link_report,
        PEER.kind: build_peer_report,
    }
    return builders[obj["kind"]](obj, facts, situation)


def unknown(error: Exception) -> Report:
    """The status of an object whose status could not be determined."""
    said = " ".join(str(error).split())[:UNKNOWN_MAX]
    message = f"its status cannot be determined: {type(error).__name__}: {said}: this is a bug of SOS, report it with the operator's log"
    return Report({}, (Verdict("Ready", "Unknown", "InternalError", message),))


def _departing_report() -> Report:
    going = Verdict("Accepted", "True", "Terminating", "being deleted: its nodes are removing everything that SOS created on them")
    return Report({}, (going, Verdict("Ready", "False", "Terminating", going.message)))
