"""Input and output of the status builders, and the verdicts that several of them share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sos_compile
from sos_compile import ObjectKey
from sos_compile.manifests import naming

from sos_operator.core.desired.departure import Departing
from sos_operator.core.desired.rollout import Rollout
from sos_operator.core.model.cluster_objects import Node, Pod
from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.custom_resources import CustomResource
from sos_operator.core.model.kinds import SITE
from sos_operator.core.model.pod_state import PodState, lost, pod_state, with_answer
from sos_operator.core.model.remote.agent_status import AgentAnswer
from sos_operator.core.model.remote.controller_view import ControllerView
from sos_operator.core.model.remote.node_status import NodeAnswer
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.peers.contact import Contact, Received
from sos_operator.core.status import overlaps

NAMED_MAX = 5  # names listed in one message


@dataclass(frozen=True, kw_only=True)  # without slots, for the index below
class Situation:
    """Everything a status depends on."""

    seen: Seen
    compiled: sos_compile.Compiled
    views: Mapping[str, ControllerView] = field(default_factory=dict)
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    """Nodes' answers, by the uid of their pod."""
    agent_answers: Mapping[str, AgentAnswer] = field(default_factory=dict)
    """Answers of agents without controllers, by the uid of their pod."""
    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    """Rollout of each site's node-configs, by site name."""
    apply_errors: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """(kind, name) of one of our objects -> the API server's error about one of its children."""
    contacts: Mapping[str, Contact] = field(default_factory=dict)
    """State of the exchange of site cards, by SosPeer."""
    received: Mapping[str, Received] = field(default_factory=dict)
    """The card in use of each peer, by SosPeer."""
    pairing_errors: Mapping[str, str] = field(default_factory=dict)
    """Reason why a SosPeer has no pairing, by SosPeer."""
    undelivered: frozenset[str] = frozenset()
    """SosPeers of machines whose configuration does not fit into the agents' file."""
    now_s: float = 0.0
    """Time of the pass on the clock of `contacts`."""
    departing: Mapping[str, Departing] = field(default_factory=dict)
    """Sites that are being deleted and whose nodes must still be cleaned, by name."""
    multus: bool = True
    """True if the cluster serves NetworkAttachmentDefinitions."""

    @cached_property
    def nodes(self) -> Mapping[str, Node]:
        """The cluster's nodes by name."""
        return {node.name: node for node in self.seen.nodes}

    @cached_property
    def overlaps(self) -> Mapping[str, list[str]]:
        """Messages about overlapping services of different namespaces, by site."""
        return overlaps.overlaps_by_site(self.compiled.facts)

    def pod(self, daemon_set: str, node: str) -> Pod | None:
        """The pod of a DaemonSet on a node, preferring a pod that is not being deleted."""
        return self._pods.get((daemon_set, node))

    @cached_property
    def _pods(self) -> Mapping[tuple[str, str], Pod]:
        # Pods that are being deleted first, so that any other pod replaces them.
        return {(pod.daemon_set, pod.node): pod for pod in sorted(self.seen.pods, key=lambda pod: pod.leaving, reverse=True)}

    def node_state(self, site: str, node: str) -> PodState:
        """State of a site's node: Pending or Aborted while the node waits in a rollout and has not failed, else the state of its pod,
        combined with the answer of its node process."""
        if gone := lost(self.nodes.get(node)):
            return gone
        rollout = self.rollouts.get(site, Rollout())
        pod = self.pod(naming.node(PREFIX, site), node)
        state = with_answer(pod_state(pod), self.node_answer(site, node))
        why = rollout.waiting.get(node)
        if why is None or state.state == "Failed":
            # The node's own failure takes precedence over its place in the rollout.
            return state if why is None else PodState(state.state, f"{state.message}; {why}")
        return PodState("Aborted" if rollout.aborted else "Pending", why)

    def node_answer(self, site: str, node: str) -> NodeAnswer | None:
        """The answer of a site's node process; None if it is unknown."""
        pod = self.pod(naming.node(PREFIX, site), node)
        return self.answers.get(pod.meta.uid) if pod else None

    def controllers(self, names: Iterable[str]) -> list[ControllerView]:
        """The views of controllers by name; an unknown controller counts as unreachable."""
        return [self.views.get(name) or ControllerView(name=name, error="it does not exist (yet)") for name in sorted(names)]

    def undecided(self, obj: CustomResource) -> bool:
        """True while a request is pending at a recently reachable controller on which the object's status depends."""
        awaited = {view.name for view in self.views.values() if view.awaited}
        facts = self.compiled.facts.get(ObjectKey(*obj.key))
        if not awaited or facts is None or obj.leaving:
            return False
        of_sites = {name for site in facts.sites for name in site_controllers(site, self)}
        return not awaited.isdisjoint({*facts.controllers, *of_sites})


