"""Facts about two sites without bridges. Values only; `gather` fills them, and `checks` evaluates them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sos_kubectl.diagnose import samples
from sos_kubectl.diagnose.facts import Facts
from sos_kubectl.targets.agent_configs import Agent, Answer
from sos_kubectl.views import agent_state, pairs
from sos_kubectl.views.pairs import Path

Json = dict[str, Any]

PLAIN = "sos_agent_plain_total"
REASONS = {PLAIN: "plain", "sos_agent_rejected_total": "reset", "sos_agent_connect_failures_total": "server not reached"}
"""Counters with a reason, and what became of the connection."""


@dataclass(frozen=True, slots=True)
class RoutedFacts:
    """All facts. `common`: the question, objects, and the agents' configurations in the form of a controller-config."""

    common: Facts
    agents: Sequence[Agent]
    """Agents of the two sites in this cluster."""
    answers: Mapping[str, Answer]
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics by agent id; "" if the agent does not answer."""

    def at(self, site: str) -> list[Agent]:
        """The agents of a site in this cluster."""
        return [agent for agent in self.agents if agent.site == site]

    def counter(self, agent: Agent, metric: str) -> int:
        """A counter of an agent, 0 if unknown."""
        return int(samples.totals(self.metrics.get(agent.id, "")).get(metric, 0))


@dataclass(frozen=True, slots=True)
class PathView:
    """A path between two agents as the nearer agent sees it; `streams` and `configured` are None if the agent does not report them."""

    path: Path
    streams: int | None
    configured: int | None

    @property
    def down(self) -> bool:
        """True if streams should be open, and none is."""
        return bool(self.configured) and not self.streams


@dataclass(frozen=True, slots=True)
class PairView:
    """An agent, an agent of the other site, and the paths between them."""

    agent: Agent
    site: str
    node: str
    """Site and node of the other agent."""
    known: Agent | None
    """The other agent, if it is in this cluster."""
    alive: bool
    willing: bool
    paths: tuple[PathView, ...]

    @property
    def name(self) -> str:
        """Both ends, as the location of a finding."""
        return f"{self.agent.name} ({self.agent.site}) - {self.node} ({self.site})"

    @property
    def ends(self) -> str:
        """Both ends in a sentence."""
        return f"{self.agent.name} ({self.agent.site}) and {self.node} ({self.site})"


def pair_views(facts: RoutedFacts) -> list[PairView]:
    """The pairs of agents of the two sites: as the agents of the first site see them, or those of the second if the first is elsewhere."""
    one, other = facts.common.asked.from_site, facts.common.asked.to_site
    near, far = (one, other) if facts.at(one) else (other, one)
    own = {agent.id: agent for agent in facts.agents}
    return [
        _pair(agent, facts.answers[agent.id], far, peer, own.get(peer["id"]))
        for agent in facts.at(near)
        if facts.answers[agent.id].status
        for peer in pairs.peer_agents(agent.document, far)
    ]


def _pair(agent: Agent, answer: Answer, site: str, peer: Json, known: Agent | None) -> PairView:
    seen = agent_state.peer(answer, peer["id"])
    rows = {row["label"]: row for row in seen.get("paths") or ()}
    views = [(path, rows.get(path.label, {})) for path in pairs.paths(agent.document, site, peer)]
    return PairView(
        *(agent, site, known.name if known is not None else str(peer["node"]), known),
        alive=bool(seen.get("alive")),
        willing=bool(seen.get("willing")),
        paths=tuple(PathView(path, row.get("streams"), row.get("configured")) for path, row in views),
    )


def as_config(agents: Iterable[Agent]) -> Json:
    """Return the sites and services of agent-configs in the form of a controller-config, in order of precedence."""
    sites: dict[str, Json] = {}
    services: dict[str, Json] = {}
    for agent in agents:
        own = agent.document["site"]
        for name, prefixes in ((own["name"], own["prefixes"]), *((peer["site"], peer["prefixes"]) for peer in agent.document["peers"])):
            sites.setdefault(name, {"name": name, "prefixes": prefixes, "transit": False, "agents": []})
        for row in agent.document["services"]:
            # The egress agent's row has all clients; that of an ingress agent may have only the selected pods of its node.
            if row["role"] == "Egress" or row["id"] not in services:
                services[row["id"]] = _service(own["name"], row)
    return {"sites": list(sites.values()), "services": list(services.values()), "balances": []}


def _service(site: str, row: Json) -> Json:
    source, target = (row["peer"], site) if row["role"] == "Egress" else (site, row["peer"])
    ends = {"from": {"site": source, "prefixes": row["from"]}, "to": {"site": target, "prefixes": row["to"]}}
    return {"id": row["id"], "mode": "Accelerate", "percent": 100, "ports": row["ports"], **ends}


def reasons(facts: RoutedFacts) -> list[tuple[Agent, str, str, int]]:
    """Connections that were not accelerated since each agent's start: agent, outcome, reason and count, the most frequent first."""
    rows = [
        (agent, outcome, reason, count)
        for agent in facts.agents
        for metric, outcome in REASONS.items()
        for reason, count in samples.by_reason(facts.metrics.get(agent.id, ""), metric).items()
        if count
    ]
    return sorted(rows, key=lambda row: (-row[3], row[0].name, row[1], row[2]))
