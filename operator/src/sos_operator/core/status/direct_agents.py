"""Verdicts about sites without bridges: no controller knows their agents, so the agents' own answers count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import sos_compile
from sos_compile import ObjectKey
from sos_compile.manifests import naming
from sos_compile.model.world import Json

from sos_operator.core.model.cluster_objects import Pod
from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.kinds import SERVICE, SITE
from sos_operator.core.model.pod_state import PodState, lost, pod_state
from sos_operator.core.model.remote.agent_status import AgentAnswer
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.peers.contact import Contact
from sos_operator.core.status.situation import Situation, listed_names


@dataclass(frozen=True, slots=True)
class DirectAgent:
    """An agent without a controller: its document, the state of its pod, and its answer."""

    node: str
    document: Json
    state: PodState
    answer: AgentAnswer | None

    @property
    def current(self) -> bool:
        """True if the agent has answered, and has its present configuration in force."""
        return self.answer is not None and self.answer.hash == self.document["hash"]

    @property
    def backup(self) -> bool:
        """True if another node may have the site's virtual address."""
        return self.answer is not None and self.answer.backup

    def serves(self, service: str) -> bool:
        """Return whether the agent's configuration has this service: without a selected pod on its node, it has not."""
        return any(row["id"] == service for row in self.document["services"])

    def has(self, service: str, *, selecting: bool) -> bool:
        """Return whether the agent has its present configuration of a service in force. If the service selects pods, an earlier
        configuration is enough: pods come and go all the time, and each of them changes the configuration."""
        if self.current:
            return True
        return selecting and self.answer is not None and (not self.serves(service) or service in self.answer.services)


def is_routed(document: Json) -> bool:
    """Return whether an agent-config belongs to an agent without a bridge."""
    return "wan" in document


def agents_without_controller(seen: Seen, compiled: sos_compile.Compiled) -> list[Pod]:
    """Return the pods of agents that no controller knows."""
    wanted = {(_daemon_set(pool, doc), node) for (pool, node), doc in compiled.agents.items() if is_routed(doc)}
    return [pod for pod in seen.pods if (pod.daemon_set, pod.node) in wanted]


def outdated(seen: Seen, compiled: sos_compile.Compiled, answers: Mapping[str, AgentAnswer]) -> frozenset[str]:
    """Return the uids of the pods to query in every pass: those of agents that have not reported their present configuration."""
    wanted = {(_daemon_set(pool, doc), node): doc["hash"] for (pool, node), doc in compiled.agents.items() if is_routed(doc)}
    found = set()
    for pod in agents_without_controller(seen, compiled):
        uid = pod.meta.uid
        if uid not in answers or answers[uid].hash != wanted[pod.daemon_set, pod.node]:
            found.add(uid)
    return frozenset(found)


def direct_agents(situation: Situation, *, site: str = "", pool: str = "") -> Iterator[DirectAgent]:
    """Yield the agents without controllers of a site or of a pool, by node."""
    for (of_pool, node), document in sorted(situation.compiled.agents.items()):
        if not is_routed(document) or site not in ("", document["site"]["name"]) or pool not in ("", of_pool):
            continue
        pod = situation.pod(_daemon_set(of_pool, document), node)
        answer = situation.agent_answers.get(pod.meta.uid) if pod else None
        yield DirectAgent(node, document, lost(situation.nodes.get(node)) or pod_state(pod), answer)


def _daemon_set(pool: str, document: Json) -> str:
    return naming.agent(PREFIX, pool, document["site"]["name"])


def registered(type_: str, agents: Iterable[DirectAgent]) -> tuple[Verdict, int]:
    """Return the verdict on whether all agents have reported their present configuration, and the number of these agents."""
    found = list(agents)
    missing = [agent.node for agent in found if not agent.current]
    count = len(found) - len(missing)
    if not missing:
        return Verdict(type_, "True", "Registered", f"{count} agents"), count
    message = f"{count} of {len(found)} agents; missing: {listed_names(missing)}"
    return Verdict(type_, "False", "NotRegistered", message), count


def programmed(id_: str, situation: Situation, source: str, target: str) -> Verdict:
    """Return the verdict on whether this cluster's agents accelerate the connections of a service."""
    behind = [site for site in (source, target) if not _machine_is_current(site, situation)]
    if behind:
        return Verdict("Programmed", "False", "Programming", f"machine {behind[0]} has not taken over the present configuration yet")
    here = [site for site in (source, target) if ObjectKey(SITE.kind, "", site) in situation.compiled.facts]
    namespace, _, name = id_.partition("/")
    facts = situation.compiled.facts.get(ObjectKey(SERVICE.kind, namespace, name))
    selected = facts.client_pods if facts else None
    for site, other in ((source, target), (target, source)):
        if site in here and (problem := _problem(id_, situation, (site, other), selecting=selected is not None)) is not None:
            return problem
    where = "of both sites" if len(here) == 2 else f"of SosSite {here[0]}"
    unused = "; no selected pod is running at present" if selected == 0 else ""
    return Verdict("Programmed", "True", "Programmed", f"in force at the agents {where}{unused}")


def _problem(id_: str, situation: Situation, sites: tuple[str, str], *, selecting: bool) -> Verdict | None:
    """Return why the agents of the first of two sites do not accelerate the connections of a service; None if they do."""
    site, other = sites
    agents = list(direct_agents(situation, site=site))
    if not agents:
        message = f"SosSite {site} has no agents: no SosAgent serves it, or no node has an address"
        return Verdict("Programmed", "False", "NoAgents", message)
    # Agents on nodes that are down or drained do not count: the other agents accelerate without them.
    working = [agent for agent in agents if agent.state.state == "Ready"]
    if not working:
        message = f"no agent of SosSite {site} is ready: {listed_names(agent.node for agent in agents)}"
        return Verdict("Programmed", "False", "NoAgents", message)
    old = [agent.node for agent in working if not agent.has(id_, selecting=selecting)]
    if old:
        message = f"agents of SosSite {site} have not taken over the present configuration yet: {listed_names(old)}"
        return Verdict("Programmed", "False", "Programming", message)
    active = [agent for agent in working if not agent.backup]
    if not active:
        shared = working[0].document["intake"].get("virtualAddress")
        message = f"no node of SosSite {site} has the virtual address {shared}: {listed_names(agent.node for agent in working)}"
        return Verdict("Programmed", "False", "NoAgents", message)
    idle = [agent.node for agent in active if agent.serves(id_) and not (agent.answer and agent.answer.services.get(id_))]
    if idle:
        message = f"agents of SosSite {site} reach no agent of SosSite {other} that accepts sessions: {listed_names(idle)}"
        return Verdict("Programmed", "False", "NoAgents", message)
    return None


def _machine_is_current(site: str, situation: Situation) -> bool:
    """Return whether a machine has reported its present configuration; True for sites that are not machines."""
    document = situation.compiled.machines.get(site)
    if document is None:
        return True
    report = situation.contacts.get(site, Contact()).report
    return report is not None and report.hash == document["hash"]
