"""Output of `kubectl sos diagnose` between sites without bridges: agents, paths, reasons and findings, as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sos_kubectl.base import tables
from sos_kubectl.diagnose import checks as common
from sos_kubectl.diagnose import render
from sos_kubectl.diagnose.findings import Finding
from sos_kubectl.diagnose.routed import checks
from sos_kubectl.diagnose.routed.facts import PairView, PathView, RoutedFacts, pair_views, reasons
from sos_kubectl.targets.agent_configs import Agent
from sos_kubectl.views import agent_state

Json = dict[str, Any]
Row = tuple[str, ...]

ROWS_MAX = 20
"""Maximum number of rows of a table; rows with faults come first, and the rest is counted."""
WORDS = {
    checks.READY: "ready: the agents can accelerate connections; no traffic was sent",
    common.DEGRADED: "degraded: connections can be accelerated, but not all is well",
    common.PLAIN: "plain: connections are not accelerated",
    common.UNKNOWN: "unknown: the agents do not answer",
}
COLOURS = {checks.READY: tables.GOOD, common.UNKNOWN: tables.BAD}


def lines(facts: RoutedFacts, found: Sequence[Finding], colour: bool) -> list[str]:
    """Tables, findings, and the verdict at the end."""
    asked, service = facts.common.asked, common.chosen(facts.common)
    by = f", service {service['id']}" if service is not None else ""
    shown = tables.wrapped(f"{asked.from_site} to {asked.to_site}{by}: agents without a bridge", indent="")
    shown += _table(("AGENT", "SITE", "STATE", "SESSIONS", "CONFIGURATION"), _agent_rows(facts))
    shown += _table(("AGENTS", "PATH", "FROM", "TO", "STREAMS"), _path_rows(facts))
    counts = [(agent.name, agent.site, outcome, reason, str(count)) for agent, outcome, reason, count in reasons(facts)]
    shown += _table(("AGENT", "SITE", "NOT ACCELERATED", "REASON", "CONNECTIONS"), counts)
    shown += render.finding_lines(list(found), colour)
    outcome = checks.verdict(facts, found)
    return [*shown, "", tables.coloured(WORDS[outcome], COLOURS.get(outcome, tables.WAITING), colour)]


def _table(head: Row, rows: Sequence[Row]) -> list[str]:
    more = [f"and {len(rows) - ROWS_MAX} more"] if len(rows) > ROWS_MAX else []
    return ["", *tables.table(head, rows[:ROWS_MAX]), *more] if rows else []


def _agent_rows(facts: RoutedFacts) -> list[Row]:
    rows = [(_state(facts, agent), agent) for agent in facts.agents]
    rows.sort(key=lambda row: row[0] == "ready")
    return [(agent.name, agent.site, state, _sessions(facts, agent), _generation(facts, agent)) for state, agent in rows]


def _state(facts: RoutedFacts, agent: Agent) -> str:
    answer = facts.answers[agent.id]
    why = agent_state.why_plain(agent, answer)
    if why is None:
        return "ready"
    return why[0] if answer.status else ("no answer" if answer.runs else "does not run")


def _sessions(facts: RoutedFacts, agent: Agent) -> str:
    return str(facts.answers[agent.id].status.get("sessions", ""))


def _generation(facts: RoutedFacts, agent: Agent) -> str:
    answer = facts.answers[agent.id]
    if not answer.status:
        return ""
    wanted = agent.document["generation"]
    return f"{wanted}" if agent_state.is_current(agent, answer) else f"{answer.status.get('generation', 'unknown')}, not {wanted}"


def _path_rows(facts: RoutedFacts) -> list[Row]:
    rows = [(pair, view) for pair in pair_views(facts) for view in pair.paths if view.configured != 0 or view.streams]
    rows.sort(key=lambda row: row[0].alive and not row[1].down)
    return [_path_row(pair, view) for pair, view in rows]


def _path_row(pair: PairView, view: PathView) -> Row:
    return f"{pair.agent.name} - {pair.node}", str(view.path.number), view.path.near, view.path.far, _streams(pair, view)


def _streams(pair: PairView, view: PathView) -> str:
    if view.streams is None:  # an agent of an earlier version
        return "some" if pair.alive else "none"
    return f"{view.streams} of {view.configured}"


def as_json(facts: RoutedFacts, found: Sequence[Finding]) -> Json:
    """Facts and findings for programs."""
    service = common.chosen(facts.common)
    return {
        "verdict": checks.verdict(facts, found),
        "from": facts.common.asked.from_site,
        "to": facts.common.asked.to_site,
        "service": service["id"] if service is not None else None,
        "agents": [_agent(facts, agent) for agent in facts.agents],
        "paths": [_path(pair, view) for pair in pair_views(facts) for view in pair.paths],
        "notAccelerated": [
            {"agent": agent.name, "site": agent.site, "outcome": outcome, "reason": reason, "connections": count}
            for agent, outcome, reason, count in reasons(facts)
        ],
        "findings": render.findings_as_json(list(found)),
    }


def _agent(facts: RoutedFacts, agent: Agent) -> Json:
    answer = facts.answers[agent.id]
    state = {"state": _state(facts, agent), "sessions": answer.status.get("sessions"), "error": answer.error or None}
    generations = {"generation": answer.status.get("generation"), "current": agent_state.is_current(agent, answer)}
    return {"agent": agent.name, "site": agent.site, **state, **generations}


def _path(pair: PairView, view: PathView) -> Json:
    ends = {"from": view.path.near, "to": view.path.far, "streams": view.streams, "configured": view.configured}
    return {"agent": pair.agent.name, "peer": pair.node, "path": view.path.number, **ends}
