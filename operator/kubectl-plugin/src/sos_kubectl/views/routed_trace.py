"""`kubectl sos trace` between sites without bridges: the agents decide, so their agent-configs and their own answers are the sources. Pure.

The steps follow the ingress agent's decisions: the service (spec/node-config.md clause 11), its own willingness, then the egress agent
(clause 37). No packet is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sos_kubectl.targets import ports
from sos_kubectl.targets.agent_configs import Agent, Answer
from sos_kubectl.views import agent_state, pairs
from sos_kubectl.views.trace import Question, Trace, ports_in_words

Json = dict[str, Any]

LISTED_MAX = 4
"""Maximum number of ingress agents, and of unusable egress agents of each, that are listed: a site may have a thousand agents."""


@dataclass(frozen=True, slots=True)
class Known:
    """The connection, the agents of all sites without bridges in this cluster, and the answers of those at the connection's two sites."""

    question: Question
    agents: Sequence[Agent]
    answers: Mapping[str, Answer]


PARTLY = "accelerated at the agents that accept sessions, else plain TCP"


def concerns(question: Question, agents: Sequence[Agent]) -> bool:
    """True if a connection begins or ends at a site without bridges, or if there are no other sites."""
    routed = [agent for agent in agents if agent.routed]
    if not routed or len(routed) == len(agents):
        return bool(routed)
    ends = (str(question.client), str(question.server))
    return any(ports.inside(end, agent.document["site"]["prefixes"]) for end in ends for agent in routed)


def to_query(question: Question, agents: Sequence[Agent]) -> list[Agent]:
    """Return the agents of the client's site in this cluster, and those of the sites to which a service leads the connection: the server's
    address, for example that of a Kubernetes Service, need not be inside its site's prefixes."""
    near = [agent for agent in agents if agent.routed and ports.inside(str(question.client), agent.document["site"]["prefixes"])]
    sites = {agent.site for agent in near} | {service["peer"] for _, service in _of_role(near, "Ingress") if _covers(service, question)}
    return [agent for agent in agents if agent.routed and agent.site in sites]


def trace(question: Question, agents: Sequence[Agent], answers: Mapping[str, Answer]) -> Trace:
    """Follow a connection through the agent-configs and the agents' answers."""
    found, known = Trace(), Known(question, [agent for agent in agents if agent.routed], answers)
    candidates = _candidates(known, found)
    serving = _serving(known, candidates, found) if candidates else []
    if not serving:
        return found
    found.service = serving[0][1]["id"]
    reached = 0
    for number, (agent, service) in enumerate(serving):
        listed = found if number < LISTED_MAX else Trace()
        accepts = _accepts(agent, answers[agent.id], service["id"], listed)
        reached += accepts and _egress(known, agent, service, listed)
    if len(serving) > LISTED_MAX:
        found.note(True, f"and {len(serving) - LISTED_MAX} more agents of {serving[0][0].site}")
    if reached and candidates[0].document["intake"].get("networkPolicies") == "Respect":
        found.note(True, "before acceleration, a SYN checks that network policies permit the connection")
    if reached:
        found.outcome, found.partly = ("accelerated" if reached == len(serving) else "unknown"), PARTLY
    return found


def _candidates(known: Known, found: Trace) -> list[Agent]:
    """Agents that may intercept the client's connections: the agent of a pod's node if it is known, else all agents of the site."""
    client, routed = str(known.question.client), known.agents
    there = [agent for agent in routed if ports.inside(client, agent.document["site"]["prefixes"])]
    if not there:
        elsewhere = {peer["site"] for agent in routed for peer in agent.document["peers"] if ports.inside(client, peer["prefixes"])}
        where = f"in site {min(elsewhere)} of another cluster or machine: trace it there" if elsewhere else "in no site's prefixes"
        found.step(False, f"{client} is {where}")
        return []
    found.step(True, f"{client} is in site {there[0].site}")
    if backups := {agent.id for agent in there if agent.id in known.answers and agent_state.is_backup(known.answers[agent.id])}:
        there = [agent for agent in there if agent.id not in backups] or there
    pods = pairs.beside(routed)
    here = [agent for agent in there if ports.inside(client, pods.get(agent.id, []))]
    if here:
        found.step(True, f"{client} is on node {here[0].node}, whose agent intercepts its connections")
    elif len(there) > 1:
        found.step(True, f"any of {len(there)} agents of {there[0].site} may intercept its connections")
    return here or there


def _covers(service: Json, question: Question, *, port: bool = True) -> bool:
    ends = ports.inside(str(question.client), service["from"]) and ports.inside(str(question.server), service["to"])
    return ends and (not port or ports.holds(service, question.port))


def _of_role(agents: Sequence[Agent], role: str) -> list[tuple[Agent, Json]]:
    return [(agent, service) for agent in agents for service in agent.document["services"] if service["role"] == role]


def _serving(known: Known, candidates: Sequence[Agent], found: Trace) -> list[tuple[Agent, Json]]:
    """Agents with the first service that covers the connection in their agent-config."""
    covering = [(agent, service) for agent, service in _of_role(candidates, "Ingress") if _covers(service, known.question)]
    first = {agent.id: (agent, service) for agent, service in reversed(covering)}
    serving = [first[agent.id] for agent in candidates if agent.id in first]
    if not serving:
        found.step(False, _not_covered(known, candidates))
        return []
    winner, site = serving[0][1], serving[0][0].site
    found.step(True, f"service {winner['id']} covers it, from {site} to {winner['peer']}")
    found.hidden = list(dict.fromkeys(service["id"] for _, service in covering if service["id"] != winner["id"]))
    if found.hidden:
        found.step(True, f"it comes before {', '.join(found.hidden)}, which would cover the connection without {winner['id']}")
    return serving