@dataclass(frozen=True, slots=True)
class Report:
    """Status of one object without its conditions, and the verdicts for its conditions."""

    fields: dict[str, Any]
    verdicts: tuple[Verdict, ...]


def accepted_verdict(obj: CustomResource, facts: sos_compile.Facts, situation: Situation, with_references: bool = True) -> Verdict:
    """Return the condition Accepted, with warnings of the compilation as its message."""
    if not facts.accepted or (with_references and not facts.resolved):
        return Verdict("Accepted", "False", facts.reason, facts.message)
    warnings = situation.compiled.warnings.get(ObjectKey(*obj.key), ())
    return Verdict("Accepted", "True", "Accepted", "; ".join(": ".join(filter(None, (p.path, p.message))) for p in warnings))


def unreachable_message(view: ControllerView) -> str:
    """Return the reason why a controller has no current status."""
    return f"controller {view.name} cannot be reached: {view.error}" if view.error else f"controller {view.name} has not answered yet"


def listed_names(names: Iterable[str]) -> str:
    """Return the first names in order, and the number of the rest."""
    listed = sorted(names)
    rest = len(listed) - NAMED_MAX
    return ", ".join(listed[:NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class Expected:
    """Ids that every controller should know, with the words for messages about them."""

    type: str
    names: Mapping[str, str]
    """Id -> name to show."""
    method: str
    """Name of the view's method that lists the ids known to the controller."""
    good: str
    bad: str
    noun: str


def datapath_names(ids: Iterable[str], situation: Situation) -> dict[str, str]:
    """Return a text for each datapath id: the name of its node, if it has one, and the id."""
    known = {doc["bridge"]["datapathId"]: node for node, doc in situation.compiled.nodes.items()}
    return {id_: f"{known[id_]} ({id_})" if id_ in known else id_ for id_ in ids}


def expected_datapaths(ids: Iterable[str], situation: Situation) -> Expected:
    """Return the datapaths that every controller should have connected."""
    return Expected("DatapathsConnected", datapath_names(ids, situation), "connected", "Connected", "NotConnected", "datapaths")


def expected_agents(type_: str, ids: Iterable[str], situation: Situation) -> Expected:
    """Return the agents that every controller should have registered."""
    known = {doc["agentId"]: node for (_, node), doc in situation.compiled.agents.items()}
    return Expected(type_, {id_: known.get(id_, id_) for id_ in ids}, "agents", "Registered", "NotRegistered", "agents")


def known_to_all(expected: Expected, views: list[ControllerView]) -> tuple[Verdict, int]:
    """Return the verdict on whether every controller knows all expected ids, and the number of ids that all controllers know."""
    wanted = frozenset(expected.names)
    asked = [view for view in views if view.asked]
    known = wanted.intersection(*[getattr(view, expected.method)() for view in asked]) if asked else frozenset()
    lost = [view for view in asked if not view.reachable]
    if lost:
        return Verdict(expected.type, "Unknown", "ControllerUnreachable", unreachable_message(lost[0])), len(known)
    if not asked:
        return Verdict(expected.type, "Unknown", "NotObserved", "its controllers are not observed by this operator"), 0
    if known == wanted:
        return Verdict(expected.type, "True", expected.good, f"{len(wanted)} {expected.noun}"), len(known)
    missing = listed_names(expected.names[id_] for id_ in wanted - known)
    message = f"{len(known)} of {len(wanted)} {expected.noun}; missing: {missing}"
    return Verdict(expected.type, "False", expected.bad, message), len(known)


def site_controllers(site: str, situation: Situation) -> tuple[str, ...]:
    """Return the controllers of a site."""
    facts = situation.compiled.facts.get(ObjectKey(SITE.kind, "", site))
    return facts.controllers if facts else ()
