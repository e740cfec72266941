"""Findings and verdict of `kubectl sos diagnose` between sites without bridges, in the order of cause. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sos_kubectl.diagnose import checks
from sos_kubectl.diagnose.findings import Finding, in_order
from sos_kubectl.diagnose.links import bounded
from sos_kubectl.diagnose.routed.facts import PairView, RoutedFacts, pair_views
from sos_kubectl.targets.agent_configs import Agent
from sos_kubectl.views import agent_state

READY = "ready"
"""Connections can be accelerated. Only transfers could show more, and none is sent."""
FAILURES = {
    "sos_agent_handshakes_failed_total": "attempts to open a stream failed",
    "sos_agent_plain_refused_total": "plain streams were refused (the pair of sites has encryption TLS)",
    "sos_agent_strangers_total": "connections came from unknown addresses (NAT: spec.wan.inbound)",
}
"""Counters that explain missing streams."""


def findings(facts: RoutedFacts) -> list[Finding]:
    """All findings, in the order of cause."""
    common = [*checks.rejected_objects(facts.common), *checks.declared_service(facts.common)]
    return in_order([*common, *(finding for check in CHECKS for finding in check(facts))])


def verdict(facts: RoutedFacts, found: Sequence[Finding]) -> str:
    """The verdict in one word: `ready` only if some pair of agents accepts sessions, and there is no finding."""
    if checks.chosen(facts.common) is None:
        return checks.PLAIN
    if any(_usable(facts, pair) for pair in pair_views(facts)):
        return checks.DEGRADED if found else READY
    silent = any(answer.runs and not answer.status for answer in facts.answers.values())
    return checks.UNKNOWN if silent or not facts.agents else checks.PLAIN


def _usable(facts: RoutedFacts, pair: PairView) -> bool:
    return pair.alive and pair.willing and _accepts(facts, pair.agent) and (pair.known is None or not _refuses(facts, pair.known))


def _accepts(facts: RoutedFacts, agent: Agent) -> bool:
    return agent_state.why_plain(agent, facts.answers[agent.id]) is None


def _refuses(facts: RoutedFacts, agent: Agent) -> bool:
    """True if an agent certainly accepts no sessions. If only this command cannot reach the agent, its streams still show that it runs."""
    answer = facts.answers[agent.id]
    return bool(answer.status or not answer.runs) and not _accepts(facts, agent)


# -- checks, one layer each


def _agents(facts: RoutedFacts) -> Iterable[Finding]:
    for site in (facts.common.asked.from_site, facts.common.asked.to_site):
        faults = [
            (agent, *why) for agent in _expected(facts, site) if (why := agent_state.why_plain(agent, facts.answers[agent.id])) is not None
        ]
        for (agent, _, words), more in bounded(faults):
            where, answered = f"{agent.name} ({site})", bool(facts.answers[agent.id].status)
            if answered:
                yield Finding("AgentUnwilling", where, f"The agent at {where} takes no new sessions: {words}.{more}")
            else:
                yield Finding("AgentDown", where, f"The agent at {where} is unavailable: {words}.{more}")


def _expected(facts: RoutedFacts, site: str) -> list[Agent]:
    """The agents of a site that should accept sessions: without the backups, if another node has the virtual address."""
    agents = facts.at(site)
    active = [agent for agent in agents if not agent_state.is_backup(facts.answers[agent.id])]
    return active if any(facts.answers[agent.id].status for agent in active) else agents


def _configurations(facts: RoutedFacts) -> Iterable[Finding]:
    answered = [agent for agent in facts.agents if facts.answers[agent.id].status]
    old = [agent for agent in answered if not agent_state.is_current(agent, facts.answers[agent.id])]
    for agent, more in bounded(old):
        where, refused = f"{agent.name} ({agent.site})", facts.counter(agent, "sos_agent_config_refused_total")
        said = f" It has refused {refused} since its start." if refused else ""
        what = f"The agent at {where} is behind: {agent_state.outdated(agent, facts.answers[agent.id])}.{said}{more}"
        yield Finding("ConfigurationPending", where, what)


def _streams(facts: RoutedFacts) -> Iterable[Finding]:
    """Findings for pairs of agents without streams, although both agents run and accept sessions. An agent that reaches none of several
    agents is reported once."""
    there = [pair for pair in pair_views(facts) if _both_run(facts, pair)]
    blocked = [pair for pair in there if not pair.alive]
    lonely: list[tuple[PairView, int]] = []
    for agent in dict.fromkeys(pair.agent.id for pair in blocked):
        all_, none = (sum(pair.agent.id == agent for pair in some) for some in (there, blocked))
        if all_ == none > 1:
            lonely.append((next(pair for pair in blocked if pair.agent.id == agent), none))
    for (pair, count), more in bounded(lonely):
        what = f"The agent {pair.agent.name} of {pair.agent.site} has no stream to any of {count} agents of {pair.site}."
        yield Finding("StreamsBlocked", f"{pair.agent.name} to {pair.site}", f"{what} {_ports(pair)}{_explained(facts, pair)}{more}")
    alone = {pair.agent.id for pair, _ in lonely}
    for pair, more in bounded([pair for pair in blocked if pair.agent.id not in alone]):
        what = f"There is no stream between {pair.ends}. {_ports(pair)}{_explained(facts, pair)}{more}"
        yield Finding("StreamsBlocked", pair.name, what)


def _both_run(facts: RoutedFacts, pair: PairView) -> bool:
    """True unless another finding explains that there is no stream: an agent that is down or leaves has none."""
    ends = [pair.agent, *([pair.known] if pair.known is not None else [])]
    return all(facts.answers[agent.id].status and not facts.answers[agent.id].status.get("draining") for agent in ends)


def _ports(pair: PairView) -> str:
    ends = ", ".join(f"{view.path.port} of {view.path.accepts}" for view in pair.paths)
    return f"Needed, for example: TCP port {ends}."


def _explained(facts: RoutedFacts, pair: PairView) -> str:
    counts = {words: facts.counter(pair.agent, metric) for metric, words in FAILURES.items()}
    said = "; ".join(f"{count} {words}" for words, count in counts.items() if count)
    return f" At {pair.agent.name}, since its start: {said}." if said else ""


def _paths(facts: RoutedFacts) -> Iterable[Finding]:
    """Findings for paths without a stream between agents that have streams on another path."""
    down = [(pair, view) for pair in pair_views(facts) if pair.alive and _both_run(facts, pair) for view in pair.paths if view.down]
    for (pair, view), more in bounded(down):
        path = view.path
        what = f"No stream on path {path.number}, from {path.near} to {path.far} (TCP port {path.port} of {path.accepts}).{more}"
        yield Finding("PathDown", f"{pair.name}, path {path.number}", what)


CHECKS: tuple[Callable[[RoutedFacts], Iterable[Finding]], ...] = (_agents, _configurations, _streams, _paths)
