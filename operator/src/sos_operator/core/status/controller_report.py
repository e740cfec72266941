"""Status of a SosController: its Deployment, datapaths and agents."""

from __future__ import annotations

from typing import Any

import sos_compile
from sos_compile.documents.node_config import channel_target
from sos_compile.manifests import naming
from sos_compile.model.addresses import is_ipv4

from sos_operator.core.model.cluster_objects import Deployment
from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import SosController
from sos_operator.core.model.kinds import CONTROLLER
from sos_operator.core.model.pod_state import deployment_verdict
from sos_operator.core.model.remote.controller_view import ControllerView, counted
from sos_operator.core.model.world import PREFIX, controller_endpoints, service_addresses
from sos_operator.core.status.site_report import HASH_MAX
from sos_operator.core.status.situation import Report, Situation, accepted_verdict, expected_datapaths, known_to_all, unreachable_message

NO_IPV4 = (
    "Service {service} has no IPv4 address, which switches need to connect: in a dual-stack cluster delete it, and it is created again "
    "with one; in an IPv6-only cluster add IPv4 Service addresses, or run the controller elsewhere (type: External)"
)


def build_controller_report(obj: SosController, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosController."""
    name = obj.name
    accepted = accepted_verdict(obj, facts, situation)
    number = {"controllerID": facts.number} if facts.number else {}
    if accepted.status != "True":
        return Report(number, (accepted, summary([accepted], "")))
    view = situation.controllers([name])[0]
    available = _available(obj, view, situation)
    datapaths, connected = known_to_all(expected_datapaths(facts.dpids, situation), [view])
    fields: dict[str, Any] = number | {"datapaths": f"{connected}/{len(facts.dpids)}"}
    endpoints = [channel_target(end, obj.tls) for end in controller_endpoints(situation.seen).get(name, ())]
    if endpoints:
        fields["endpoints"] = endpoints
    if view.reachable:
        fields |= {
            "connectedDatapaths": len(view.connected()),
            "registeredAgents": len(view.agents()),
            "links": view.count("links"),
            "sessions": view.count("sessions"),
        }
        fields |= {"configGeneration": generation} if (generation := counted(view.config("generation"))) else {}
        fields |= {"configHash": hash_[:HASH_MAX]} if isinstance(hash_ := view.config("hash"), str) else {}
    verdicts = [accepted, available, datapaths]
    if obj.replicas > 1 and view.asked:
        verdicts.append(_standby(obj, view, len(facts.dpids), situation))
    # A disconnected datapath shows in its site's status; the controller itself is ready when it serves the right configuration.
    return Report(fields, (*verdicts, summary([accepted, available], "Available", available.message)))


def _available(obj: SosController, view: ControllerView, situation: Situation) -> Verdict:
    if certain := _cannot_be_available(obj, view, situation):
        return certain
    if not view.asked:
        return Verdict("Available", "Unknown", "NotObserved", "an External controller without apiURL is not observed by this operator")
    if not view.reachable:
        return _not_reached(obj, view, situation)
    if view.push_error:
        return Verdict("Available", "False", "ConfigRefused", f"the controller refused its configuration: {view.push_error}")
    if not view.current:
        return Verdict("Available", "False", "Programming", "the controller has not taken over the present configuration yet")
    return Verdict("Available", "True", "Available", f"configuration generation {view.config('generation')} is in force")


def _standby(obj: SosController, view: ControllerView, datapaths: int, situation: Situation) -> Verdict:
    """Return the condition of the replica that is not active. The controller is Ready without it."""
    standby = view.standby
    if standby is None or not standby.reachable:
        rollouts = [] if obj.external else [deployment_verdict(d) for d in _deployments(obj, situation)]
        said = next((each.message for each in rollouts if each is not None), "") or (standby.error if standby else "") or "no answer yet"
        return Verdict("StandbyReady", "False", "NoStandby", f"no replica can take over: {said}")
    if standby.push_error:
        return Verdict("StandbyReady", "False", "ConfigRefused", f"the standby refused its configuration: {standby.push_error}")
    if not standby.current:
        return Verdict("StandbyReady", "False", "Programming", "the standby has not taken over the present configuration yet")
    connected = counted(standby.own("datapathsInRole"))
    if standby.own("role") != "Slave" or connected < datapaths:
        return Verdict(
            "StandbyReady", "False", "DatapathDisconnected", f"{connected} of {datapaths} datapaths are connected to the standby"
        )
    return Verdict("StandbyReady", "True", "StandbyReady", f"connected to all datapaths, with configuration {standby.config('generation')}")


def _deployments(obj: SosController, situation: Situation) -> list[Deployment | None]:
    return [situation.seen.child(Deployment, naming.controller(PREFIX, obj.name, replica)) for replica in range(obj.replicas)]


def _cannot_be_available(obj: SosController, view: ControllerView, situation: Situation) -> Verdict | None:
    """Return the reason why the cluster makes the controller unavailable, regardless of the controller's answers; None if there is none."""
    name = obj.name
    error = situation.apply_errors.get((CONTROLLER.kind, name))
    addresses = service_addresses(name, situation.seen) if not obj.external else ()
    if (error and "ipFamilies" in error) or (addresses and not any(map(is_ipv4, addresses))):
        return Verdict("Available", "False", "NoIPv4", NO_IPV4.format(service=naming.controller(PREFIX, name)))
    if error:
        return Verdict("Available", "False", "ApplyFailed", error)
    if obj.token_secret and not view.has_token:
        missing = f"spec.external.tokenSecretName: the release namespace has no Secret {obj.token_secret} with a key named token"
        return Verdict("Available", "False", "SecretNotFound", f"{missing}: create it, or name another")
    return None


def _not_reached(obj: SosController, view: ControllerView, situation: Situation) -> Verdict:
    rollouts = [] if obj.external else [deployment_verdict(deployment) for deployment in _deployments(obj, situation)]
    rollout = rollouts[0] if rollouts and None not in rollouts else None
    remedy = ": does spec.external.apiURL lead to it, and does it run?" if obj.external else ""
    return rollout or Verdict("Available", "Unknown", "ControllerUnreachable", unreachable_message(view) + remedy)
