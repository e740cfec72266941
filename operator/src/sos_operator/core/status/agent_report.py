"""Status of a SosAgent: its DaemonSets and agents."""

from __future__ import annotations

from collections.abc import Mapping

import sos_compile
from sos_compile.manifests import naming

from sos_operator.core.model.cluster_objects import DaemonSet
from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import SosAgent
from sos_operator.core.model.kinds import AGENT
from sos_operator.core.model.pod_state import PodState, daemon_set_settled, lost, pod_state
from sos_operator.core.model.world import PREFIX
from sos_operator.core.status.direct_agents import direct_agents, registered
from sos_operator.core.status.site_report import NO_MULTUS_FOR_AGENTS
from sos_operator.core.status.situation import (
    NAMED_MAX,
    Report,
    Situation,
    accepted_verdict,
    expected_agents,
    known_to_all,
    site_controllers,
)


def build_agent_report(obj: SosAgent, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosAgent."""
    name = obj.name
    accepted = accepted_verdict(obj, facts, situation)
    if accepted.status != "True":
        return Report({}, (accepted, summary([accepted], "")))
    direct = list(direct_agents(situation, pool=name))
    bridged = len(direct) < len(facts.agents) or not direct
    if obj.attach == "Multus" and not situation.multus and bridged:
        missing = Verdict("ResolvedRefs", "False", "MultusMissing", NO_MULTUS_FOR_AGENTS)
        return Report({}, (accepted, missing, summary([accepted, missing], "")))
    wanted = {node: doc for (pool, node), doc in situation.compiled.agents.items() if pool == name}
    sets = {naming.agent(PREFIX, name, doc["site"]["name"]) for doc in wanted.values()}
    states = {
        node: lost(situation.nodes.get(node)) or pod_state(situation.pod(naming.agent(PREFIX, name, doc["site"]["name"]), node))
        for node, doc in wanted.items()
    }
    deployed = _deployed(sets, states, situation, situation.apply_errors.get((AGENT.kind, name)))
    controllers = {c for site in facts.sites for c in site_controllers(site, situation)}
    of_direct = {agent.document["agentId"] for agent in direct}
    known = [id_ for id_ in facts.agents if id_ not in of_direct]
    verdict, count = registered("Registered", direct)
    if known:
        of_controllers, more = known_to_all(expected_agents("Registered", known, situation), situation.controllers(controllers))
        # The worse of the two verdicts counts.
        verdict, count = (of_controllers if verdict.status == "True" else verdict), count + more
    if not facts.agents:
        verdict = Verdict("Registered", "False", "NoAgents", "there are no agents to register")
    fields = {
        "sites": ",".join(facts.sites)[:1024],
        "desired": len(wanted),
        "ready": sum(s.state == "Ready" for s in states.values()),
        "registered": count,
    }
    verdicts = [accepted, deployed, verdict]
    return Report(fields, (*verdicts, summary(verdicts, "Ready")))


def _deployed(sets: set[str], states: Mapping[str, PodState], situation: Situation, error: str | None) -> Verdict:
    if error:
        return Verdict("Deployed", "False", "ApplyFailed", error)
    if not states:
        return Verdict(
            "Deployed", "False", "NoMatchingNodes", "no site with prefixes and nodes matches spec.siteSelector: label one, or change it"
        )
    unsettled = [name for name in sorted(sets) if not daemon_set_settled(situation.seen.child(DaemonSet, name))]
    missing = {node: s for node, s in states.items() if s.state != "Ready"}
    if not missing and not unsettled:
        return Verdict("Deployed", "True", "Deployed", f"{len(states)} agents")
    failed = any(s.state == "Failed" for s in missing.values())
    shown = "; ".join(f"{node}: {s.message}" for node, s in sorted(missing.items())[:NAMED_MAX])
    message = f"{len(states) - len(missing)} of {len(states)} agents ready" + (f"; {shown}" if shown else "")
    return Verdict("Deployed", "False", "NodeFailed" if failed else "RollingOut", message)
