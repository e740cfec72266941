"""From facts to the status of each object. Pure: the same facts give the same status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sos_compile
from sos_compile import ObjectKey
from sos_compile.manifests import naming
from sos_compile.model.addresses import is_ipv4

from sos_operator.core.desired.rollout import Rollout
from sos_operator.core.model.conditions import REASON, Verdict, summary
from sos_operator.core.model.controller_view import ControllerView, counted, ids
from sos_operator.core.model.kinds import AGENT, CONTROLLER, LINK, SERVICE, SITE
from sos_operator.core.model.node_status import NodeAnswer
from sos_operator.core.model.objects import Object
from sos_operator.core.model.pod_state import PodState, daemon_set_of, daemon_set_settled, deployment_verdict, lost, pod_state, with_answer
from sos_operator.core.model.world import PREFIX, Seen, controller_endpoints, leaving, node_of, service_addresses
from sos_operator.core.status import overlaps
from sos_operator.core.status.acceleration import accelerating

NO_MULTUS_FOR_AGENTS = (
    "the cluster has no NetworkAttachmentDefinitions (Multus), which spec.attach: Multus needs: install Multus and ovs-cni, or use Host"
)
NO_IPV4 = (
    "Service {service} has no IPv4 address, by which switches connect: in a cluster with both families delete it, and it is made anew with "
    "one; in a cluster of IPv6 alone add IPv4 Service addresses, or run the controller elsewhere (type: External)"
)
NODES_MAX = 1024  # as many as the schema of SosSite.status.nodes takes
NAMED_MAX = 5  # names listed in one message
NODE_MESSAGE_MAX = 1024
HASH_MAX = 80  # and these are as much of it as its fields take of what controllers say
GAIN_MAX = 32
UNKNOWN_MAX = 200


@dataclass(frozen=True, kw_only=True)  # without slots, for the index below
class Situation:
    """Everything a status depends on."""

    seen: Seen
    compiled: sos_compile.Compiled
    views: Mapping[str, ControllerView] = field(default_factory=dict)
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    """Nodes' answers, by the uid of their pod."""
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    """Rollout of each site's node-configs, by site name."""
    apply_errors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(kind, name) of one of our objects -> what the API server said against one of its children."""
    multus: bool = True
    """True if the cluster serves NetworkAttachmentDefinitions."""

    @cached_property
    def nodes(self) -> Mapping[str, Object]:
        """The cluster's nodes by name."""
        return {node["metadata"]["name"]: node for node in self.seen.nodes}

    @cached_property
    def overlaps(self) -> Mapping[str, list[str]]:
        """Messages about overlapping services of different namespaces, by site."""
        return overlaps.overlaps_by_site(self.compiled.facts)

    def pod(self, daemon_set: str, node: str) -> Object | None:
        """The pod of a DaemonSet on a node, preferring one that is not going away."""
        found = [p for p in self.seen.pods if daemon_set_of(p) == daemon_set and node_of(p) == node]
        return min(found, key=leaving, default=None)

    def node_state(self, site: str, node: str) -> PodState:
        """State of a site's node: its turn in a roll-out, else its pod's with what the node itself says about it."""
        if gone := lost(self.nodes.get(node)):
            return gone
        rollout = self.rollouts.get(site, Rollout())
        pod = self.pod(naming.node(PREFIX, site), node)
        answer = self.answers.get(pod["metadata"]["uid"]) if pod else None
        state = with_answer(pod_state(pod), answer)
        why = rollout.waiting.get(node)
        if why is None or state.state == "Failed":
            # Its own failure matters more than whose turn it is.
            return state if why is None else PodState(state.state, f"{state.message}; {why}")
        return PodState("Aborted" if rollout.aborted else "Pending", why)

    def controllers(self, names: Iterable[str]) -> list[ControllerView]:
        """The views of controllers by name; one that is not known at all counts as unreachable."""
        return [self.views.get(name) or ControllerView(name=name, error="it does not exist (yet)") for name in sorted(names)]

    def undecided(self, obj: Object) -> bool:
        """True while a controller that the object's status depends on has a request to answer, and was well a moment ago."""
        awaited = {view.name for view in self.views.values() if view.awaited}
        meta = obj["metadata"]
        facts = self.compiled.facts.get(ObjectKey(obj["kind"], meta.get("namespace") or "", meta["name"]))
        if not awaited or facts is None or leaving(obj):
            return False
        of_sites = {name for site in facts.sites for name in _site_controllers(site, self)}
        return not awaited.isdisjoint({*facts.controllers, *of_sites})