def _not_covered(known: Known, candidates: Sequence[Agent]) -> str:
    """Words for a connection that no ingress agent covers."""
    question, own = known.question, {service["id"] for _, service in _of_role(candidates, "Ingress")}
    other = [service for _, service in _of_role(known.agents, "Egress") if service["id"] not in own and _covers(service, question)]
    if other:
        return f"service {other[0]['id']} covers it only for selected pods, and {question.client} is none of them (spec.from.pods)"
    near = [service for _, service in _of_role(candidates, "Ingress") if _covers(service, question, port=False)]
    if near:
        words = sorted({ports_in_words(service["ports"]) for service in near})
        return f"no service covers port {question.port} between them; covered: {', '.join(words)}"
    return f"no service covers connections from {question.client} to {question.server}"


def _accepts(agent: Agent, answer: Answer, service: str, found: Trace) -> bool:
    """Add the state of an agent; return whether it accepts sessions of the service."""
    name, why = f"agent {agent.name} of {agent.site}", agent_state.why_plain(agent, answer)
    if why is not None:
        return found.step(False, f"{name} takes no sessions ({why[0]}): {why[1]}")
    if agent_state.is_current(agent, answer):
        return found.step(True, f"{name} takes sessions, and has its configuration in force")
    if not agent_state.has_service(answer, service):
        return found.step(False, f"{name} does not know service {service} yet (NotArmed): {agent_state.outdated(agent, answer)}")
    return found.step(True, f"{name} takes sessions; {agent_state.outdated(agent, answer)}")


def _egress(known: Known, ingress: Agent, service: Json, found: Trace) -> bool:
    """Add the egress agent that the ingress agent chooses, with the paths to it; return whether there is one."""
    there, server = pairs.peer_agents(ingress.document, service["peer"]), str(known.question.server)
    beside = [peer for peer in there if ports.inside(server, peer.get("prefixes", []))]
    own, unusable = {agent.id: agent for agent in known.agents if agent.id in known.answers}, list[str]()
    for peer in beside or there:
        egress = own.get(peer["id"])
        why = _unusable(ingress, peer, service, (known.answers[ingress.id], known.answers[egress.id] if egress else None), egress)
        if not why:
            _note_some(unusable, found)
            found.step(True, f"agent {peer['node']} of {service['peer']} takes sessions, and has streams to agent {ingress.name}")
            if egress is not None and not known.answers[egress.id].status:  # its streams show that it runs
                found.note(False, f"agent {egress.name} does not answer this command: {known.answers[egress.id].error}")
            if not beside:
                found.note(True, _far_server(server, egress, service))
            _paths(ingress, service, peer, found)
            return True
        unusable.append(why)
    _note_some(unusable, found)
    where = f"on the node of {server}" if beside else f"of {service['peer']}"
    return found.step(False, f"agent {ingress.name} of {ingress.site} reaches no agent {where} that accepts sessions (NoAgent)")


def _note_some(unusable: list[str], found: Trace) -> None:
    """Add the egress agents that come first and cannot be used."""
    for why in unusable[:LISTED_MAX]:
        found.note(False, why)
    if len(unusable) > LISTED_MAX:
        found.note(False, f"and {len(unusable) - LISTED_MAX} more agents like these")


def _unusable(ingress: Agent, peer: Json, service: Json, given: tuple[Answer, Answer | None], egress: Agent | None) -> str:
    """Return why the ingress agent cannot use an egress agent, "" if it can. `given`: the answers of both; the second is None for an agent
    of another cluster."""
    name, (near, far) = f"agent {peer['node']} of {service['peer']}", given
    asked = far is not None and (bool(far.status) or not far.runs)
    if egress is not None and far is not None and asked and (why := agent_state.why_plain(egress, far)) is not None:
        return f"{name} takes no sessions ({why[0]}): {why[1]}"
    seen = agent_state.peer(near, peer["id"])
    if not seen.get("alive"):
        return f"{name} has no stream to agent {ingress.name} of {ingress.site}"
    if not seen.get("willing"):
        return f"{name} takes no sessions: it is draining, at a limit, or without the virtual address of its site"
    if far is not None and asked and not agent_state.has_service(far, service["id"]):
        return f"{name} does not know service {service['id']} yet (AgentNotPermitted)"
    return ""


def _far_server(server: str, egress: Agent | None, service: Json) -> str:
    """Words for a server that no agent's node is known to have (docs/concepts/pods.md, servers outside the agent's node)."""
    if egress is None:
        return f"the other cluster or machine decides how its agent connects to {server}"
    row: Json = next((row for row in egress.document["services"] if row["id"] == service["id"]), {})
    if row.get("source") == "Agent":
        return f"agent {egress.name} connects to {server} from its node's own address"
    if egress.document["intake"]["type"] == "Routed":
        return f"agent {egress.name} connects to {server} from the client's address"
    return f"agent {egress.name} connects to {server} only if it is a pod on node {egress.node}; otherwise plain (PortTaken)"


def _paths(ingress: Agent, service: Json, peer: Json, found: Trace) -> None:
    """Add the paths between two agents."""
    usable = pairs.paths(ingress.document, service["peer"], peer)[: service["labels"]]
    rows = [{"path": path.number, "from": path.near, "to": path.far} for path in usable]
    found.pairs.append({"ingress": ingress.name, "egress": peer["node"], "paths": rows})
    for path in usable:
        found.note(True, f"path {path.number}: {path.near} to {path.far}, TCP port {path.port} of {path.accepts}")
