"""Status of a SosSite and of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sos_compile

from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import SosSite
from sos_operator.core.model.kinds import SITE
from sos_operator.core.model.pod_state import PodState
from sos_operator.core.status import overlaps
from sos_operator.core.status.direct_agents import direct_agents, registered
from sos_operator.core.status.interfaces import attached_verdict
from sos_operator.core.status.situation import (
    NAMED_MAX,
    Report,
    Situation,
    accepted_verdict,
    expected_agents,
    expected_datapaths,
    known_to_all,
)

NO_MULTUS_FOR_AGENTS = (
    "the cluster has no NetworkAttachmentDefinitions (Multus), which spec.attach: Multus needs: install Multus and ovs-cni, or use Host"
)


NODES_MAX = 1024  # maximum of SosSite.status.nodes in the schema


NODE_MESSAGE_MAX = 1024


HASH_MAX = 80  # maximum length of hashes from outside that the schema accepts


def build_site_report(obj: SosSite, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosSite."""
    name = obj.name
    accepted = accepted_verdict(obj, facts, situation)
    number = {"siteID": facts.number} if facts.number else {}
    mtu = {"mtu": facts.mtu} if facts.mtu else {}
    if accepted.status != "True":
        return Report(number, (accepted, summary([accepted], "")))
    if facts.text.get("wan") == "Routed":
        return _routed_report(obj, facts, situation, accepted)
    states = {node: situation.node_state(name, node) for node in facts.nodes}
    views = situation.controllers(facts.controllers)
    bridges = _bridges(obj, states, situation.apply_errors.get((SITE.kind, name)))
    datapaths, connected = known_to_all(expected_datapaths(facts.dpids, situation), views)
    agents, registered = known_to_all(expected_agents("AgentsRegistered", facts.agents, situation), views)
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
    extra = overlaps.site_verdicts(situation.overlaps.get(name, [])) + ([] if situation.multus else [no_multus()])
    documents = {node: situation.compiled.nodes[node] for node in facts.nodes if node in situation.compiled.nodes}
    answers = {node: answer for node in documents if (answer := situation.node_answer(name, node)) is not None}
    if (attached := attached_verdict(documents, answers)) is not None:
        extra.append(attached)
    return Report(fields, (*verdicts, *extra, summary(verdicts, "Ready")))


def _routed_report(obj: SosSite, facts: sos_compile.Facts, situation: Situation, accepted: Verdict) -> Report:
    """Return the status of a site without a bridge: its nodes are its agents."""
    name = obj.name
    found = {agent.node: agent for agent in direct_agents(situation, site=name)}
    no_agent = PodState("Pending", "no agent on the node")
    states = {node: found[node].state if node in found else no_agent for node in facts.nodes}
    none = Verdict("BridgesReady", "True", "NotBuiltHere", "the site has no bridge (wan.type: Routed)")
    bridges = none if states else _bridges(obj, states, None)
    agents, registered_count = registered("AgentsRegistered", found.values())
    if not facts.agents and facts.node_problems:
        node, why = min(facts.node_problems.items())
        agents = Verdict("AgentsRegistered", "False", "NoNodeAddress", f"{node}: {why}")
    elif not facts.agents:
        agents = Verdict("AgentsRegistered", "True", "NoneExpected", "no agent pool serves this site, so its traffic stays plain")
    fields = {
        **({"siteID": facts.number} if facts.number else {}),
        "nodesReady": f"{sum(state.state == 'Ready' for state in states.values())}/{len(states)}",
        "datapathsConnected": "0/0",
        "agentsRegistered": f"{registered_count}/{len(facts.agents)}",
        "nodes": [_site_node(node, states[node], facts, situation.compiled) for node in sorted(facts.nodes)[:NODES_MAX]],
    }
    verdicts = [accepted, bridges, agents]
    extra = overlaps.site_verdicts(situation.overlaps.get(name, []))
    return Report(fields, (*verdicts, *extra, summary(verdicts, "Ready")))


def no_multus() -> Verdict:
    """Verdict for pods that cannot attach to a site: the cluster has no Multus."""
    message = "the cluster has no NetworkAttachmentDefinitions (Multus): pods cannot join this site's bridge, everything else works"
    return Verdict("PodsAttachable", "False", "MultusMissing", message)


def _bridges(obj: SosSite, states: Mapping[str, PodState], error: str | None) -> Verdict:
    if error:
        return Verdict("BridgesReady", "False", "ApplyFailed", error)
    if not obj.has_node_selector:
        return Verdict("BridgesReady", "True", "NotBuiltHere", "the site consists of external switches")
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