@dataclass(frozen=True, slots=True)
class Report:
    """Status of one object without its conditions, and what these should say."""

    fields: dict[str, Any]
    verdicts: tuple[Verdict, ...]


def report(obj: Object, situation: Situation) -> Report:
    """The status of one of our objects."""
    meta = obj["metadata"]
    facts = situation.compiled.facts.get(ObjectKey(obj["kind"], meta.get("namespace") or "", meta["name"]))
    if leaving(obj):
        return _departing_report()
    if facts is None:
        verdict = Verdict("Accepted", "Unknown", "Pending", "not looked at yet")
        return Report({}, (verdict, summary([verdict], "Pending")))
    builders = {SITE.kind: _site, AGENT.kind: _agent, SERVICE.kind: _service, CONTROLLER.kind: _controller, LINK.kind: _link}
    return builders[obj["kind"]](obj, facts, situation)


def unknown(error: Exception) -> Report:
    """The status of an object whose status cannot be found out."""
    said = " ".join(str(error).split())[:UNKNOWN_MAX]
    message = f"its status cannot be found out: {type(error).__name__}: {said}: this is a bug of SOS, report it with the operator's log"
    return Report({}, (Verdict("Ready", "Unknown", "InternalError", message),))


def _departing_report() -> Report:
    going = Verdict("Accepted", "True", "Terminating", "being deleted: its nodes are taking down what was made on them")
    return Report({}, (going, Verdict("Ready", "False", "Terminating", going.message)))


def _accepted(obj: Object, facts: sos_compile.Facts, situation: Situation, with_references: bool = True) -> Verdict:
    if not facts.accepted or (with_references and not facts.resolved):
        return Verdict("Accepted", "False", facts.reason, facts.message)
    meta = obj["metadata"]
    key = (obj["kind"], meta.get("namespace") or "", meta["name"])
    warnings = [p for p in situation.compiled.problems if p.warning and (p.kind, p.namespace, p.name) == key]
    return Verdict("Accepted", "True", "Accepted", "; ".join(": ".join(filter(None, (p.path, p.message))) for p in warnings))


def _unreachable(view: ControllerView) -> str:
    return f"controller {view.name} cannot be reached: {view.error}" if view.error else f"controller {view.name} has not answered yet"


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    rest = len(listed) - NAMED_MAX
    return ", ".join(listed[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class _Expected:
    """Facts that every controller should know, with words for them."""

    type: str
    names: Mapping[str, str]
    """Id -> name to show."""
    method: str
    """Name of the view's method that lists the ids it knows."""
    good: str
    bad: str
    noun: str


def _datapath_names(ids: Iterable[str], situation: Situation) -> dict[str, str]:
    known = {doc["bridge"]["datapathId"]: node for node, doc in situation.compiled.nodes.items()}
    return {id_: f"{known[id_]} ({id_})" if id_ in known else id_ for id_ in ids}


def _datapaths(ids: Iterable[str], situation: Situation) -> _Expected:
    return _Expected("DatapathsConnected", _datapath_names(ids, situation), "connected", "Connected", "NotConnected", "datapaths")


def _agents(type_: str, ids: Iterable[str], situation: Situation) -> _Expected:
    known = {doc["agentId"]: node for (_, node), doc in situation.compiled.agents.items()}
    return _Expected(type_, {id_: known.get(id_, id_) for id_ in ids}, "agents", "Registered", "NotRegistered", "agents")


def _known_to_all(expected: _Expected, views: list[ControllerView]) -> tuple[Verdict, int]:
    """Return whether every controller knows all that is expected, and the number of facts that all of them know."""
    wanted = frozenset(expected.names)
    asked = [view for view in views if view.asked]
    known = wanted.intersection(*[getattr(view, expected.method)() for view in asked]) if asked else frozenset()
    lost = [view for view in asked if not view.reachable]
    if lost:
        return Verdict(expected.type, "Unknown", "ControllerUnreachable", _unreachable(lost[0])), len(known)
    if not asked:
        return Verdict(expected.type, "Unknown", "NotObserved", "its controllers are watched from elsewhere"), 0
    if known == wanted:
        return Verdict(expected.type, "True", expected.good, f"{len(wanted)} {expected.noun}"), len(known)
    missing = _names(expected.names[id_] for id_ in wanted - known)
    message = f"{len(known)} of {len(wanted)} {expected.noun}; missing: {missing}"
    return Verdict(expected.type, "False", expected.bad, message), len(known)


# --- SosSite ---------------------------------------------------------------------------------------------------------


def _site(obj: Object, facts: sos_compile.Facts, situation: Situation) -> Report:
    name = obj["metadata"]["name"]
    accepted = _accepted(obj, facts, situation)
    number = {"siteID": facts.number} if facts.number else {}
    mtu = {"mtu": facts.mtu} if facts.mtu else {}
    if accepted.status != "True":
        return Report(number, (accepted, summary([accepted], "")))
    states = {node: situation.node_state(name, node) for node in facts.nodes}
    views = situation.controllers(facts.controllers)
    bridges = _bridges(obj, states, situation.apply_errors.get((SITE.kind, name)))
    datapaths, connected = _known_to_all(_datapaths(facts.dpids, situation), views)
    agents, registered = _known_to_all(_agents("AgentsRegistered", facts.agents, situation), views)
    if not facts.agents:
        agents = Verdict("AgentsRegistered", "True", "NoneExpected", "no agent pool serves this site, so its traffic stays plain")
    ready = sum(state.state == "Ready" for state in states.values())
    fields = (
        number
        | mtu
        | {
            "nodesReady": f"{ready}/{len(states)}",
            "datapathsConnected": f"{connected}/{len(facts.dpids)}",
            "agentsRegistered": f"{registered}/{len(facts.agents)}",
            "nodes": [_site_node(node, states[node], facts, situation.compiled) for node in sorted(facts.nodes)[:NODES_MAX]],
        }
    )
    verdicts = [accepted, bridges, datapaths, agents]
    extra = overlaps.site_verdicts(situation.overlaps.get(name, [])) + ([] if situation.multus else [_no_multus()])
    return Report(fields, (*verdicts, *extra, summary(verdicts, "Ready")))


def _no_multus() -> Verdict:
    message = "the cluster has no NetworkAttachmentDefinitions (Multus): pods cannot join this site's bridge, everything else works"
    return Verdict("PodsAttachable", "False", "MultusMissing", message)


def _bridges(obj: Object, states: Mapping[str, PodState], error: str | None) -> Verdict:
    spec = obj.get("spec") or {}
    if error:
        return Verdict("BridgesReady", "False", "ApplyFailed", error)
    if not spec.get("nodeSelector"):
        where = "another cluster" if spec.get("remote") else "external switches"
        return Verdict("BridgesReady", "True", "NotBuiltHere", f"the site is built by {where}")
    if not states:
        return Verdict("BridgesReady", "False", "NoMatchingNodes", "no node has the labels of spec.nodeSelector: label one, or change it")
    failed = {node: s for node, s in states.items() if s.state == "Failed"}
    missing = {node: s for node, s in states.items() if s.state != "Ready"}
    if not missing:
        return Verdict("BridgesReady", "True", "Ready", f"{len(states)} nodes")
    shown = "; ".join(f"{node}: {s.message}" for node, s in sorted((failed or missing).items())[:NAMED_MAX])
    message = f"{len(states) - len(missing)} of {len(states)} nodes ready; {shown}"
    reason = "RolloutAborted" if any(s.state == "Aborted" for s in states.values()) else "NodeFailed" if failed else "RollingOut"
    return Verdict("BridgesReady", "False", reason, message)


def _site_node(node: str, state: PodState, facts: sos_compile.Facts, compiled: sos_compile.Compiled) -> dict[str, Any]:
    document = compiled.nodes.get(node)
    agents = sorted((a for a in compiled.allocations.agents if a.node == node), key=lambda a: a.slot)
    row: dict[str, Any] = {"name": node, "state": state.state}
    if message := "; ".join(filter(None, (facts.node_problems.get(node), state.message))):
        row["message"] = message[:NODE_MESSAGE_MAX]
    if node in compiled.allocations.nodes:
        row["number"] = compiled.allocations.nodes[node]
    if document:
        row["datapathId"] = document["bridge"]["datapathId"]
    if agents:
        row["agentAddress"] = agents[0].address
        row["agents"] = [{"pool": a.pool, "address": a.address, "slot": a.slot} for a in agents]
    return row


# --- SosAgent --------------------------------------------------------------------------------------------------------


def _agent(obj: Object, facts: sos_compile.Facts, situation: Situation) -> Report:
    name = obj["metadata"]["name"]
    accepted = _accepted(obj, facts, situation)
    if accepted.status != "True":
        return Report({}, (accepted, summary([accepted], "")))
    if (obj.get("spec") or {}).get("attach") == "Multus" and not situation.multus:
        missing = Verdict("ResolvedRefs", "False", "MultusMissing", NO_MULTUS_FOR_AGENTS)
        return Report({}, (accepted, missing, summary([accepted, missing], "")))
    wanted = {node: doc for (pool, node), doc in situation.compiled.agents.items() if pool == name}
    sets = {naming.agent(PREFIX, name, doc["site"]["name"]) for doc in wanted.values()}
    states = {
        node: lost(situation.nodes.get(node)) or pod_state(situation.pod(naming.agent(PREFIX, name, doc["site"]["name"]), node))
        for node, doc in wanted.items()
    }
    deployed = _deployed(sets, states, situation, situation.apply_errors.get((AGENT.kind, name)))
    controllers = {c for site in facts.sites for c in _site_controllers(site, situation)}
    registered, count = _known_to_all(_agents("Registered", facts.agents, situation), situation.controllers(controllers))
    if not facts.agents:
        registered = Verdict("Registered", "False", "NoAgents", "there are no agents to register")
    fields = {
        "sites": ",".join(facts.sites)[:1024],
        "desired": len(wanted),
        "ready": sum(s.state == "Ready" for s in states.values()),
        "registered": count,
    }
    verdicts = [accepted, deployed, registered]
    return Report(fields, (*verdicts, summary(verdicts, "Ready")))


def _site_controllers(site: str, situation: Situation) -> tuple[str, ...]:
    facts = situation.compiled.facts.get(ObjectKey(SITE.kind, "", site))
    return facts.controllers if facts else ()


def _deployed(sets: set[str], states: Mapping[str, PodState], situation: Situation, error: str | None) -> Verdict:
    if error:
        return Verdict("Deployed", "False", "ApplyFailed", error)
    if not states:
        return Verdict(
            "Deployed", "False", "NoMatchingNodes", "no site with prefixes and nodes matches spec.siteSelector: label one, or change it"
        )
    unsettled = [name for name in sorted(sets) if not daemon_set_settled(situation.seen.child("DaemonSet", name))]
    missing = {node: s for node, s in states.items() if s.state != "Ready"}
    if not missing and not unsettled:
        return Verdict("Deployed", "True", "Deployed", f"{len(states)} agents")
    failed = any(s.state == "Failed" for s in missing.values())
    shown = "; ".join(f"{node}: {s.message}" for node, s in sorted(missing.items())[:NAMED_MAX])
    message = f"{len(states) - len(missing)} of {len(states)} agents ready" + (f"; {shown}" if shown else "")
    return Verdict("Deployed", "False", "NodeFailed" if failed else "RollingOut", message)


# --- SosController ---------------------------------------------------------------------------------------------------


def _controller(obj: Object, facts: sos_compile.Facts, situation: Situation) -> Report:
    name = obj["metadata"]["name"]
    accepted = _accepted(obj, facts, situation)
    number = {"controllerID": facts.number} if facts.number else {}
    if accepted.status != "True":
        return Report(number, (accepted, summary([accepted], "")))
    view = situation.controllers([name])[0]
    available = _available(obj, view, situation)
    datapaths, connected = _known_to_all(_datapaths(facts.dpids, situation), [view])
    fields: dict[str, Any] = number | {"datapaths": f"{connected}/{len(facts.dpids)}"}
    endpoints = list(controller_endpoints(situation.seen).get(name, ()))
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
    # A datapath that is away is its site's trouble; the controller itself is ready when it serves the right configuration.
    return Report(fields, (*verdicts, summary([accepted, available], "Available", available.message)))


def _available(obj: Object, view: ControllerView, situation: Situation) -> Verdict:
    if certain := _cannot_be_available(obj, view, situation):
        return certain
    if not view.asked:
        return Verdict("Available", "Unknown", "NotObserved", "an External controller without apiURL is watched from elsewhere")
    if not view.reachable:
        return _not_reached(obj, view, situation)
    if view.push_error:
        return Verdict("Available", "False", "ConfigRefused", f"the controller refused its configuration: {view.push_error}")
    if not view.current:
        return Verdict("Available", "False", "Programming", "the controller has not taken over the present configuration yet")
    return Verdict("Available", "True", "Available", f"configuration generation {view.config('generation')} is in force")


def _cannot_be_available(obj: Object, view: ControllerView, situation: Situation) -> Verdict | None:
    """Return what is missing on the operator's side, independent of the controller's answer."""
    name = obj["metadata"]["name"]
    error = situation.apply_errors.get((CONTROLLER.kind, name))
    addresses = service_addresses(name, situation.seen) if (obj.get("spec") or {}).get("type") != "External" else ()
    if (error and "ipFamilies" in error) or (addresses and not any(map(is_ipv4, addresses))):
        return Verdict("Available", "False", "NoIPv4", NO_IPV4.format(service=naming.controller(PREFIX, name)))
    if error:
        return Verdict("Available", "False", "ApplyFailed", error)
    secret = ((obj.get("spec") or {}).get("external") or {}).get("tokenSecretName")
    if secret and not view.has_token:
        missing = f"spec.external.tokenSecretName: the release namespace has no Secret {secret} with a key named token"
        return Verdict("Available", "False", "SecretNotFound", f"{missing}: create it, or name another")
    return None


def _not_reached(obj: Object, view: ControllerView, situation: Situation) -> Verdict:
    managed = (obj.get("spec") or {}).get("type") != "External"
    name = naming.controller(PREFIX, obj["metadata"]["name"])
    rollout = deployment_verdict(situation.seen.child("Deployment", name)) if managed else None
    remedy = "" if managed else ": does spec.external.apiURL lead to it, and does it run?"
    return rollout or Verdict("Available", "Unknown", "ControllerUnreachable", _unreachable(view) + remedy)


# --- SosService, SosLink ---------------------------------------------------------------------------------------------


def _service(obj: Object, facts: sos_compile.Facts, situation: Situation) -> Report:
    fields: dict[str, Any] = {key: facts.text[key] for key in ("from", "to", "ports") if key in facts.text}
    claim = situation.compiled.allocations.claims.get(f"{obj['metadata']['namespace']}/{obj['metadata']['name']}")
    fields |= {"claim": {"number": claim.number, "scope": claim.scope}} if claim else {}
    accepted = _accepted(obj, facts, situation, with_references=False)
    if accepted.status != "True":
        return Report(fields, (accepted, summary([accepted], "")))
    if not facts.resolved:
        resolved = Verdict("ResolvedRefs", "False", facts.reason, facts.message)
        programmed = Verdict("Programmed", "False", "NotResolved", "nothing is installed for a service whose references do not resolve")
        return Report(fields, (accepted, resolved, programmed, summary([accepted, resolved], "")))
    resolved = Verdict("ResolvedRefs", "True", "ResolvedRefs")
    meta = obj["metadata"]
    views = situation.controllers(facts.controllers)
    programmed, needed, acknowledged, sessions = _programmed(f"{meta['namespace']}/{meta['name']}", views, situation)
    fields["datapaths"] = f"{acknowledged}/{needed}"
    # Sessions open and close by the hundred: their count is written with another change, never by itself.
    fields["sessions"] = sessions
    if gain := _gain(f"{meta['namespace']}/{meta['name']}", views):
        fields["gain"] = gain
    verdicts = [accepted, resolved, programmed]
    shared = overlaps.service_verdicts(ObjectKey(SERVICE.kind, meta["namespace"], meta["name"]), facts.shadow)
    ready = summary([*verdicts, *overlaps.unready(shared)], "Programmed", programmed.message)
    rows = [view.service(f"{meta['namespace']}/{meta['name']}") for view in views if view.asked]
    traffic = accelerating(rows) if programmed.status == "True" else []
    return Report(fields, (*verdicts, *shared, *traffic, ready))


def _programmed(id_: str, views: list[ControllerView], situation: Situation) -> tuple[Verdict, int, int, int]:
    asked = [view for view in views if view.asked]
    if not asked:
        return Verdict("Programmed", "Unknown", "NotObserved", "its controllers are watched from elsewhere"), 0, 0, 0
    rows = [(view, view.service(id_)) for view in asked]
    needed = sum(len(ids(row, "needed")) for _, row in rows if row)
    acknowledged = sum(len(ids(row, "acknowledged")) for _, row in rows if row)
    sessions = counted(sum(counted(row.get("sessions")) for _, row in rows if row))
    return _programmed_verdict(rows, acknowledged, situation), needed, acknowledged, sessions


def _gain(id_: str, views: list[ControllerView]) -> str:
    """Speed-up over the control group, from the first controller that knows it; "" while none does."""
    rows = [view.service(id_) for view in views if view.asked]
    known = [row["gain"] for row in rows if row and isinstance(row.get("gain"), int | float)]
    return f"{known[0]:.1f}x"[:GAIN_MAX] if known else ""


def _programmed_verdict(rows: list[tuple[ControllerView, Mapping[str, Any] | None]], acknowledged: int, situation: Situation) -> Verdict:
    for view, row in rows:
        if not view.reachable:
            return Verdict("Programmed", "Unknown", "ControllerUnreachable", _unreachable(view))
        if view.push_error:
            return Verdict("Programmed", "False", "ConfigRefused", f"controller {view.name}: {view.push_error}")
        if not view.current or row is None:
            return Verdict("Programmed", "False", "Programming", f"controller {view.name} has not taken over the present configuration yet")
        if row.get("state") != "Programmed":
            missing = ids(row, "needed") - ids(row, "acknowledged")
            names = _datapath_names(missing, situation).values()
            message = str(row.get("message") or "") or (f"waiting for datapaths {_names(names)}" if missing else "")
            reason = str(row.get("reason"))
            return Verdict("Programmed", "False", reason if row.get("reason") and REASON.fullmatch(reason) else "Programming", message)
    said = sorted({str(row["message"]) for _, row in rows if row and row.get("message")})
    return Verdict("Programmed", "True", "Programmed", "; ".join([f"acknowledged by {acknowledged} datapaths", *said]))


def _link(obj: Object, facts: sos_compile.Facts, situation: Situation) -> Report:
    accepted = _accepted(obj, facts, situation)
    if accepted.status != "True":
        return Report({}, (accepted, summary([accepted], "")))
    up = _up(obj["spec"], situation)
    return Report({}, (accepted, up, summary([accepted, up], "Up", up.message)))


def _up(spec: Mapping[str, Any], situation: Situation) -> Verdict:
    """True if a controller of both sites hears probes over a link."""
    ends = tuple((str(spec[end]["site"]), str(spec[end]["uplink"])) for end in ("a", "b"))
    names = set(_site_controllers(ends[0][0], situation)).intersection(_site_controllers(ends[1][0], situation))
    asked = [view for view in situation.controllers(names) if view.asked]
    between = " and ".join(f"{uplink} of {site}" for site, uplink in ends)
    if not asked:
        return Verdict("Up", "Unknown", "NotObserved", f"no controller that can be asked has both sites, {ends[0][0]} and {ends[1][0]}")
    states = {view.name: view.link(*ends) for view in asked if view.reachable}
    if any(states.values()):
        return Verdict("Up", "True", "Up", f"probes pass between {between}")
    if lost := [view for view in asked if not view.reachable]:
        return Verdict("Up", "Unknown", "ControllerUnreachable", _unreachable(lost[0]))
    if None in states.values():
        return Verdict("Up", "Unknown", "Programming", "the controller has not taken over the present configuration yet")
    return Verdict(
        "Up", "False", "Down", f"no probe passes between {between}: are both devices there, and is the wire between them in place?"
    )
